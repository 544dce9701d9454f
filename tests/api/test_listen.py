"""The sockets of the API and of the operator's probes: on every address of whichever families there are."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slipway.api.listen import listen, listening_at
from slipway.exits import ADDRESS_UNUSABLE, PORT_IN_USE, Exit
from slipway.sockets import EVERYWHERE, everywhere

FAMILIES = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def without(monkeypatch: pytest.MonkeyPatch, reason: int, *families: int) -> None:
    """A kernel that refuses sockets of these families."""
    whole = socket.socket

    def made(family: int = socket.AF_INET, *rest: Any, **named: Any) -> socket.socket:
        if family in families:
            raise OSError(reason, "no such family here")
        return whole(family, *rest, **named)

    monkeypatch.setattr(socket, "socket", made)


def test_clients_of_both_families_reach_one_port_under_their_own_addresses(closing: ExitStack) -> None:
    sockets = {one.family: closing.enter_context(one) for one in listen(EVERYWHERE, 0)}
    assert sockets.keys() == FAMILIES.keys()
    assert len({one.getsockname()[1] for one in sockets.values()}) == 1
    for family, loopback in FAMILIES.items():
        client = closing.enter_context(socket.create_connection((loopback, sockets[family].getsockname()[1])))
        sockets[family].setblocking(True)
        accepted, peer = sockets[family].accept()
        closing.enter_context(accepted)
        assert peer[:2] == client.getsockname()[:2]
        assert peer[0] == loopback


@pytest.mark.parametrize("reason", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
@pytest.mark.parametrize("off", FAMILIES)
def test_where_one_family_is_off_the_other_serves(
    monkeypatch: pytest.MonkeyPatch, closing: ExitStack, off: int, reason: int
) -> None:
    without(monkeypatch, reason, off)
    (opened,) = listen(EVERYWHERE, 0)
    closing.enter_context(opened)
    assert opened.family != off
    port = opened.getsockname()[1]
    closing.enter_context(socket.create_connection((FAMILIES[socket.AddressFamily(opened.family)], port)))


def test_a_machine_without_addresses_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, errno.EAFNOSUPPORT, *FAMILIES)
    with pytest.raises(Exit, match=r"Cannot listen on :::8000: no such family here") as caught:
        listen(EVERYWHERE, 8000)
    assert caught.value.exit_code is ADDRESS_UNUSABLE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_port_that_one_family_has_given_away_is_taken(closing: ExitStack, family: int) -> None:
    taken = closing.enter_context(socket.socket(family))
    taken.bind((FAMILIES[socket.AddressFamily(family)], 0))
    taken.listen()
    port = taken.getsockname()[1]
    with pytest.raises(Exit) as caught:
        listen(EVERYWHERE, port)
    assert caught.value.exit_code is PORT_IN_USE
    taken.close()
    for opened in everywhere(port, 1):  # nothing of the first attempt is left open
        opened.close()


def test_a_socket_of_the_file_system_goes_with_its_server(tmp_path: Path) -> None:
    path = tmp_path / "slipway.sock"
    with listening_at(path) as (opened,), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        with pytest.raises(Exit, match="in use") as caught, listening_at(path):
            pass
        assert caught.value.exit_code is PORT_IN_USE
        assert caught.value.argument == "uds"
    opened.close()
    assert not path.exists()


def test_a_socket_that_a_killed_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "slipway.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with listening_at(path) as (opened,), opened:
        assert path.is_socket()


@pytest.mark.parametrize(
    ("name", "words"), [("file", "in use"), ("none/socket", "No such"), ("a" * 200, "long")]
)
def test_no_file_is_replaced_and_a_place_that_is_none_is_named(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Exit, match=words), listening_at(tmp_path / name):
        pass
    assert (tmp_path / "file").read_text() == "mine"

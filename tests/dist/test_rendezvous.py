"""Ranks of several hosts find each other: two loopback addresses are the hosts here."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from e2e.ground.patience import scaled
from e2e.ground.ports import free_port

from slipway import __version__
from slipway.dist.hosts import ranks_of
from slipway.dist.ports import Listener, close_listeners, connected, listen, own_address, sockets, tell
from slipway.dist.rendezvous import Arrived, Claim, Rendezvous, join
from slipway.dist.trust import Caller, Refused
from slipway.engine.config import EngineConfig
from slipway.exits import ADDRESS_UNUSABLE, BAD_ARGUMENTS, PORT_IN_USE, RANKS_MISSING, Exit

KEY = b"k" * 32
FIRST, SECOND = "127.0.0.2", "127.0.0.3"


def two_hosts(tensor: int = 4, **fields: Any) -> EngineConfig:
    """As the first of them has it."""
    return EngineConfig(
        model="m", tensor_parallel_size=tensor, nnodes=2, master_addr=FIRST, master_port=free_port(), **fields
    )


def on_second(config: EngineConfig, rank: int, **fields: Any) -> EngineConfig:
    return msgspec.structs.replace(config, **({"node_rank": 1, "host_ip": SECOND, "rank": rank} | fields))


def joins(config: EngineConfig, key: bytes = KEY, patience: float = scaled(30)) -> Arrived:
    return join(config, key, patience)


@contextmanager
def meeting(config: EngineConfig) -> Iterator[Rendezvous]:
    rendezvous = Rendezvous(config, KEY)
    yield rendezvous
    rendezvous.close()


def test_every_rank_of_the_other_hosts_comes_with_two_connections() -> None:
    config = two_hosts()
    with meeting(config) as first:
        ours = {rank: joins(on_second(config, rank)) for rank in (3, 2)}
        found = first.wait()
        assert sorted(found) == [2, 3]
        for rank, (control, beats) in found.items():
            for end, other in ((control, ours[rank].control), (beats, ours[rank].beats)):
                other.sendall(b"me")
                assert end.recv(2) == b"me"
                assert end.getpeername()[0] == SECOND
                end.close()
                other.close()
    with pytest.raises(ConnectionRefusedError):  # nobody else is awaited
        socket.create_connection((FIRST, config.master_port))


def test_it_listens_on_the_address_it_was_given_alone() -> None:
    config = two_hosts()
    with meeting(config):
        found = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
        port = f":{config.master_port}"
        assert [line.split()[3] for line in found.splitlines() if line.split()[3].endswith(port)] == [
            f"{FIRST}{port}"
        ]


def test_a_rank_waits_for_a_first_host_that_starts_later() -> None:
    config = two_hosts(tensor=2)
    found: queue.Queue[Arrived] = queue.Queue()
    thread = threading.Thread(target=lambda: found.put(joins(on_second(config, 1))))
    thread.start()
    with meeting(config) as first:
        for connection in (*first.wait()[1], *found.get(timeout=scaled(30))):
            connection.close()
    thread.join()


def test_who_is_missing_is_named() -> None:
    config = two_hosts(tensor=8)
    with meeting(config) as first:
        came = joins(on_second(config, 5))
        with pytest.raises(Exit, match="rank 4 and rank 6 and rank 7 of node 1 have not come to") as missing:
            first.wait(patience=0.1)
        assert missing.value.exit_code is RANKS_MISSING
        assert "within 0.1 s" in missing.value.message
        for connection in came:
            assert connection.recv(1) == b""
            connection.close()


def test_waiting_ends_where_going_on_is_useless() -> None:
    def check() -> None:
        raise Exit(BAD_ARGUMENTS, "enough")

    with meeting(two_hosts()) as first, pytest.raises(Exit, match="enough"):
        first.wait(check)


def test_a_rank_that_comes_twice_is_refused_unless_its_first_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = two_hosts(tensor=2)
    with meeting(config) as first:
        ended = joins(on_second(config, 1))
        with pytest.raises(Exit, match="rank 1 of node 1 has come already"):
            joins(on_second(config, 1))
        assert any("has come already" in line for line in caplog.messages)
        for connection in ended:
            connection.close()
        again = joins(on_second(config, 1))
        for connection in (*first.wait()[1], *again):
            connection.close()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param(
            {"max_model_len": 5, "dtype": "float16"}, "another dtype, max_model_len than", id="arguments"
        ),
        pytest.param({"rank": 0}, "there is no rank 0 of node 1 in this server", id="another node's rank"),
        pytest.param({"rank": 9}, "there is no rank 9 of node 1 in this server", id="no rank"),
    ],
)
def test_a_rank_of_another_command_is_refused_with_the_difference(fields: dict[str, Any], said: str) -> None:
    config = two_hosts(tensor=2)
    with meeting(config), pytest.raises(Exit, match=said) as refused:
        joins(on_second(config, **({"rank": 1} | fields)))
    assert refused.value.exit_code is BAD_ARGUMENTS


def test_what_hosts_have_of_their_own_may_differ() -> None:
    config = two_hosts(tensor=2)
    with meeting(config) as first:
        came = joins(on_second(config, 1, threads=7, download_dir="/elsewhere", hf_token="x"))
        for connection in (*first.wait()[1], *came):
            connection.close()


@pytest.mark.parametrize(
    ("purpose", "claim", "said"),
    [
        ("control", Claim("0.0.0", 2, 1, 1, b""), "it has Slipway 0.0.0, and node 0 has"),
        ("control", Claim(__version__, 3, 1, 1, b""), "was started with --nnodes 3, and node 0 with 2"),
        ("control", Claim(__version__, 2, 1, 1, b""), "has other arguments"),
        ("door", Claim(__version__, 2, 1, 1, b""), "it comes for 'door'"),
        ("control", "rank 1", "it is not of Slipway"),
    ],
)
def test_who_has_the_key_and_is_no_rank_of_this_server_is_told(
    purpose: str, claim: object, said: str
) -> None:
    config = two_hosts(tensor=2)
    with meeting(config) as first:
        with (
            socket.create_connection((FIRST, config.master_port)) as connection,
            pytest.raises(Refused, match=said),
        ):
            Caller(KEY, purpose, msgspec.msgpack.encode(claim)).challenge(connection)
        came = joins(on_second(config, 1))
        for connection in (*first.wait()[1], *came):
            connection.close()


@pytest.mark.parametrize("key", [b"o" * 32, b""])
def test_a_rank_with_another_key_is_told_at_once_what_may_be_wrong(key: bytes) -> None:
    config = two_hosts(tensor=2)
    with meeting(config), pytest.raises(Exit, match="--cluster-key-file holds another key") as refused:
        joins(on_second(config, 1), key)
    assert refused.value.exit_code is RANKS_MISSING


def test_a_first_host_that_never_listens_is_named() -> None:
    config = two_hosts(tensor=2)
    with pytest.raises(Exit, match=r"could not be reached at 127.0.0.2:.* within 0.1 s: Connection refused"):
        joins(on_second(config, 1), patience=0.1)


def test_ranks_spread_evenly_or_are_refused() -> None:
    config = two_hosts(tensor=6)
    assert [ranks_of(config, node) for node in (0, 1)] == [range(3), range(3, 6)]
    with pytest.raises(Exit, match=r"3 ranks .* do not spread evenly over --nnodes 2"):
        ranks_of(two_hosts(tensor=3), 0)


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
def test_no_port_between_hosts_is_open_to_every_network(wildcard: str) -> None:
    with pytest.raises(Exit, match=f"{wildcard} means every address of this host"):
        listen(wildcard, 0, "master_addr")


def test_an_address_or_port_that_cannot_be_had_is_named() -> None:
    with pytest.raises(Exit, match=r"192\.0\.2\.1 on port 9000") as refused:
        listen("192.0.2.1", 9000, "master_addr")
    assert refused.value.exit_code is ADDRESS_UNUSABLE
    with socket.create_server((FIRST, 0)) as taken, pytest.raises(Exit, match="in use") as refused:
        listen(FIRST, taken.getsockname()[1], "master_addr")
    assert refused.value.exit_code is PORT_IN_USE


def test_a_listener_is_found_though_its_descriptor_was_another_sockets_before() -> None:
    with socket.socket() as old, socket.create_server((FIRST, 0)) as listener:
        before = sockets()
        os.dup2(listener.fileno(), old.fileno())
        found = [one.descriptor for one in sockets() - before]
        assert found == [old.fileno()]
        close_listeners(found)
        assert connected(old.fileno())
        assert not connected(listener.fileno())


def test_an_address_of_its_own_is_the_one_by_which_it_reaches_the_first_host() -> None:
    assert own_address("127.0.0.9") == "127.0.0.1"


def test_the_start_lists_every_port_and_warns_once_without_a_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    listeners = [
        Listener("ranks report", FIRST, 7000, authenticated=True, open_until="all have come"),
        Listener("gloo", FIRST, None, authenticated=False, open_until="ranks are connected"),
    ]
    tell(listeners, KEY)
    assert caplog.messages == [
        "listening on 127.0.0.2, port 7000: ranks report; authenticated by HMAC, not encrypted; open until "
        "all have come",
        "listening on 127.0.0.2, a free port: gloo; not authenticated, not encrypted; open until ranks are "
        "connected",
    ]
    tell(listeners, b"")
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "127.0.0.2:7000, 127.0.0.2:(a free port)" in warning

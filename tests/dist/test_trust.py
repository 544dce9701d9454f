"""Who comes to a port between hosts and does not have the key, or does not keep to the challenge."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from e2e.ground.patience import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.dist import gate
from slipway.dist.frames import encode_frame
from slipway.dist.gate import Gate
from slipway.dist.trust import (
    MAX_BYTES,
    NONCE_BYTES,
    VERSION,
    Acceptor,
    Caller,
    Distrusted,
    Greeting,
    Nonce,
    Proof,
    Refused,
    read_key,
)
from slipway.exits import BAD_ARGUMENTS, Exit

KEY = b"k" * 32
OTHER = b"o" * 32


class Guests:
    """A door that lets in all but those who claim to be `bad`."""

    def __init__(self) -> None:
        self.came: queue.Queue[tuple[Greeting, socket.socket]] = queue.Queue()

    def refusal(self, greeting: Greeting) -> str:
        return "bad guests stay outside" if greeting.claim == b"bad" else ""

    def take(self, greeting: Greeting, connection: socket.socket) -> None:
        self.came.put((greeting, connection))


class Open:
    """A gate that listens."""

    def __init__(self, patience: float = scaled(30)) -> None:
        self.guests = Guests()
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.gate = Gate(listener, KEY, self.guests, patience)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=scaled(30))

    def serves(self) -> bool:
        """Whether somebody with the key still comes in, and is heard."""
        with self.connect() as caller:
            Caller(KEY, "control", b"rank 1").challenge(caller)
            caller.sendall(b"hello")
            greeting, connection = self.guests.came.get(timeout=scaled(30))
            with connection:
                return (greeting.claim, connection.recv(5)) == (b"rank 1", b"hello")


@pytest.fixture
def port() -> Iterator[Open]:
    opened = Open()
    yield opened
    opened.gate.close()
    assert opened.guests.came.empty(), "a stranger was let in"


def hung_up(connection: socket.socket) -> bool:
    try:
        while connection.recv(1 << 10):
            pass
    except ConnectionResetError:
        pass
    return True


def greeting(claim: bytes = b"rank 1") -> Greeting:
    return Greeting(VERSION, "control", claim, b"n" * NONCE_BYTES)


def logged(caplog: pytest.LogCaptureFixture, what: str) -> bool:
    return any("refused 127.0.0.1:" in line and what in line for line in caplog.messages)


def test_who_has_the_key_comes_in_and_no_byte_of_what_it_says_next_is_lost(port: Open) -> None:
    assert port.serves()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", "over the limit of 1024", id="another protocol"),
        pytest.param(encode_frame(greeting(b"x" * MAX_BYTES)), "over the limit of 1024", id="oversized"),
        pytest.param(encode_frame(["what"]), "it speaks otherwise", id="no greeting"),
        pytest.param(b"\0\0\0\0", "it speaks otherwise", id="an empty frame"),
        pytest.param(
            encode_frame(Greeting(VERSION, "control", b"", b"short")), "nonce has 5 bytes", id="a short nonce"
        ),
        pytest.param(
            encode_frame(Greeting(VERSION + 1, "control", b"", b"")), "speaks version 2", id="another version"
        ),
        pytest.param(
            encode_frame(greeting()) + encode_frame(Proof(b"0" * 32)), "its proof is wrong", id="no proof"
        ),
        pytest.param(
            encode_frame(greeting()) + encode_frame(Proof(b"")), "its proof is wrong", id="an empty proof"
        ),
    ],
)
def test_a_stranger_is_refused_with_the_reason_logged_and_the_next_one_served(
    port: Open, caplog: pytest.LogCaptureFixture, sent: bytes, why: str
) -> None:
    with port.connect() as stranger:
        stranger.sendall(sent)
        assert hung_up(stranger)
    assert logged(caplog, why)
    assert port.serves()


@settings(max_examples=60)
@given(st.binary(max_size=3000))
def test_no_bytes_at_all_let_anyone_in(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        acceptor = Acceptor(KEY)
        turn = acceptor.proven(ours)
        wanted, at = next(turn), 0
        with pytest.raises(Distrusted):  # noqa: PT012 - each turn may be the one that refuses
            while at + wanted <= len(sent):
                sliced, at = sent[at : at + wanted], at + wanted
                wanted = turn.send(sliced)
            raise Distrusted("nothing more comes")


@pytest.mark.parametrize("key", [OTHER, b""])
def test_a_caller_with_another_key_or_none_is_refused_and_told_what_may_be_wrong(
    port: Open, caplog: pytest.LogCaptureFixture, key: bytes
) -> None:
    with port.connect() as stranger, pytest.raises(Distrusted, match="--cluster-key-file holds another key"):
        Caller(key, "control", b"rank 1").challenge(stranger)
    assert logged(caplog, "--cluster-key-file holds another key")
    assert port.serves()


def test_what_one_caller_has_said_helps_no_other(port: Open, caplog: pytest.LogCaptureFixture) -> None:
    """All that a caller with the key sends is recorded, and said again."""
    recorded = b""
    with port.connect() as caller:
        sendall, own = caller.sendall, Caller(KEY, "control", b"rank 1")

        class Recording:
            def sendall(self, said: bytes) -> None:
                nonlocal recorded
                recorded += said
                sendall(said)

            def __getattr__(self, name: str) -> object:
                return getattr(caller, name)

        own.challenge(Recording())  # type: ignore[arg-type]
        port.guests.came.get(timeout=scaled(30))[1].close()
    with port.connect() as stranger:
        stranger.sendall(recorded)
        assert hung_up(stranger)
    assert logged(caplog, "its proof is wrong")
    assert port.serves()


def test_a_claim_or_purpose_that_was_changed_on_the_way_is_refused() -> None:
    for changed in (
        Greeting(VERSION, "beats", b"rank 1", b"n" * NONCE_BYTES),
        Greeting(VERSION, "control", b"rank 2", b"n" * NONCE_BYTES),
    ):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs_says = Caller(KEY, "control", b"rank 1")
            ended: queue.Queue[Exception] = queue.Queue()

            def call(
                caller: Caller = theirs_says,
                connection: socket.socket = theirs,
                ended: queue.Queue[Exception] = ended,
            ) -> None:
                try:
                    caller.challenge(connection)
                except Exception as error:
                    ended.put(error)

            thread = threading.Thread(target=call)
            thread.start()
            turn = Acceptor(KEY).proven(ours)
            wanted = next(turn)
            said = ours.recv(1 << 10)  # and the acceptor is told something else
            nonce = msgspec.msgpack.decode(said[4:], type=Greeting).nonce
            put = encode_frame(msgspec.structs.replace(changed, nonce=nonce))
            turn.send(put[:wanted])
            wanted = turn.send(put[4:])
            with pytest.raises(Distrusted, match="its proof is wrong"):  # noqa: PT012
                while True:
                    wanted = turn.send(ours.recv(wanted, socket.MSG_WAITALL))
            ours.close()
            thread.join()
            assert isinstance(ended.get(timeout=scaled(30)), Distrusted)


def test_an_acceptor_that_sends_back_what_it_is_sent_is_not_trusted() -> None:
    """Reflection: it has no key, and answers with the caller's own nonce and proof."""
    listener = socket.create_server(("127.0.0.1", 0))

    def reflect() -> None:
        connection, _ = listener.accept()
        with connection:
            head = connection.recv(4, socket.MSG_WAITALL)
            told = connection.recv(int.from_bytes(head), socket.MSG_WAITALL)
            nonce = msgspec.msgpack.decode(told, type=Greeting).nonce
            connection.sendall(encode_frame(Nonce(nonce)))
            head = connection.recv(4, socket.MSG_WAITALL)
            connection.sendall(head + connection.recv(int.from_bytes(head), socket.MSG_WAITALL))
            hung_up(connection)

    thread = threading.Thread(target=reflect)
    thread.start()
    with (
        listener,
        socket.create_connection(listener.getsockname(), timeout=scaled(30)) as caller,
        pytest.raises(Distrusted, match="its proof is wrong"),
    ):
        Caller(KEY, "control", b"rank 1").challenge(caller)
    thread.join()


def test_a_caller_may_have_the_key_and_be_refused_with_the_reason(
    port: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with port.connect() as caller, pytest.raises(Refused, match="bad guests stay outside"):
        Caller(KEY, "control", b"bad").challenge(caller)
    assert logged(caplog, "bad guests stay outside")
    assert port.serves()


def test_who_says_nothing_or_a_byte_at_a_time_is_refused_when_its_time_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = Open(patience=0.3)
    try:
        with opened.connect() as silent, opened.connect() as slow:
            slow.sendall(b"\0")
            assert hung_up(silent)
            assert hung_up(slow)
        assert [line for line in caplog.messages if "longer than 0.3 s" in line][1:]
    finally:
        opened.gate.close()


def test_a_caller_waits_for_no_acceptor_that_says_nothing() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_connection(silent.getsockname()) as caller,
        pytest.raises(Distrusted, match="too slow"),
    ):
        Caller(KEY, "control", b"").challenge(caller, patience=0.1)


def test_strangers_that_say_nothing_hold_up_nobody_however_many_they_are(
    port: Open, caplog: pytest.LogCaptureFixture
) -> None:
    strangers = [port.connect() for _ in range(gate.MOST_HALF_OPEN + 3)]
    assert port.serves()
    assert hung_up(strangers[0])
    assert logged(caplog, f"{gate.MOST_HALF_OPEN} others are in the midst")
    for stranger in strangers:
        stranger.close()
    assert port.serves()


def test_a_key_is_read_without_the_white_space_around_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY + b"\n")
    path.chmod(0o600)
    assert read_key(str(path)) == KEY
    assert not caplog.messages
    path.chmod(0o644)
    assert read_key(str(path)) == KEY
    assert "can be read by every user" in caplog.messages[0]
    assert read_key(None) == b""


@pytest.mark.parametrize(
    ("held", "said"), [(None, "cannot be read: No such file"), (b"short\n", "holds 5 bytes")]
)
def test_a_key_that_cannot_be_used_is_named(tmp_path: Path, held: bytes | None, said: str) -> None:
    path = tmp_path / "key"
    if held is not None:
        path.write_bytes(held)
    with pytest.raises(Exit, match=said) as refused:
        read_key(str(path))
    assert refused.value.exit_code is BAD_ARGUMENTS
    assert refused.value.argument == "cluster_key_file"
    assert "openssl rand -hex 32" in str(refused.value.hint)

"""Folders for sockets, wherever temporary files go."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from slipway import call_trace, exits, temporary
from slipway.batch.files import Input
from slipway.engine.tunnel import Meeting
from slipway.temporary import LONGEST_SOCKET, private_folder, socket_folder

NAME = "engine.sock"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own with a short path, the only other place."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(temporary, "OTHERS", (folder,))
        monkeypatch.delenv(temporary.BASE, raising=False)
        yield Path(folder)


def of_length(length: int, root: Path) -> Path:
    """A folder whose path has so many bytes."""
    left = length - len(os.fsencode(root)) - 1
    folder = root.joinpath(*["d" * 49] * ((left - 1) // 50))
    folder /= "e" * (length - len(os.fsencode(folder)) - 1)
    folder.mkdir(parents=True)
    assert len(os.fsencode(folder)) == length
    return folder


def temporary_files_go_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


def bind(folder: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.path.join(folder, NAME))


LONGEST_FOLDER = LONGEST_SOCKET - len(f"/slipway-xxxxxxxx/{NAME}")


@pytest.mark.parametrize("excess", [0, 1, 200])
def test_a_socket_has_a_short_place_where_temporary_files_have_none(
    short: Path, monkeypatch: pytest.MonkeyPatch, excess: int
) -> None:
    usual = of_length(LONGEST_FOLDER + excess, short)
    temporary_files_go_to(usual, monkeypatch)
    with socket_folder(NAME) as folder:
        assert Path(folder).parent == (short if excess else usual)
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        bind(folder)
    assert not Path(folder).exists()


def test_letters_of_several_bytes_count_as_such(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = short / ("é" * 45)
    usual.mkdir()
    assert len(f"{usual}/slipway-xxxxxxxx/{NAME}") <= LONGEST_SOCKET
    temporary_files_go_to(usual, monkeypatch)
    with socket_folder(NAME) as folder:
        assert Path(folder).parent == short
        bind(folder)


def test_other_places_are_tried_where_there_is_none_for_temporary_files(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    monkeypatch.setattr(temporary, "OTHERS", (str(short / "absent"), str(short)))
    for made in (socket_folder(NAME), private_folder("slipway-ranks-")):
        with made as folder:
            assert Path(folder).parent == short
    monkeypatch.setattr(temporary, "OTHERS", (str(short / "absent"), "/proc"))
    for make, what, hint in (
        (lambda: socket_folder(NAME), "the sockets of the server", temporary.BASE),
        (lambda: private_folder("slipway-"), "temporary files", "TMPDIR"),
    ):
        with pytest.raises(exits.Exit, match=f"There is no folder for {what}") as refused:
            make()
        assert refused.value.exit_code is exits.BAD_ARGUMENTS
        assert f"{short}/absent: No such file or directory; /proc: " in refused.value.message
        assert f"Name one by {hint}" in refused.value.hint
        assert "--tmpfs /tmp" in refused.value.hint


def test_the_folder_that_the_variable_names_is_taken_or_refused(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(temporary.BASE, str(short / "made"))
    with socket_folder(NAME) as folder:
        assert Path(folder).parent == short / "made"
    long = of_length(LONGEST_FOLDER + 1, short)
    file = short / "file"
    file.touch()
    for base, reason in (
        (long, f"{long}: a socket's path has at most 107 bytes, there 108."),
        (file, f"{file}: Not a directory."),
        (Path("/proc/absent"), "/proc/absent: No such file or directory."),
    ):
        monkeypatch.setenv(temporary.BASE, str(base))
        with pytest.raises(exits.Exit, match=f"^{temporary.BASE} names no folder for the sockets") as refused:
            socket_folder(NAME)
        assert refused.value.exit_code is exits.BAD_ARGUMENTS
        assert refused.value.message.endswith(reason)


def test_sockets_of_engines_elsewhere_are_in_the_same_place(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary_files_go_to(of_length(LONGEST_FOLDER, short), monkeypatch)  # too long for engine-1000.sock
    monkeypatch.setenv(temporary.BASE, str(short))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        meeting = Meeting(listener, b"", range(999, 1001), 1001)
        try:
            assert Path(meeting.folder).parent == short
            assert {path.name for path in Path(meeting.folder).iterdir()} == {
                "engine-999.sock",
                "engine-1000.sock",
            }
        finally:
            meeting.close()


def test_what_needs_a_temporary_file_says_so_where_there_is_no_place(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary_files_go_to(short / "absent", monkeypatch)
    for make, lacks in (
        (call_trace.trace_calls, "VLLM_TRACE_FUNCTION=1 has no folder for its files"),
        (lambda: Input("http://127.0.0.1/in.jsonl"), "The input needs a copy, and there is no folder"),
    ):
        with pytest.raises(exits.Exit, match=lacks) as refused:
            make()
        assert refused.value.exit_code is exits.BAD_ARGUMENTS
        assert "TMPDIR" in refused.value.hint

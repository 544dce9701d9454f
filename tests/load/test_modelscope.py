"""Models of ModelScope, against its REST interface on this machine."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from e2e.ground.patience import scaled

from slipway.load import modelscope
from slipway.load.errors import LoadError
from slipway.load.hub import locate

MODEL = "acme/tiny"
WEIGHTS = bytes(range(256)) * 5000


class Site(ThreadingHTTPServer):
    """Answers the two questions that a download asks, of one repository."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {
            "config.json": b"{}",
            "tokenizer.json": b"{ }",
            "model.safetensors": WEIGHTS,
            "model.bin": b"other",
            "onnx/model.safetensors": b"never",
            "README.md": b"never",
        }
        self.sent: list[tuple[str, int]] = []
        """Files asked for, and from which byte on."""
        self.breaks_after = 0
        """Bytes of a file after which the connection ends, once."""
        self.list_breaks = False
        """The list of files ends in its midst."""
        self.statuses: list[int] = []
        """Answered first, to what is asked next: 0 hangs up, 1 keeps silent."""
        self.knows_ranges = True
        self.ended = threading.Event()
        self.token = ""
        self.lies = False


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        url, site = urlsplit(self.path), self.server
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        status = site.statuses.pop(0) if site.statuses else 200
        if status == 1:
            site.ended.wait(scaled(5))
        elif status >= 400:
            self.send_error(status)
        elif status == 0:
            return
        elif site.token and f"m_session_id={site.token}" not in self.headers.get("Cookie", ""):
            self.send_error(403)
        elif query["Revision"] != "master":
            self.send_error(404)
        elif url.path == f"/api/v1/models/{MODEL}/repo/files":
            entries: list[dict[str, object]] = [
                {
                    "Path": name,
                    "Size": len(content),
                    "Type": "blob",
                    "Sha256": hashlib.sha256(b"lie" if site.lies else content).hexdigest(),
                }
                for name, content in site.files.items()
            ]
            entries.append({"Path": "onnx", "Size": 0, "Type": "tree", "Sha256": ""})
            listed = json.dumps({"Code": 200, "Data": {"Files": entries}}).encode()
            self.answer(200, listed, 100 if site.list_breaks else 0)
        elif url.path == f"/api/v1/models/{MODEL}/repo":
            self.file(query["FilePath"])
        else:
            self.send_error(404)

    def file(self, name: str) -> None:
        site = self.server
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        site.sent.append((name, first))
        first = first if site.knows_ranges else 0
        content = site.files[name][first:]
        cut, site.breaks_after = site.breaks_after, 0
        self.answer(206 if first else 200, content, cut)

    def answer(self, status: int, content: bytes, cut: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:cut] if cut else content)

    def log_message(self, *words: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(modelscope, "PAUSE", 0.0)
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        for name, value in {
            "VLLM_USE_MODELSCOPE": "1",
            "MODELSCOPE_DOMAIN": f"http://127.0.0.1:{site.server_port}",
            "MODELSCOPE_CACHE": str(tmp_path / "cache"),
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        for name in ("HF_HUB_OFFLINE", "MODELSCOPE_API_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield site
        site.ended.set()
        site.shutdown()
        thread.join()


def fetched(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        name: path.read_bytes()
        for path in files
        if not (name := path.relative_to(folder).as_posix()).startswith(".")
    }


def test_a_repository_is_downloaded_with_its_weights_and_progress(site: Site) -> None:
    told: list[tuple[str, int, int]] = []
    folder = locate(MODEL, progress=lambda *step: told.append(step))
    wanted = {name: site.files[name] for name in ("config.json", "tokenizer.json", "model.safetensors")}
    assert fetched(folder) == wanted
    assert told[-1] == ("download", sum(map(len, wanted.values())), sum(map(len, wanted.values())))
    assert len(site.sent) == 3
    assert locate(MODEL) == folder
    assert len(site.sent) == 3


def test_configuration_and_tokenizer_can_be_had_alone_and_weights_by_format(site: Site) -> None:
    assert fetched(locate(MODEL, weights=False)).keys() == {"config.json", "tokenizer.json"}
    assert "model.bin" in fetched(locate(MODEL, load_format="pt"))


def test_a_new_version_of_a_file_is_fetched_and_no_other(site: Site) -> None:
    folder = locate(MODEL)
    site.sent.clear()
    site.files["config.json"] = b"[]"
    assert fetched(locate(MODEL))["config.json"] == b"[]"
    assert site.sent == [("config.json", 0)]
    assert fetched(folder)["model.safetensors"] == WEIGHTS


def test_a_download_that_breaks_off_goes_on_where_it_stopped(site: Site) -> None:
    locate(MODEL, weights=False)
    site.sent.clear()
    site.breaks_after = 1000
    assert fetched(locate(MODEL))["model.safetensors"] == WEIGHTS
    assert site.sent == [("model.safetensors", 0), ("model.safetensors", 1000)]


@pytest.mark.parametrize("status", [0, 408, 429, 500, 503])
def test_what_passes_does_not_end_a_download(site: Site, status: int) -> None:
    locate(MODEL, weights=False)
    site.statuses = [200, status, status]  # the list comes, the file twice not
    assert fetched(locate(MODEL))["model.safetensors"] == WEIGHTS


def test_a_busy_site_is_asked_for_its_list_again(site: Site) -> None:
    site.statuses = [429, 503]
    assert fetched(locate(MODEL))["model.safetensors"] == WEIGHTS


def test_a_site_that_stays_busy_is_given_up(site: Site) -> None:
    site.statuses = [200, *[503] * modelscope.ATTEMPTS]
    with pytest.raises(LoadError, match="broke off: HTTP status 503") as caught:
        locate(MODEL)
    assert caught.value.code == "Interrupted"
    assert not site.statuses


@pytest.mark.parametrize("status", [0, 1, 503])
def test_a_list_that_does_not_come_is_the_network(
    site: Site, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(modelscope, "TIMEOUT", 0.2)
    site.statuses = [status] * modelscope.ATTEMPTS
    with pytest.raises(LoadError, match="cannot be had from ModelScope") as caught:
        locate(MODEL)
    assert caught.value.code == "NoNetwork"


@pytest.mark.parametrize("status", [0, 1, 503])
def test_what_was_fetched_is_found_while_the_site_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(modelscope, "TIMEOUT", 0.2)
    folder = locate(MODEL)
    site.statuses = [status]
    assert locate(MODEL) == folder


def test_what_was_fetched_is_found_where_the_list_breaks_off(site: Site) -> None:
    folder = locate(MODEL)
    site.list_breaks = True
    assert locate(MODEL) == folder


def interrupted(site: Site) -> None:
    """A download of the weights that has ended after 1,000 bytes."""
    locate(MODEL, weights=False)
    site.breaks_after = 1000
    site.statuses = [200, 200, *[503] * modelscope.ATTEMPTS]
    with pytest.raises(LoadError, match="broke off"):
        locate(MODEL)
    site.sent.clear()


def test_a_proxy_that_knows_no_ranges_costs_what_was_there(site: Site) -> None:
    interrupted(site)
    site.knows_ranges = False
    told: list[tuple[str, int, int]] = []
    folder = locate(MODEL, progress=lambda *step: told.append(step))
    assert fetched(folder)["model.safetensors"] == WEIGHTS
    assert site.sent == [("model.safetensors", 1000)]
    assert [done for _, done, _ in told][:2] == [1000, 0]
    assert told[-1] == ("download", len(WEIGHTS), len(WEIGHTS))


def test_a_download_that_goes_on_needs_space_for_its_rest_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(site)
    free = modelscope.SPARE + len(WEIGHTS) - 1001
    monkeypatch.setattr(modelscope.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(LoadError, match="There is no space for") as caught:
        locate(MODEL)
    assert caught.value.code == "NoSpace"
    free += 1
    assert fetched(locate(MODEL))["model.safetensors"] == WEIGHTS


def test_a_site_that_sends_nothing_more_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["config.json"] = b""
    monkeypatch.setattr(
        modelscope.Repository, "_parsed", lambda *_: [modelscope.RemoteFile("config.json", 9, "")]
    )
    with pytest.raises(LoadError, match="broke off: nothing more came") as caught:
        locate(MODEL, weights=False)
    assert caught.value.code == "Interrupted"
    assert len(site.sent) == modelscope.ATTEMPTS


def test_what_was_fetched_is_found_without_a_network(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = locate(MODEL)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert locate(MODEL) == folder
    with pytest.raises(LoadError, match="HF_HUB_OFFLINE is set") as caught:
        locate("acme/other")
    assert caught.value.code == "NoNetwork"


def test_two_who_want_the_same_files_fetch_each_once(site: Site) -> None:
    threads = [threading.Thread(target=locate, args=(MODEL,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for name, _ in site.sent) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert not list(locate(MODEL).rglob("*.part"))


def test_other_bytes_than_promised_are_not_kept(site: Site) -> None:
    site.lies = True
    with pytest.raises(LoadError, match="came with other bytes than the site promised") as caught:
        locate(MODEL)
    assert caught.value.code == "BadCheckpoint"


@pytest.mark.parametrize(
    ("model", "revision", "code", "words"),
    [
        ("acme/none", None, "ModelNotFound", "ModelScope has no model acme/none"),
        (MODEL, "v9", "ModelNotFound", r"acme/tiny \(revision v9\)"),
    ],
)
def test_what_is_not_there_is_named(
    site: Site, model: str, revision: str | None, code: str, words: str
) -> None:
    with pytest.raises(LoadError, match=words) as caught:
        locate(model, revision=revision)
    assert caught.value.code == code


def test_a_private_model_opens_with_modelscopes_own_token(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.token = "ms-secret"
    with pytest.raises(LoadError, match="MODELSCOPE_API_TOKEN") as caught:
        locate(MODEL, token="hf_not_for_them")
    assert caught.value.code == "ModelGated"
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms-secret\n")
    assert fetched(locate(MODEL, weights=False))


def test_a_token_that_no_header_carries_is_refused_without_showing_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms\nsecret")
    with pytest.raises(LoadError, match="its character 3 ends a line") as caught:
        locate(MODEL)
    assert caught.value.code == "ModelGated"
    assert "secret" not in str(caught.value)


def test_a_site_that_does_not_answer_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_DOMAIN", "http://127.0.0.1:9")
    with pytest.raises(LoadError, match="MODELSCOPE_DOMAIN names another site") as caught:
        locate(MODEL)
    assert caught.value.code == "NoNetwork"


@pytest.mark.parametrize("name", ["../config.json", "/config.json", "a/../../config.json"])
def test_a_name_that_leads_out_of_the_folder_is_refused(site: Site, name: str) -> None:
    site.files[name] = b"{}"
    with pytest.raises(LoadError, match="outside its folder"):
        locate(MODEL)


def test_one_of_several_gguf_files_is_named_before_all_are_fetched(site: Site) -> None:
    site.files = {"tiny.Q4_0.gguf": b"GGUF4", "tiny.Q8_0.gguf": b"GGUF8"}
    with pytest.raises(LoadError, match="names 2 GGUF models"):
        locate(MODEL, load_format="gguf")
    assert site.sent == []
    assert locate(f"{MODEL}:Q8_0").read_bytes() == b"GGUF8"

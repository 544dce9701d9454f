"""Models are found by the real hub client against a hub on this machine."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, serve

from slipway.load.errors import LoadError
from slipway.load.hub import Repository, locate

# The client reads its settings when it is imported, so every case has a process of its own.
pytestmark = pytest.mark.slow
REPOSITORY = "acme/tiny"
CODE = """
import json, sys
from slipway.load.errors import LoadError
from slipway.load.hub import locate, locate_adapter
told, asked = [], json.loads(sys.argv[1])
try:
    if "place" in asked:
        path = locate_adapter(**asked)
    else:
        path = locate(**asked, progress=lambda *step: told.append(step))
    answer = {"path": str(path), "told": told}
except LoadError as error:
    answer = {"code": error.code, "message": error.message, "hint": error.hint,
              "argument": error.argument}
answer["heavy"] = sorted({"torch", "transformers", "numpy"} & set(sys.modules))
print(json.dumps(answer))
"""


@dataclass
class Client:
    hub: Hub
    home: Path

    def locate(self, model: str = REPOSITORY, offline: bool = False, **options: object) -> dict:  # type: ignore[type-arg]
        return self.ask({"model": model, **options}, offline)

    def locate_adapter(self, place: str, offline: bool = False, **options: object) -> dict:  # type: ignore[type-arg]
        return self.ask({"place": place, **options}, offline)

    def ask(self, arguments: dict[str, object], offline: bool) -> dict:  # type: ignore[type-arg]
        environment = {
            **os.environ,
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "1" if offline else "0",
            "NO_PROXY": "127.0.0.1",
        }
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE"):
            environment.pop(name, None)
        command = [sys.executable, "-c", CODE, json.dumps(arguments)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        answer: dict = json.loads(ran.stdout)  # type: ignore[type-arg]
        assert answer.pop("heavy") == []
        return answer


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    folder = tmp_path / "hub" / REPOSITORY
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin"):
        (folder / name).write_text(json.dumps({"name": name}))
    for name in ("onnx/extra.safetensors", "original/params.json", "run.py", "README.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    with serve(tmp_path / "hub") as hub:
        yield Client(hub, tmp_path / "home")


def names(path: str) -> list[str]:
    return sorted(file.relative_to(path).as_posix() for file in Path(path).rglob("*.*"))


def test_a_repository_is_downloaded_with_its_weights_and_progress(client: Client) -> None:
    answer = client.locate()
    assert names(answer["path"]) == ["config.json", "model.safetensors", "tokenizer.json"]
    folder = client.hub.root / REPOSITORY
    total = sum((folder / name).stat().st_size for name in names(answer["path"]))
    assert answer["told"][-1] == ["download", total, total]


def test_what_is_in_the_cache_is_found_without_a_network(client: Client) -> None:
    first = client.locate()
    client.hub.requests.clear()
    assert client.locate(offline=True)["path"] == first["path"]
    assert client.hub.requests == []
    client.hub.url = "http://127.0.0.1:9"  # nobody listens there
    assert client.locate()["path"] == first["path"]


def test_configuration_and_tokenizer_can_be_had_alone(client: Client) -> None:
    answer = client.locate(weights=False)
    assert names(answer["path"]) == ["config.json", "tokenizer.json"]
    assert names(client.locate(weights=False, code=True)["path"]) == [
        "config.json",
        "run.py",
        "tokenizer.json",
    ]


def test_the_format_decides_which_weights_are_fetched(client: Client, tmp_path: Path) -> None:
    answer = client.locate(load_format="pt", download_dir=str(tmp_path / "there"))
    assert names(answer["path"]) == ["config.json", "pytorch_model.bin", "tokenizer.json"]
    assert answer["path"].startswith(str(tmp_path / "there"))
    (client.hub.root / REPOSITORY / "model.safetensors").unlink()
    answer = client.locate()  # auto
    assert "pytorch_model.bin" in names(answer["path"])
    answer = client.locate(load_format="safetensors")
    assert answer["code"] == "ModelNotFound"
    assert "has no weights (*.safetensors)" in answer["message"]


def test_the_original_layout_is_fetched_where_it_is_asked_for_or_there_is_no_other(client: Client) -> None:
    folder = client.hub.root / REPOSITORY
    for name in ("consolidated.safetensors", "params.json", "tokenizer.model.v3"):
        (folder / name).write_text("{}")
    plain = ["config.json", "model.safetensors", "params.json", "tokenizer.json", "tokenizer.model.v3"]
    assert names(client.locate()["path"]) == plain
    found = names(client.locate(load_format="mistral")["path"])
    assert "consolidated.safetensors" in found
    for path in folder.glob("*model.[sb]*"):
        path.unlink()
    client.hub.requests.clear()
    assert "consolidated.safetensors" in names(client.locate()["path"])
    answer = client.locate(load_format="mistral", ignore_patterns=["consolidated*"])
    assert answer["code"] == "ModelNotFound"


def test_one_gguf_file_of_a_repository_can_be_named(client: Client) -> None:
    folder = client.hub.root / REPOSITORY
    for name in ("a.Q4_K_M.gguf", "a.Q8_0-00001-of-00002.gguf", "a.Q8_0-00002-of-00002.gguf"):
        (folder / name).write_text(name)
    answer = client.locate(f"{REPOSITORY}:Q4_K_M")
    assert Path(answer["path"]).name == "a.Q4_K_M.gguf"
    answer = client.locate(f"{REPOSITORY}/a.Q8_0-00001-of-00002.gguf")
    assert Path(answer["path"]).name == "a.Q8_0-00001-of-00002.gguf"
    assert Path(answer["path"].replace("00001-of", "00002-of")).exists()
    assert client.locate(f"{REPOSITORY}:Q4_K_M", weights=False)["path"].endswith("/a.Q4_K_M.gguf")
    client.hub.requests.clear()
    answer = client.locate(load_format="gguf")
    assert answer["code"] == "ModelNotFound"
    assert "2 GGUF models: a.Q4_K_M.gguf, a.Q8_0-00001-of-00002.gguf" in answer["message"]
    assert not [request for request in client.hub.requests if request.startswith("GET /acme")]


def test_an_adapter_is_fetched_without_what_lies_beside_it(client: Client) -> None:
    folder = client.hub.root / "acme/adapter"
    folder.mkdir()
    wanted = ["adapter_config.json", "adapter_model.safetensors"]
    wanted += ["added_tokens.json", "chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
    (folder / "checkpoint-1").mkdir()
    beside = ("model.safetensors", "README.md", "optimizer.pt", "trainer_state.json")
    for name in (*wanted, *beside, "checkpoint-1/tokenizer.json", "checkpoint-1/adapter_model.safetensors"):
        (folder / name).write_text(name)
    path = client.locate_adapter("acme/adapter")["path"]
    assert names(path) == sorted(wanted)
    assert client.locate_adapter("acme/adapter", offline=True)["path"] == path
    assert client.locate_adapter(str(folder))["path"] == str(folder)
    assert client.locate_adapter("acme/none")["code"] == "ModelNotFound"
    assert client.locate_adapter("acme/none", offline=True)["code"] == "NoNetwork"
    missing = client.locate_adapter(str(folder / "no"))
    assert (missing["code"], missing["message"]) == ("ModelNotFound", f"There is no folder {folder / 'no'}.")


def test_a_missing_repository_and_a_missing_revision_are_told_apart(client: Client) -> None:
    answer = client.locate("acme/tinny")
    assert (answer["code"], answer["argument"]) == ("ModelNotFound", "model")
    assert "There is no model acme/tinny on the hub" in answer["message"]
    answer = client.locate(revision="v9")
    assert (answer["code"], answer["argument"]) == ("ModelNotFound", "revision")
    assert "no revision 'v9'" in answer["message"]
    assert client.locate(revision=COMMIT)["path"].endswith(COMMIT)


def test_a_gated_model_asks_for_a_token_and_opens_with_it(client: Client) -> None:
    client.hub.gated.add(REPOSITORY)
    client.hub.token = "hf_right"
    answer = client.locate()
    assert (answer["code"], answer["argument"]) == ("ModelGated", "hf_token")
    assert "HF_TOKEN" in answer["hint"]
    assert client.locate(token="hf_wrong")["code"] == "ModelGated"
    assert "model.safetensors" in names(client.locate(token="hf_right")["path"])


def test_the_stored_token_must_exist_to_be_asked_for(client: Client) -> None:
    answer = client.locate(token=True)
    assert (answer["code"], answer["argument"]) == ("ModelGated", "hf_token")
    client.hub.gated.add(REPOSITORY)
    client.hub.token = "hf_right"
    client.home.mkdir(exist_ok=True)
    (client.home / "token").write_text("hf_right")
    assert "model.safetensors" in names(client.locate(token=True)["path"])


def test_no_network_and_an_empty_cache_say_what_to_check(client: Client) -> None:
    answer = client.locate(offline=True)
    assert answer["code"] == "NoNetwork"
    assert "HF_HUB_OFFLINE is set" in answer["message"]
    client.hub.url = "http://127.0.0.1:9"
    answer = client.locate()
    assert answer["code"] == "NoNetwork"
    assert "the hub did not answer" in answer["message"]
    assert "proxy" in answer["hint"]


def test_a_download_that_cannot_fit_does_not_begin(client: Client) -> None:
    client.hub.claimed_sizes["model.safetensors"] = 10**18
    answer = client.locate()
    assert (answer["code"], answer["argument"]) == ("NoSpace", "download_dir")
    assert "needs 1000000000.00 GB" in answer["message"]
    assert f"GET /{REPOSITORY}/resolve/{COMMIT}/model.safetensors" not in client.hub.requests


def test_a_disk_that_becomes_full_is_named_as_such() -> None:
    failure = RuntimeError("the transfer failed")
    failure.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert Repository(REPOSITORY, None, {}, None).explain(failure).code == "NoSpace"


def test_a_download_that_breaks_off_can_be_continued(client: Client) -> None:
    client.hub.broken_after = 5
    answer = client.locate()
    assert answer["code"] == "Interrupted"
    assert "it continues where it stopped" in answer["hint"]
    client.hub.broken_after = None
    assert "model.safetensors" in names(client.locate()["path"])


@pytest.mark.parametrize(
    "model",
    ["./models/x", "/no/such/model", "../x", "~/x", "models/", "model.gguf", "sub/model.gguf", "a/b/c"],
)
def test_a_mistyped_path_is_not_asked_of_the_hub(model: str) -> None:
    with pytest.raises(LoadError, match=f"There is no (file|folder) {model}") as raised:
        locate(model)
    assert raised.value.code == "ModelNotFound"


def test_a_mistyped_folder_below_an_existing_one_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    with pytest.raises(LoadError, match="There is no folder models/llamma"):
        locate("models/llamma")


def test_an_existing_folder_is_returned_as_it_is(tmp_path: Path) -> None:
    assert locate(str(tmp_path)) == tmp_path

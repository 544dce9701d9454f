"""`slipway fetch` against a real S3 server that checks signatures."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from e2e.ground.patience import scaled

from slipway.cli.main import main
from slipway.load.errors import LoadError
from slipway.service import bucket as bucket_module
from slipway.service import fetch as fetch_module
from slipway.service.bucket import Bucket
from slipway.service.fetch import fetch

pytestmark = pytest.mark.slow  # a server and a process for every case

PATIENCE = scaled(30)
SIGNED_FOR_IAM = (
    "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/iam/aws4_request, SignedHeaders=, Signature="
)
SIGNED_FOR_S3 = SIGNED_FOR_IAM.replace("/iam/", "/s3/")
WEIGHTS = bytes(range(256)) * (3 << 12)  # 3 MiB


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come to be within {PATIENCE} s"
        time.sleep(0.01)


def dies_with_its_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@dataclass(frozen=True)
class Server:
    url: str
    log: Path
    keys: dict[str, str]

    def unsigned(self, method: str, path: str, content: bytes = b"", **options: object) -> httpx.Response:
        """A request while the server asks nobody who he is."""
        httpx.post(f"{self.url}/moto-api/reset-auth", content=b"1")
        answer = httpx.request(method, self.url + path, content=content, timeout=scaled(60), **options)  # type: ignore[arg-type]
        httpx.post(f"{self.url}/moto-api/reset-auth", content=b"0")
        return answer

    def put(self, key: str, content: bytes) -> None:
        answer = self.unsigned("PUT", f"/{quote(key)}", content, headers={"authorization": SIGNED_FOR_S3})
        answer.raise_for_status()

    def delete(self, key: str) -> None:
        self.unsigned("DELETE", f"/{quote(key)}", headers={"authorization": SIGNED_FOR_S3}).raise_for_status()

    def reads(self, key: str) -> int:
        """How often an object was asked for; the server writes a line for each request."""
        return len(re.findall(rf"GET /{re.escape(quote(key))} HTTP", self.log.read_text()))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [os.environ["CLIENTS_PYTHON"], "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            stdout=file,
            stderr=file,
            preexec_fn=dies_with_its_parent,
        )
    try:
        until(lambda: "Running on" in log.read_text() or process.poll() is not None, "the S3 server")
        found = re.search(r"Running on (http://[\d.:]+)", log.read_text())
        assert found, log.read_text()
        yield with_a_user(found[1], log)
    finally:
        process.kill()
        process.wait()


def with_a_user(url: str, log: Path) -> Server:
    server = Server(url, log, {})
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})

    def iam(action: str, **fields: str) -> str:
        form = {"Action": action, "Version": "2010-05-08", "UserName": "reader", **fields}
        answer = httpx.post(url, data=form, headers={"authorization": SIGNED_FOR_IAM})
        return answer.raise_for_status().text

    iam("CreateUser")
    iam("PutUserPolicy", PolicyName="read", PolicyDocument=policy)
    answer = iam("CreateAccessKey")
    for name, tag in (("AWS_ACCESS_KEY_ID", "AccessKeyId"), ("AWS_SECRET_ACCESS_KEY", "SecretAccessKey")):
        server.keys[name] = re.search(f"<{tag}>(.*?)</{tag}>", answer)[1]  # type: ignore[index]
    return server


@pytest.fixture
def models(server: Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A bucket of its own for the test, and the variables with which it is read."""
    name = "b" + hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    server.put(name, b"")
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    for variable, value in {**server.keys, "AWS_ENDPOINT_URL": server.url, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(bucket_module, "PATIENCE", timedelta(seconds=1))
    return name


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_folder_of_a_bucket_becomes_a_folder(server, models, tmp_path, capsys):
    files = {"config.json": b"{}", "sub/weights.bin": WEIGHTS, "an odd+%20näme.txt": b"1", "empty": b""}
    for name, content in files.items():
        server.put(f"{models}/org/name/{name}", content)
    server.put(f"{models}/org/name2/config.json", b"of another model")
    assert main(["fetch", f"s3://{models}/org/name", str(tmp_path / "cache" / "model")]) == 0
    assert tree(tmp_path / "cache" / "model") == files
    said = capsys.readouterr().err
    assert "Downloading weights: 3.1 MB of 3.1 MB (100 %)" in said
    assert f"s3://{models}/org/name is in {tmp_path}/cache/model: 4 files, 3.1 MB" in said


def test_one_object_becomes_one_file(server, models, tmp_path):
    server.put(f"{models}/model.gguf", WEIGHTS)
    assert main(["fetch", f"s3://{models}/model.gguf", str(tmp_path / "model.gguf")]) == 0
    assert (tmp_path / "model.gguf").read_bytes() == WEIGHTS


def test_all_but_weights_may_be_fetched_and_they_stay_where_they_are(server, models, tmp_path, capsys):
    files = {"config.json": b"{}", "model-1.safetensors": WEIGHTS, "tokenizer.json": b"1", "a.gguf": b"2"}
    for name, content in files.items():
        server.put(f"{models}/a/{name}", content)
    words = ["fetch", f"s3://{models}/a", str(tmp_path / "a")]
    assert main([*words, "--without-weights"]) == 0
    assert tree(tmp_path / "a") == {"config.json": b"{}", "tokenizer.json": b"1"}
    assert ": 2 files, 0.0 MB" in capsys.readouterr().err
    assert main(words) == 0
    assert main([*words, "--without-weights"]) == 0
    assert tree(tmp_path / "a") == files
    assert main(["fetch", f"s3://{models}/a/a.gguf", str(tmp_path / "b"), "--without-weights"]) == 0
    assert not (tmp_path / "b").exists()


def test_the_endpoint_may_be_an_argument(server, models, tmp_path, monkeypatch):
    server.put(f"{models}/a/config.json", b"{}")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    words = ["fetch", f"s3://{models}/a", str(tmp_path / "a"), "--endpoint", server.url]
    assert main(words) == 0


def test_the_older_names_of_keys_and_endpoint_are_read_where_the_others_are_unset(
    server, models, tmp_path, monkeypatch
):
    server.put(f"{models}/a/config.json", b"{}")
    older = {f"S3_{name}": os.environ[f"AWS_{name}"] for name in (*bucket_module.KEYS, "ENDPOINT_URL")}
    for name, value in older.items():
        monkeypatch.delenv(name.replace("S3_", "AWS_"))
        monkeypatch.setenv(name, value)
    assert main(["fetch", f"s3://{models}/a", str(tmp_path / "a")]) == 0
    monkeypatch.setenv("S3_SECRET_ACCESS_KEY", "wrong")
    assert main(["fetch", f"s3://{models}/a", str(tmp_path / "b")]) == 11
    monkeypatch.delenv("S3_SECRET_ACCESS_KEY")
    assert main(["fetch", f"s3://{models}/a", str(tmp_path / "b")]) == 11


def test_the_line_ends_of_keys_are_not_sent(server, models, tmp_path, monkeypatch):
    server.put(f"{models}/a/config.json", b"{}")
    for name in bucket_module.KEYS:
        monkeypatch.setenv(f"AWS_{name}", os.environ[f"AWS_{name}"] + "\n")
    assert main(["fetch", f"s3://{models}/a", str(tmp_path / "a")]) == 0


def test_what_is_there_is_not_fetched_again(server, models, tmp_path):
    server.put(f"{models}/a/config.json", b"{}")
    words = ["fetch", f"s3://{models}/a", str(tmp_path / "a")]
    assert main(words) == 0
    assert main(words) == 0
    assert server.reads(f"{models}/a/config.json") == 1


def test_a_newer_version_takes_the_place_of_an_older_one(server, models, tmp_path):
    for name, content in (("config.json", b"old"), ("gone.json", b"{}"), ("same.json", b"{}")):
        server.put(f"{models}/a/{name}", content)
    words = ["fetch", f"s3://{models}/a", str(tmp_path / "a")]
    assert main(words) == 0
    (tmp_path / "a" / "own.txt").write_text("of the user")
    server.put(f"{models}/a/config.json", b"new")
    server.delete(f"{models}/a/gone.json")
    assert main(words) == 0
    assert tree(tmp_path / "a") == {"config.json": b"new", "same.json": b"{}", "own.txt": b"of the user"}
    assert server.reads(f"{models}/a/same.json") == 1


def test_an_interrupted_fetch_continues_where_it_stopped(server, models, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_module, "CHUNK", 1 << 20)
    server.put(f"{models}/weights.bin", WEIGHTS)
    starts: list[int] = []

    class Flaky(Bucket):
        def read(self, entry, start, end):
            starts.append(start)
            if len(starts) == 2:
                raise self._interrupted("the test wants it")
            return super().read(entry, start, end)

    target = tmp_path / "weights.bin"
    with pytest.raises(LoadError, match=r"the test wants it\. Start again"):
        fetch(Flaky(f"s3://{models}/weights.bin"), target, lambda *_: None)
    assert not target.exists()
    fetch(Flaky(f"s3://{models}/weights.bin"), target, lambda *_: None)
    assert target.read_bytes() == WEIGHTS
    assert starts == [0, 1 << 20, 1 << 20, 2 << 20]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".weights.bin.fetched.json",
        ".weights.bin.lock",
        "weights.bin",
    ]


def test_files_that_are_complete_are_kept_where_another_fails(server, models, tmp_path):
    for name in ("a.bin", "b.bin"):
        server.put(f"{models}/m/{name}", WEIGHTS)
    read: list[str] = []

    class Flaky(Bucket):
        def read(self, entry, start, end):
            if entry.name == "b.bin" and "b.bin" not in read:
                until((tmp_path / "m" / "a.bin").exists, "the other file")
                read.append(entry.name)
                raise self._interrupted("the test wants it")
            read.append(entry.name)
            return super().read(entry, start, end)

    for _ in range(2):
        with suppress(LoadError):
            fetch(Flaky(f"s3://{models}/m"), tmp_path / "m", lambda *_: None)
    assert read == ["a.bin", "b.bin", "b.bin"]
    assert tree(tmp_path / "m") == {"a.bin": WEIGHTS, "b.bin": WEIGHTS}


def test_a_killed_fetch_leaves_no_half_file_and_the_next_completes_it(server, models, tmp_path):
    content = WEIGHTS * 32
    server.put(f"{models}/weights.bin", content)
    target, parts = tmp_path / "weights.bin", tmp_path / ".weights.bin.part"
    words = [sys.executable, "-m", "slipway", "fetch", f"s3://{models}/weights.bin", str(target)]
    killed = subprocess.Popen(words, preexec_fn=dies_with_its_parent, stderr=subprocess.DEVNULL)
    until(lambda: any(path.stat().st_size for path in parts.glob("*")), "the first chunk")
    killed.kill()
    killed.wait()
    assert not target.exists() or target.read_bytes() == content
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE)
    assert target.read_bytes() == content


def test_two_fetches_of_one_target_fetch_it_once(server, models, tmp_path):
    server.put(f"{models}/weights.bin", WEIGHTS)
    words = [sys.executable, "-m", "slipway", "fetch", f"s3://{models}/weights.bin", str(tmp_path / "w")]
    both = [subprocess.Popen(words, preexec_fn=dies_with_its_parent) for _ in range(2)]
    assert [one.wait(PATIENCE) for one in both] == [0, 0]
    assert (tmp_path / "w").read_bytes() == WEIGHTS
    assert server.reads(f"{models}/weights.bin") == 1


def test_an_object_that_is_replaced_meanwhile_is_not_mixed(server, models):
    server.put(f"{models}/weights.bin", b"first")
    source = Bucket(f"s3://{models}/weights.bin")
    (entry,) = source.entries()
    server.put(f"{models}/weights.bin", b"other")
    with pytest.raises(LoadError, match="an object was replaced meanwhile") as failure:
        source.read(entry, 0, 5)
    assert failure.value.code == "Interrupted"


@pytest.mark.parametrize(
    ("source", "environ", "code", "words"),
    [
        ("s3://{models}/absent", {}, 10, "There is nothing at s3://{models}/absent"),
        ("s3://{models}", {}, 10, "There is nothing at s3://{models}"),
        ("s3://no-such-bucket/a", {}, 10, "There is nothing at s3://no-such-bucket/a"),
        ("s3://{models}/a", {"AWS_ACCESS_KEY_ID": "AKIAOTHER"}, 11, "does not let these credentials"),
        ("s3://{models}/a", {"AWS_SECRET_ACCESS_KEY": "wrong"}, 11, "does not let these credentials"),
        ("s3://{models}/a", {"AWS_ACCESS_KEY_ID": "A\nB"}, 11, "AWS_ACCESS_KEY_ID cannot be sent in an HTTP"),
        ("s3://{models}/a", {"AWS_SESSION_TOKEN": "é"}, 11, "its character 1 is not ASCII"),
        ("s3://{models}/a", {"AWS_ACCESS_KEY_ID": ""}, 11, "only AWS_SECRET_ACCESS_KEY is set"),
        ("s3://{models}/a", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, 12, "cannot be read"),
        ("s3://{models}/a", {"AWS_ENDPOINT_URL": "http://a.invalid"}, 12, "cannot be read"),
        ("s3://{models}/a", {"AWS_CA_BUNDLE": "/absent.pem"}, 12, "AWS_CA_BUNDLE names /absent.pem"),
        ("https://{models}/a", {}, 2, "is not a URI such as s3://bucket/folder"),
        ("s3://", {}, 2, "is not a URI such as s3://bucket/folder"),
    ],
)
def test_each_failure_has_its_code_and_its_cause_in_the_termination_log(
    models, tmp_path, monkeypatch, capsys, source, environ, code, words
):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    log = tmp_path / "termination"
    monkeypatch.setenv("SLIPWAY_TERMINATION_LOG", str(log))
    assert main(["fetch", source.format(models=models), str(tmp_path / "model")]) == code
    cause = json.loads(log.read_bytes())
    assert cause["code"] == code
    assert words.format(models=models) in cause["message"]
    assert words.format(models=models) in capsys.readouterr().err


def test_a_run_whose_model_cannot_be_fetched_ends_as_the_fetch_does(models, tmp_path):
    path = tmp_path / "service.yaml"
    path.write_text(
        "apiVersion: slipway.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: demo}\n"
        f"spec: {{model: {{s3: {{uri: 's3://{models}/absent'}}}}}}\n"
    )
    words = [sys.executable, "-m", "slipway", "run", "-f", str(path)]
    environ = {**os.environ, "SLIPWAY_CACHE": str(tmp_path / "cache")}
    ran = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 10
    assert (
        f"slipway run: slipway fetch s3://{models}/absent {tmp_path}/cache/s3/{models}/absent" in ran.stderr
    )
    assert "There is nothing at" in ran.stderr


def test_a_model_that_does_not_fit_is_refused_before_it_is_fetched(
    server, models, tmp_path, monkeypatch, capsys
):
    server.put(f"{models}/weights.bin", WEIGHTS)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 10**6))
    assert main(["fetch", f"s3://{models}/weights.bin", str(tmp_path / "w")]) == 13
    assert (
        "lacks 0.00 GB of the model, and 0.00 GB are free there. Enlarge the volume"
        in capsys.readouterr().err
    )
    assert server.reads(f"{models}/weights.bin") == 0


def test_a_target_that_cannot_be_written_is_named(server, models, tmp_path, capsys):
    server.put(f"{models}/a/config.json", b"{}")
    (tmp_path / "file").write_text("no folder")
    assert main(["fetch", f"s3://{models}/a", str(tmp_path / "file" / "model")]) == 2
    assert f"{tmp_path}/file cannot be written" in capsys.readouterr().err


def test_without_its_client_it_says_what_to_install(models, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert main(["fetch", f"s3://{models}/a", str(tmp_path / "a")]) == 19
    said = capsys.readouterr().err
    assert "obstore" in said
    assert "pip install '.[cpu]'" in said


def test_a_name_that_leads_out_of_the_folder_is_not_written(server, models, tmp_path, capsys):
    server.unsigned("PUT", f"/{models}/a/%2E%2E/%2E%2E/evil", b"x", headers={"authorization": SIGNED_FOR_S3})
    assert main(["fetch", f"s3://{models}/a", str(tmp_path / "one" / "two")]) == 16
    assert "The object 'a/../../evil'" in capsys.readouterr().err
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("name", ["../evil", "sub/../../evil", "nul\0"])
def test_no_client_is_trusted_to_refuse_such_a_name(models, name):
    with pytest.raises(LoadError, match="leads out of its folder"):
        Bucket(f"s3://{models}/a")._entry({"path": f"a/{name}", "size": 1, "e_tag": None})

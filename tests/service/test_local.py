"""A document started on this machine, without a cluster."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from slipway.service import InvalidService, from_mapping, load, local_start
from slipway.service.engine import fetched_to
from slipway.service.spec import S3Model

EXAMPLES = Path(__file__).parents[2] / "examples"


def document(**spec: object) -> dict:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {"model": {"hub": {"id": "org/name"}}, **spec},
    }


def test_the_same_document_runs_here_with_the_same_engine_arguments():
    engine = {"maxModelLen": 512, "enforceEager": True}
    spec = from_mapping(document(engine=engine, service={"port": 9000}))
    start = local_start(spec, {"PATH": "/bin"})
    assert (start.before, start.demo) == ([], False)
    assert start.argv[:6] == ["serve", "org/name", "--host", "127.0.0.1", "--port", "9000"]
    assert set(start.argv[6:]) == {"--max-model-len", "512", "--enforce-eager"}
    assert start.environ == {"PATH": "/bin"}


def test_secrets_come_from_the_variables_of_this_machine():
    spec = from_mapping(document(secrets={"hubToken": {"name": "hub", "key": "token"}}))
    with pytest.raises(InvalidService, match="Set the variable: export HF_TOKEN=") as failure:
        local_start(spec, {})
    assert "the key token of hub" in str(failure.value)
    assert local_start(spec, {"HF_TOKEN": "hf_x"}).environ["HF_TOKEN"] == "hf_x"


def test_a_field_of_the_pod_comes_from_the_variables_of_this_machine():
    spec = from_mapping(document(env=[{"name": "POD_NAME", "field": "metadata.name"}]))
    with pytest.raises(InvalidService, match=r"metadata\.name of a pod, .* export POD_NAME="):
        local_start(spec, {})
    assert local_start(spec, {"POD_NAME": "here"}).environ["POD_NAME"] == "here"


def test_a_model_on_a_volume_needs_a_folder_of_this_machine():
    spec = from_mapping(document(model={"pvc": {"name": "claim"}}))
    with pytest.raises(InvalidService, match="with --model"):
        local_start(spec, {})
    assert local_start(spec, {}, model="/here").argv[1] == "/here"


def test_a_bucket_is_fetched_before_the_server_starts():
    model = {"s3": {"uri": "s3://b/x/", "endpoint": "http://store", "secret": "keys"}}
    start = local_start(from_mapping(document(model=model)), {"SLIPWAY_CACHE": "/here"})
    assert start.before == ["fetch", "s3://b/x/", "/here/s3@store/b/x", "--endpoint", "http://store"]
    assert start.argv[1] == "/here/s3@store/b/x"
    assert "spec.model.s3.secret is keys of a cluster" in " ".join(start.warnings)


@pytest.mark.parametrize(
    ("endpoint", "place"),
    [
        (None, "s3/models/llama"),
        ("https://prod.example", "s3@prod.example/models/llama"),
        ("https://user:secret@Staging.example:9000/x", "s3@staging.example_9000/models/llama"),
    ],
)
def test_buckets_of_one_name_in_different_stores_have_folders_of_their_own(
    endpoint: str | None, place: str
) -> None:
    source = S3Model(uri="s3://models/llama/", endpoint=endpoint)
    assert str(fetched_to(source, PurePosixPath("/cache"))) == f"/cache/{place}"


def test_the_demo_models_image_is_what_slipway_demo_fetches():
    spec = load((EXAMPLES / "demo.yaml").read_text())
    start = local_start(spec, {"SLIPWAY_CACHE": "/here"})
    assert start.demo
    assert start.argv[1] == "/here/demo/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert not local_start(spec, {}, model="/own").demo
    other = from_mapping(document(model={"image": {"reference": "registry/other:1"}}))
    with pytest.raises(InvalidService, match="with --model"):
        local_start(other, {})


def test_a_volume_s_folder_must_exist_on_this_machine(tmp_path):
    def mounted(folder: Path) -> dict:
        return {"name": "v", "mountPath": str(folder), "emptyDir": {}}

    folder = tmp_path / "absent"
    with pytest.raises(InvalidService, match=r"spec\.volumes: .* holds v of a cluster"):
        local_start(from_mapping(document(volumes=[mounted(folder)])), {})
    folder.mkdir()
    unmounted = {"name": "w", "emptyDir": {}}
    assert local_start(from_mapping(document(volumes=[mounted(folder), unmounted])), {}).argv


def test_a_path_must_exist_on_this_machine(tmp_path):
    spec = from_mapping(document(model={"path": str(tmp_path)}))
    assert local_start(spec, {}).argv[1] == str(tmp_path)
    absent = from_mapping(document(model={"path": str(tmp_path / "absent")}))
    with pytest.raises(InvalidService, match="does not exist on this machine"):
        local_start(absent, {})


def test_what_the_cluster_does_and_this_machine_does_not_is_said():
    containers = {name: [{"name": name.lower(), "image": "a"}] for name in ("initContainers", "sidecars")}
    spec = from_mapping(
        document(replicas=2, resources={"cpu": 1}, secrets={"tls": {"name": "certificate"}}, **containers)
    )
    start = local_start(spec, {})
    assert len(start.warnings) == 4
    assert "stay in the cluster: initcontainers, sidecars." in " ".join(start.warnings)
    assert "--ssl-certfile" not in start.argv

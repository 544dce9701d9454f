"""Where each word and variable of the server comes from: said by what renders them, and by nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from service_specs import SPECS
from slipway.service import Facts, Policy, ServiceSpec, from_mapping
from slipway.service.explain import Explained, Explanation, explain, explain_unset
from slipway.service.origin import Source
from slipway.service.pod import for_kubelet, pod_template
from slipway.service.profile import ServingProfile, read_profile

HERE = Path(__file__).parent
GOLDEN = {path.stem for path in (HERE / "golden").glob("*.yaml")} - {"devices"}
DOCUMENTS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in (*sorted((HERE.parents[1] / "examples").glob("*.yaml")), *sorted(HERE.glob("*.yaml")))
}
DEVICES = yaml.safe_load((HERE / "golden" / "devices.yaml").read_text())


def document(**spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {"model": {"hub": {"id": "org/name"}}, **spec},
    }


def spec_of(written: dict[str, Any]) -> ServiceSpec:
    return from_mapping(written, Policy(allow_code=True))


def explained(**spec: object) -> Explanation:
    return explain(spec_of(document(**spec)))


def sources(found: list[Explained]) -> dict[str, str]:
    return {one.name: f"{one.origin.source} {one.origin.field}".strip() for one in found}


def has_all_of_the_container(spec: ServiceSpec, profile: ServingProfile | None = None) -> None:
    made = explain(spec, profile)
    server = pod_template(spec, Facts(profile=profile))["spec"]["containers"][0]
    assert [for_kubelet(word) for one in made.arguments for word in one.value] == server["args"]
    for one, entry in zip(made.environment, server["env"], strict=True):
        kept = {"value": for_kubelet(one.value["value"])} if one.value.get("value") else {}
        assert {key: item for key, item in one.value.items() if key != "value"} | kept == entry


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_word_and_variable_of_the_container_is_listed_in_its_order(name):
    has_all_of_the_container(spec_of(DOCUMENTS[name]))


@pytest.mark.parametrize("name", DEVICES)
def test_so_it_is_with_every_kind_of_device(name):
    has_all_of_the_container(spec_of(document(**DEVICES[name]["spec"])))


def test_every_golden_file_has_its_document_here():
    assert DOCUMENTS.keys() >= GOLDEN


@settings(max_examples=100)
@given(SPECS)
def test_so_it_is_with_documents_that_nobody_wrote(wanted):
    has_all_of_the_container(spec_of({**document(), "spec": wanted}))


def test_what_stands_in_the_document_is_told_from_what_follows_and_what_is_fixed():
    made = explained(
        model={"image": {"reference": "r/m", "path": "x"}, "servedNames": ["y"]},
        engine={"maxModelLen": 512},
        devices={"vendor": "nvidia"},
        secrets={"apiKey": {"name": "a", "key": "k"}},
        env=[{"name": "TZ", "value": "UTC"}],
        rollout={"drainSeconds": 90},
    )
    assert sources(made.arguments) == {
        "": "operator",
        "model": "derived spec.model.image",
        "host": "operator",
        "port": "operator",
        "served_model_name": "document spec.model.servedNames",
        "max_model_len": "document spec.engine.maxModelLen",
        "drain_timeout": "document spec.rollout.drainSeconds",
        "device": "derived spec.devices.vendor",
    }
    assert sources(made.environment) == {
        "HOME": "operator",
        "HF_HOME": "operator",
        "SLIPWAY_CACHE": "operator",
        "HF_HUB_OFFLINE": "derived spec.model",
        "TZ": "document spec.env[TZ]",
        "VLLM_API_KEY": "document spec.secrets.apiKey",
    }


def test_what_the_document_overrides_is_the_documents():
    made = explained(env=[{"name": "HOME", "value": "/tmp"}])
    assert sources(made.environment)["HOME"] == "document spec.env[HOME]"


def test_what_only_the_profile_says_is_the_profiles():
    env = [{"name": "TZ", "value": "UTC"}, {"name": "NCCL_DEBUG", "value": "WARN"}]
    profile = read_profile("shared", {"devices": {"vendor": "nvidia"}, "env": env})
    spec = spec_of(document(profile="shared", env=[{"name": "TZ", "value": "CET"}]))
    has_all_of_the_container(spec, profile)
    made = explain(spec, profile)
    assert sources(made.environment)["NCCL_DEBUG"] == "profile spec.env[NCCL_DEBUG]"
    assert sources(made.environment)["TZ"] == "document spec.env[TZ]"
    assert sources(made.arguments)["device"] == "profile spec.devices.vendor"
    own = spec_of(document(profile="shared", devices={"vendor": "nvidia"}))
    assert sources(explain(own, profile).arguments)["device"] == "derived spec.devices.vendor"


@pytest.mark.parametrize(
    ("engine", "part", "status"),
    [
        ({"maxNumSeqs": 4}, "SchedulerConfig", "implemented"),
        ({"useV2BlockManager": True}, "EngineConfig", "accepted with a warning"),
    ],
)
def test_an_argument_has_its_group_for_reader_and_says_what_becomes_of_it(engine, part, status):
    reader = explained(engine=engine).arguments[-1].reader
    assert (reader.part, reader.status) == (part, status)
    assert bool(reader.reason) == (status != "implemented")


def test_a_variable_that_stands_for_an_argument_is_read_where_that_is():
    env = [{"name": name, "value": "1"} for name in ("VLLM_CPU_KVCACHE_SPACE", "NCCL_DEBUG")]
    made = explained(env=env, secrets={"hubToken": {"name": "a", "key": "k"}})
    readers = {one.name: one.reader.part for one in made.environment}
    assert readers["HF_TOKEN"] == "ModelConfig, as --hf-token"
    assert readers["NCCL_DEBUG"] == "libraries and the system"
    assert readers["VLLM_CPU_KVCACHE_SPACE"] not in ("", "libraries and the system")


def test_what_is_unset_has_its_default_or_what_follows_from_the_rest():
    secrets = {"apiKey": {"name": "a", "key": "k"}}
    spec = spec_of(document(engine={"maxModelLen": 512, "swapSpace": 0}, secrets=secrets))
    unset, given_names = explain_unset(spec), set(sources(explain(spec).arguments))
    arguments = sources(unset.arguments)
    assert arguments["max_num_seqs"] == "default"
    assert arguments["api_key"] == "derived spec.secrets.apiKey"
    assert not given_names & arguments.keys()
    assert next(one.value for one in unset.arguments if one.name == "max_num_seqs") is not None
    assert {one.origin.source for one in unset.environment} == {Source.DEFAULT}
    assert "HOME" not in sources(unset.environment)
    assert "VLLM_LOGGING_LEVEL" in sources(unset.environment)

"""What a document becomes without a cluster: a line of a shell, a unit of systemd, a Compose file."""

from __future__ import annotations

import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway.exits import CATALOGUE
from slipway.service import (
    Facts,
    InvalidService,
    ServiceSpec,
    compose_file,
    from_mapping,
    podman_command,
    quadlet_unit,
    render,
)
from slipway.service.pod import as_given

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
FACTS = Facts(cpu_image="slipway/runtime-cpu:1", cuda_image="slipway/runtime-cuda:1")
NAMES = ("demo", "gpu", "bucket")
TARGETS = {
    "podman": lambda spec, facts: podman_command(spec, facts) + "\n",
    "container": quadlet_unit,
    "compose": compose_file,
}
EACH = pytest.mark.parametrize("to_text", [podman_command, quadlet_unit, compose_file])


@cache
def example(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    return document


def changed(name: str, **fields: object) -> ServiceSpec:
    """An example with top-level fields of its spec replaced."""
    document = example(name)
    return from_mapping({**document, "spec": {**document["spec"], **fields}})


def shell_words(spec: ServiceSpec) -> list[str]:
    return shlex.split(podman_command(spec, FACTS).replace("\\\n", " "))


def lines_of(spec: ServiceSpec, key: str) -> list[str]:
    lines = quadlet_unit(spec, FACTS).splitlines()
    return [line.removeprefix(f"{key}=") for line in lines if line.startswith(f"{key}=")]


@pytest.mark.parametrize("suffix", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_that_of_the_golden_file(name, suffix):
    golden = (HERE / "podman" / f"{name}.{suffix}").read_text()
    assert TARGETS[suffix](changed(name), FACTS) == golden


@pytest.mark.parametrize("name", NAMES)
def test_the_container_has_the_arguments_and_variables_of_the_pod(name):
    spec = changed(name)
    pod = render(spec, FACTS)[0]["spec"]["template"]["spec"]
    server, words = pod["containers"][-1], shell_words(spec)
    arguments = [as_given(word) for word in server["args"]]
    assert words[-len(arguments) :] == arguments
    assert words[-len(arguments) - 1] == server["image"]
    for entry in server["env"]:
        value = entry.get("value")
        assert (entry["name"] if value is None else f"{entry['name']}={as_given(value)}") in words


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("demo", {"files": [{"mountPath": "/etc/x", "configMap": "x"}]}, "spec.files"),
        ("demo", {"files": [{"mountPath": "/etc/x", "secret": "x"}]}, "spec.files"),
        ("demo", {"secrets": {"tls": {"name": "x"}}}, "spec.secrets.tls"),
        ("demo", {"env": [{"name": "X", "configMap": {"name": "x", "key": "y"}}]}, "spec.env"),
        ("demo", {"env": [{"name": "X", "field": "metadata.name"}]}, "spec.env"),
        ("demo", {"volumes": [{"name": "v", "mountPath": "/v", "csi": {"driver": "d"}}]}, "CSI driver d"),
        (
            "demo",
            {"volumes": [{"name": "v", "mountPath": "/v", "subPath": "a", "pvc": {"name": "c"}}]},
            "mounts all of v",
        ),
        (
            "demo",
            {"initContainers": [{"name": "c", "image": "a"}]},
            r"spec\.initContainers\[0\]: \w+ starts",
        ),
        ("demo", {"sidecars": [{"name": "c", "image": "a"}]}, r"spec\.sidecars\[0\]: \w+ starts"),
        ("gpu", {"devices": {"claims": ["x"]}}, "spec.devices.claims"),
        ("gpu", {"devices": {"vendor": "nvidia", "profile": "1g.10gb"}}, "spec.devices"),
        ("demo", {"resources": {"memory": "1500m", "sharedMemory": "1Mi"}}, "Use Mi or Gi"),
    ],
)
@EACH
def test_what_only_a_cluster_has_is_refused_at_its_field(to_text, name, fields, field):
    with pytest.raises(InvalidService, match=field):
        to_text(changed(name, **fields), FACTS)


@pytest.mark.parametrize(
    ("quantity", "option"),
    [("8Gi", "8g"), ("512Mi", "512m"), ("2G", "2000000000b"), ("1.5k", "1500b"), ("1Ti", "1099511627776b")],
)
def test_memory_is_written_in_podmans_units(quantity, option):
    words = shell_words(changed("demo", resources={"sharedMemory": quantity}))
    assert words[words.index("--shm-size") + 1] == option


@pytest.mark.parametrize(("quantity", "option"), [("1500m", "1.5"), ("2", "2"), ("0.5", "0.5")])
def test_cores_are_written_as_numbers(quantity, option):
    words = shell_words(changed("demo", resources={"cpu": quantity}))
    assert words[words.index("--cpus") + 1] == option


def test_the_line_takes_secrets_from_the_shell_by_name():
    words = shell_words(changed("gpu"))
    assert "HF_TOKEN" in words
    assert not [word for word in words if word.startswith("HF_TOKEN=")]


def test_the_unit_takes_secrets_from_podman_and_says_how_to_make_them():
    spec = changed("gpu")
    assert lines_of(spec, "Secret") == [
        "huggingface-token,type=env,target=HF_TOKEN",
        "llama-key-key,type=env,target=VLLM_API_KEY",
    ]
    assert "#   podman secret create huggingface-token FILE" in quadlet_unit(spec, FACTS)


def test_a_model_of_a_bucket_is_fetched_before_the_server_starts():
    spec = changed("bucket")
    fetch, serve = podman_command(spec, FACTS).split(" && \\\n")
    assert fetch.startswith("podman run --rm")
    assert "--publish" not in fetch
    assert " fetch s3://" in fetch.replace("\n", " ")
    assert "AWS_SECRET_ACCESS_KEY" in fetch
    assert "AWS_SECRET_ACCESS_KEY" not in serve
    (before,) = lines_of(spec, "ExecStartPre")
    assert before.startswith("/usr/bin/podman run --rm ")
    assert "AWS_SESSION_TOKEN" not in before  # podman refuses a secret that is not there


def test_claims_and_empty_folders_are_podman_s_own():
    volumes = [
        {"name": "a", "mountPath": "/a", "pvc": {"name": "shared"}},
        {"name": "b", "mountPath": "/b", "pvc": {"name": "shared", "readOnly": True}},
        {"name": "c", "mountPath": "/c", "emptyDir": {}},
        {"name": "d", "mountPath": "/d", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "e", "emptyDir": {}},
    ]
    spec = changed("demo", volumes=volumes)
    assert lines_of(spec, "Volume")[-2:] == ["shared:/a:U", "shared:/b:ro"]
    assert lines_of(spec, "Tmpfs")[-2:] == ["/c", "/d:size=1g"]


def test_groups_contexts_and_names_of_hosts_are_those_of_the_pod():
    security = {"supplementalGroups": [2000, 2001], "seLinux": {"level": "s0:c1,c2", "type": "container_t"}}
    scheduling = {
        "hostAliases": [{"ip": "2001:db8::7", "hostnames": ["store", "store.example.org"]}],
        "dnsConfig": {
            "nameservers": ["10.0.0.53"],
            "searches": ["example.org"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
        },
    }
    words = shell_words(changed("demo", security=security, scheduling=scheduling))
    options = list(pairwise(words))
    for option in (
        ("--group-add", "2000"),
        ("--group-add", "2001"),
        ("--security-opt", "label=level:s0:c1,c2"),
        ("--security-opt", "label=type:container_t"),
        ("--add-host", "store:2001:db8::7"),
        ("--add-host", "store.example.org:2001:db8::7"),
        ("--dns", "10.0.0.53"),
        ("--dns-search", "example.org"),
        ("--dns-option", "ndots:2"),
        ("--dns-option", "edns0"),
    ):
        assert option in options


def test_every_device_is_named_by_its_vendors_kind():
    pair = changed("gpu", engine={"tensorParallelSize": 2})
    assert lines_of(pair, "AddDevice") == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]


def test_the_unit_gives_a_drain_its_time_and_restarts_only_where_that_may_help():
    spec = changed("demo", rollout={"drainSeconds": 300})
    assert lines_of(spec, "TimeoutStopSec") == [str(5 + 300 + 10 + 10)]
    (final,) = lines_of(spec, "RestartPreventExitStatus")
    assert set(map(int, final.split())) == {code.code for code in CATALOGUE if not code.retry}


def test_what_systemd_would_read_as_its_own_is_escaped():
    spec = changed("demo", env=[{"name": "X", "value": 'a "b" 100% $HOME \\ \n;'}])
    assert r'"X=a \"b\" 100%% $$HOME \\ \n;"' in lines_of(spec, "Environment")


def test_no_value_can_begin_a_line_of_the_unit():
    spec = changed("demo", env=[{"name": "X", "value": "1\n[Service]\nExecStartPre=/bin/false"}])
    assert "\nExecStartPre" not in quadlet_unit(spec, FACTS)
    odd = changed("demo", model={"image": {"reference": "a/b:1", "path": "x\n[Service]"}})
    assert quadlet_unit(odd, FACTS).count("\n[Service]") == 1

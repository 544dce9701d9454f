"""What a Compose file says of a service, beside what all targets without a cluster share."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from test_podman import FACTS, changed

from service_specs import SPECS, document_of
from slipway.service import InvalidService, ServiceSpec, compose_file, from_mapping
from slipway.service.pod import as_given, pod_template

Object = dict[str, Any]
STORED = {"shm_size", "tmpfs", "volumes"}


def project_of(spec: ServiceSpec) -> Object:
    project: Object = yaml.load(compose_file(spec, FACTS), yaml.CSafeLoader)
    return project


def server_of(spec: ServiceSpec) -> Object:
    server: Object = project_of(spec)["services"][spec.name]
    return server


def as_compose_reads(text: str) -> str:
    """Compose puts variables in where one dollar is, and reads two as one."""
    assert "$" not in text.replace("$$", ""), text
    return text.replace("$$", "$")


def is_the_pod(spec: ServiceSpec) -> None:
    """Each container is a service with its image, arguments, variables and places of its mounts."""
    pod = pod_template(spec, FACTS)["spec"]
    services = project_of(spec)["services"]
    containers = [*pod.get("initContainers", []), *pod["containers"]]
    for container, service in zip(containers, services.values(), strict=True):
        assert service["image"] == container["image"]
        assert [as_compose_reads(word) for word in service["command"]] == list(
            map(as_given, container["args"])
        )
        assert list(service["environment"]) == [entry["name"] for entry in container["env"]]
        for entry in container["env"]:
            value = service["environment"][entry["name"]]
            if "valueFrom" not in entry:
                assert as_compose_reads(value) == as_given(entry.get("value", ""))
            elif entry["valueFrom"]["secretKeyRef"].get("optional"):
                assert value is None
            else:
                assert value.startswith(f"${{{entry['name']}:?")
        volumes = service.get("volumes", [])
        places = [one["target"] if isinstance(one, dict) else one.split(":")[1] for one in volumes]
        places += service.get("tmpfs", []) + (["/dev/shm"] if "shm_size" in service else [])
        assert sorted(places) == sorted(mount["mountPath"] for mount in container["volumeMounts"])


@pytest.mark.parametrize("name", ["demo", "gpu", "bucket", "hub"])
def test_every_container_of_the_pod_is_a_service_with_all_that_it_has(name):
    is_the_pod(changed(name))


@settings(max_examples=100)
@given(SPECS)
def test_so_it_is_with_documents_that_nobody_wrote_unless_they_need_a_cluster(wanted):
    spec = from_mapping(document_of(wanted))
    of_cluster = any(volume.projected for volume in spec.volumes)
    if spec.secrets.tls or spec.devices.claims or spec.devices.profile or spec.sidecars or of_cluster:
        with pytest.raises(InvalidService, match=r"spec\.(secrets\.tls|devices|sidecars|volumes)"):
            compose_file(spec, FACTS)
    else:
        is_the_pod(spec)


def test_dollars_reach_the_server_as_they_are_written():
    spec = changed(
        "demo",
        engine={"chatTemplate": "{{ '${HOME} $$ $(x)' }}"},
        env=[{"name": "OWN", "value": "a$b$$c"}],
    )
    is_the_pod(spec)
    assert server_of(spec)["environment"]["OWN"] == "a$$b$$$$c"


def test_a_service_without_a_cluster_is_as_restricted_as_its_pod():
    server = server_of(changed("demo"))
    assert server["cap_drop"] == ["ALL"]
    assert server["security_opt"] == ["no-new-privileges:true"]
    assert (server["read_only"], server["user"]) == (True, "1001:0")
    assert server["ports"] == ["127.0.0.1:8000:8000"]


def test_groups_contexts_and_names_of_hosts_are_those_of_the_pod():
    security = {"supplementalGroups": [2000], "seLinux": {"level": "s0:c1,c2"}}
    options = [{"name": "ndots", "value": "2"}, {"name": "edns0"}]
    scheduling = {
        "hostAliases": [{"ip": "2001:db8::7", "hostnames": ["store"]}],
        "dnsConfig": {"nameservers": ["10.0.0.53"], "searches": ["example.org"], "options": options},
    }
    volumes = [{"name": "d", "mountPath": "/d", "emptyDir": {"sizeLimit": "1Gi"}}]
    server = server_of(changed("demo", security=security, scheduling=scheduling, volumes=volumes))
    assert server["group_add"] == ["2000"]
    assert server["security_opt"] == ["no-new-privileges:true", "label:level:s0:c1,c2"]
    assert server["extra_hosts"] == ["store=2001:db8::7"]
    assert (server["dns"], server["dns_search"]) == (["10.0.0.53"], ["example.org"])
    assert server["dns_opt"] == ["ndots:2", "edns0"]
    assert "/d:size=1g" in server["tmpfs"]


def test_a_drain_has_its_time():
    spec = changed("demo", rollout={"drainSeconds": 300})
    assert server_of(spec)["stop_grace_period"] == f"{5 + 300 + 10}s"


def test_healthy_is_where_the_pod_would_be_ready():
    health = server_of(changed("demo"))["healthcheck"]
    assert health["test"][:3] == ["CMD", "python", "-c"]
    assert "8000" in health["test"][3]
    assert "'/ready'" in health["test"][3]


@pytest.mark.parametrize(("count", "ids"), [(1, ["0"]), (2, ["0", "1"])])
def test_nvidia_devices_are_reserved_and_those_of_amd_named(count, ids):
    size = {"tensorParallelSize": count}
    nvidia = server_of(changed("gpu", engine=size))
    (reserved,) = nvidia["deploy"]["resources"]["reservations"]["devices"]
    assert reserved == {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}
    amd = server_of(changed("gpu", engine=size, devices={"vendor": "amd"}, runtime={"image": "r/rocm"}))
    assert amd["devices"] == [f"amd.com/gpu={index}" for index in ids]
    assert "deploy" not in amd


def test_a_model_of_a_bucket_is_fetched_by_a_service_of_its_own_that_alone_has_the_keys():
    services = project_of(changed("bucket"))["services"]
    assert services["bucket"]["depends_on"] == {
        "bucket-fetch": {"condition": "service_completed_successfully"}
    }
    assert "AWS_SECRET_ACCESS_KEY" in services["bucket-fetch"]["environment"]
    assert "AWS_SECRET_ACCESS_KEY" not in services["bucket"]["environment"]
    assert "ports" not in services["bucket-fetch"]


def test_a_volume_of_a_model_must_be_there_and_a_cache_may_begin_empty():
    spec = changed("demo", model={"pvc": {"name": "models"}, "cache": {"pvc": "downloads"}})
    assert project_of(spec)["volumes"] == {
        "downloads": {"name": "downloads"},
        "models": {"name": "models", "external": True},
    }
    assert "models:/model:ro" in server_of(spec)["volumes"]


def test_the_heading_names_every_variable_that_the_shell_must_have():
    text = compose_file(changed("gpu"), FACTS)
    assert "#   export HF_TOKEN=…   # the key token of the Secret huggingface\n" in text


@given(st.text(max_size=10))
def test_no_value_breaks_out_of_its_place(text):
    spec = changed("demo", env=[{"name": "X", "value": text}])
    assert as_compose_reads(server_of(spec)["environment"]["X"]) == text

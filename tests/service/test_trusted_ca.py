"""Private certificate authorities, set once: what server and fetch find, and who decides."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.service import Facts, InvalidService, from_mapping, local_start, podman_command, render
from slipway.service.explain import explain
from slipway.service.intent import intent_hash
from slipway.service.profile import ServingProfile, check_profiled, read_profile
from slipway.service.spec import TrustedCa

Object = dict[str, Any]

FILE = "/etc/slipway/ca/ca.crt"
TRUSTING = {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"}
BUCKET: Object = {
    "s3": {"uri": "s3://m/llama", "endpoint": "https://minio.storage.svc:9000", "secret": "keys"}
}


def document(**spec: Any) -> Object:
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {"model": BUCKET, **spec},
    }


def pod_of(facts: Facts | None = None, **spec: Any) -> Object:
    template = render(from_mapping(document(**spec)), facts or Facts())[0]["spec"]["template"]
    pod: Object = template["spec"]
    return pod


def containers(pod: Object) -> list[Object]:
    (fetch,), (server,) = pod["initContainers"], pod["containers"]
    return [fetch, server]


def variables(container: Object) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def trusted(pod: Object) -> Object | None:
    """The ConfigMap behind the authorities."""
    found = [volume["configMap"] for volume in pod["volumes"] if volume["name"] == "files-ca"]
    return found[0] if found else None


def test_server_and_fetch_find_the_bundle_by_every_usual_variable():
    pod = pod_of(trustedCA={"configMap": "corporate", "key": "bundle.pem"})
    assert trusted(pod) == {"name": "corporate", "items": [{"key": "bundle.pem", "path": "ca.crt"}]}
    for container in containers(pod):
        assert {"name": "files-ca", "mountPath": "/etc/slipway/ca", "readOnly": True} in container[
            "volumeMounts"
        ]
        assert {name for name, value in variables(container).items() if value == FILE} == TRUSTING


def test_a_variable_of_the_document_stays_its_own():
    own = [{"name": "AWS_CA_BUNDLE", "value": "/etc/ca/ca.crt"}, {"name": "SSL_CERT_FILE", "value": "/x"}]
    for container in containers(pod_of(trustedCA={"configMap": "corporate"}, env=own)):
        names = [entry["name"] for entry in container["env"]]
        assert len(names) == len(set(names))
        assert variables(container)["AWS_CA_BUNDLE"] == "/etc/ca/ca.crt"
        assert variables(container)["SSL_CERT_FILE"] == "/x"
        assert variables(container)["REQUESTS_CA_BUNDLE"] == FILE


def test_without_one_nothing_is_said_of_authorities():
    pod = pod_of()
    assert trusted(pod) is None
    assert not any(variables(container).keys() & TRUSTING for container in containers(pod))


def profile(name: str, **spec: Any) -> ServingProfile:
    return read_profile(name, spec)


def test_the_document_decides_before_the_profile_and_that_before_the_operator():
    facts = Facts(trusted_ca=TrustedCa(config_map="of-operator"))
    assert trusted(pod_of(facts))["name"] == "of-operator"  # type: ignore[index]
    of_profile = profile("p", trustedCA={"configMap": "of-profile", "key": "a"})
    chosen = Facts(trusted_ca=facts.trusted_ca, profile=of_profile)
    assert trusted(pod_of(chosen, profile="p"))["name"] == "of-profile"  # type: ignore[index]
    own = pod_of(chosen, profile="p", trustedCA={"configMap": "own"})
    assert trusted(own) == {"name": "own", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    assert check_profiled(from_mapping(document(profile="p")), profile("p")).trusted_ca is None


def test_another_bundle_makes_new_pods():
    assert intent_hash(from_mapping(document())) != intent_hash(
        from_mapping(document(trustedCA={"configMap": "a"}))
    )


def test_explain_says_whose_the_bundle_is():
    def origin(spec: Object, of: ServingProfile | None = None) -> str:
        made = explain(from_mapping(document(**spec)), of)
        (one,) = [entry for entry in made.environment if entry.name == "SSL_CERT_FILE"]
        return f"{one.origin.source} {one.origin.field}"

    assert origin({"trustedCA": {"configMap": "a"}}) == "derived spec.trustedCA"
    of_profile = profile("p", trustedCA={"configMap": "a"})
    assert origin({"profile": "p"}, of_profile) == "profile spec.trustedCA"


@pytest.mark.parametrize(
    "spec",
    [
        {"files": [{"mountPath": "/etc/slipway/ca", "configMap": "a"}]},
        {"files": [{"mountPath": "/etc/slipway/ca/more", "configMap": "a"}]},
        {"volumes": [{"name": "files-ca", "emptyDir": {}}]},
        {"trustedCA": {}},
        {"trustedCA": {"configMap": "a", "key": "b/c"}},
        {"trustedCA": {"secret": "a"}},
        {"trustedCA": "a"},
    ],
)
def test_what_would_hide_the_bundle_or_names_none_is_refused(spec):
    with pytest.raises(InvalidService):
        from_mapping(document(**spec))


def test_the_fetch_has_the_files_and_volumes_that_its_variables_may_name():
    """Of the server's own folders it has cache and /tmp alone."""
    pod = pod_of(
        files=[{"mountPath": "/etc/ca", "configMap": "corporate-ca"}],
        volumes=[
            {"name": "joined", "mountPath": "/etc/joined", "emptyDir": {}},
            {"name": "spool", "emptyDir": {}},
        ],
        env=[
            {"name": "AWS_CA_BUNDLE", "value": "/etc/ca/ca.crt"},
            {"name": "HTTPS_PROXY", "secret": {"name": "proxy", "key": "url"}},
        ],
        secrets={"tls": {"name": "certificate"}},
    )
    fetch, server = containers(pod)
    places = {mount["mountPath"]: mount for mount in fetch["volumeMounts"]}
    assert places.keys() == {"/cache", "/tmp", "/etc/ca", "/etc/joined"}
    assert places["/etc/ca"] in server["volumeMounts"]
    assert places["/etc/ca"]["readOnly"] is True
    assert variables(fetch)["AWS_CA_BUNDLE"] == "/etc/ca/ca.crt"
    assert "HTTPS_PROXY" in {entry["name"] for entry in fetch["env"]}


def test_without_a_cluster_the_bundle_is_named():
    spec = from_mapping(document(model={"hub": {"id": "a/b"}}, trustedCA={"configMap": "a"}))
    with pytest.raises(InvalidService, match=r"spec\.trustedCA: podman has no ConfigMaps"):
        podman_command(spec, Facts())
    assert any("spec.trustedCA stays in the cluster" in one for one in local_start(spec, {}).warnings)

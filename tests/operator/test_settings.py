"""The operator's settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.service import InvalidService, Policy
from slipway.service.facts import ClusterFacts, Facts
from slipway.service.peers import IpBlock, Peer
from slipway.service.profile import read_profile
from slipway.service.spec import TrustedCa
from slipway_operator.main import main
from slipway_operator.settings import Settings, read_settings

WHOLE = """
namespaces: [a, b]
leaseNamespace: ns
leaseName: lease
facts:
  cpuImage: cpu:1
  cudaImage: cuda:1
  cpuArchitecture: arm64
  cudaArchitecture: ""
  imagePullSecrets: [mirror]
  trustedCA: {configMap: corporate, key: bundle.pem}
  openshift: true
  scrapers: [{ipBlock: {cidr: 10.0.0.0/8}}]
  monitoringLabels: {release: x}
policy:
  allowCode: true
  permittedArguments: [trustRemoteCode]
  permittedEnv: [A, B_*]
  images: [ghcr.io/a]
  serviceAccounts: [models]
  filePaths: [/etc]
  serviceTypes: [NodePort]
  profiles: {h100: [team-a], l4: []}
profiles:
  a: {}
logFormat: json
healthPort: 0
"""


@pytest.mark.parametrize("text", ["", "{}", "profiles: null"])
def test_an_empty_file_serves_the_whole_cluster_with_the_images_of_this_version(text: str) -> None:
    settings = read_settings(text)
    assert settings == Settings()
    assert settings.scopes == (None,)


def test_each_field_of_the_file_is_a_setting() -> None:
    assert read_settings(WHOLE) == Settings(
        namespaces=("a", "b"),
        lease_namespace="ns",
        lease_name="lease",
        facts=ClusterFacts(
            cpu_image="cpu:1",
            cuda_image="cuda:1",
            cpu_architecture="arm64",
            cuda_architecture="",
            image_pull_secrets=("mirror",),
            trusted_ca=TrustedCa(config_map="corporate", key="bundle.pem"),
            openshift=True,
            scrapers=(Peer(ip_block=IpBlock(cidr="10.0.0.0/8")),),
            monitoring_labels={"release": "x"},
        ),
        policy=Policy(
            allow_code=True,
            permitted_arguments=("trustRemoteCode",),
            permitted_env=("A", "B_*"),
            images=("ghcr.io/a",),
            service_accounts=("models",),
            file_paths=("/etc",),
            service_types=("NodePort",),
            profiles={"h100": ("team-a",), "l4": ()},
        ),
        profiles={"a": read_profile("a", {})},
        log_format="json",
        health_port=0,
    )


def test_a_namespace_that_is_named_twice_is_watched_once() -> None:
    assert read_settings("namespaces: [a, b, a]").scopes == ("a", "b")


def test_what_is_said_of_the_cluster_is_a_part_of_each_services_facts() -> None:
    given = read_settings(WHOLE).facts
    facts = given.of_service(namespace="models")
    assert facts == Facts(
        namespace="models",
        cpu_image="cpu:1",
        cuda_image="cuda:1",
        cpu_architecture="arm64",
        cuda_architecture="",
        image_pull_secrets=("mirror",),
        trusted_ca=given.trusted_ca,
        openshift=True,
        scrapers=given.scrapers,
        monitoring_labels={"release": "x"},
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("healthPort: x", "settings.healthPort: 'x' is not a whole number"),
        ("healthPort: 70000", "settings.healthPort: 70000 is not between 0 and 65535"),
        ("facts: {monitoringLabels: {a: 1}}", "settings.facts.monitoringLabels.a: 1 is not text"),
        ("logFormat: xml", "settings.logFormat: 'xml' is not one of text, json"),
        ("facts: {trustedCA: {configMap: ''}}", "settings.facts.trustedCA.configMap: '' is not the name"),
        ("facts: {openshift: maybe}", "settings.facts.openshift: 'maybe' is not true or false"),
        ("facts: {scrapers: [{pods: {}}]}", "settings.facts.scrapers[0].pods: there is no such field"),
        ("policy: []", "settings.policy: [] is not a mapping"),
        ("policy: {image: []}", "settings.policy.image: there is no such field. Did you mean images"),
        ("policy: {images: a}", "settings.policy.images: 'a' is not a list"),
        ("policy: {allowCode: 'yes'}", "settings.policy.allowCode: 'yes' is not true or false"),
        ("policy: {profiles: {a: b}}", "settings.policy.profiles.a: 'b' is not a list"),
        ("policy: {profiles: {A_B: []}}", "settings.policy.profiles: 'A_B' is not the name of a"),
        ("policy: {mountRoots: [data]}", "settings.policy.mountRoots[0]: 'data' is not an absolute path"),
        ("policy: {permittedEnv: [A*B]}", "settings.policy.permittedEnv[0]: 'A*B' is not a variable"),
        ("policy: {serviceTypes: [x]}", "settings.policy.serviceTypes[0]: 'x' is not one of ClusterIP"),
        ("cpuImage: x", "settings.cpuImage: there is no such field"),
        ("profiles: [a]", "settings.profiles: "),
        ("profiles: {a: {nothing: 1}}", "ServingProfile a cannot be used: spec.nothing: there is no such"),
        ("[]", "settings: "),
        ("a: [", "this is not YAML"),
        ("logFormat: text\nlogFormat: json", "logFormat stands there twice"),
    ],
)
def test_what_cannot_be_accepted_is_refused_with_its_field(text: str, sentence: str) -> None:
    with pytest.raises(InvalidService) as refused:
        read_settings(text)
    assert sentence in str(refused.value)


def test_the_operator_ends_at_a_file_that_it_cannot_accept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.yaml"
    for sentence in ("No such file", "settings.healthPort: "):
        with pytest.raises(SystemExit) as ended:
            main(["--settings", str(file)])
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert str(file) in said
        assert sentence in said
        file.write_text("healthPort: no")

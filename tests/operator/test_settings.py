"""Flags and environment variables of the operator."""

from __future__ import annotations

import pytest

from slipway.service.profile import read_profile
from slipway.service.spec import TrustedCa
from slipway_operator.settings import FLAGS, Settings, read_settings


def test_without_flags_the_whole_cluster_is_served_with_the_images_of_this_version() -> None:
    settings = read_settings([], {})
    assert settings == Settings()
    assert settings.scopes == (None,)


def test_every_flag_has_an_effect_and_an_environment_twin() -> None:
    given = {
        "namespace": ("a,b", ("a", "b")),
        "lease-namespace": ("ns", "ns"),
        "lease-name": ("lease", "lease"),
        "cpu-image": ("cpu:1", "cpu:1"),
        "cuda-image": ("cuda:1", "cuda:1"),
        "cpu-architecture": ("arm64", "arm64"),
        "cuda-architecture": ("", ""),
        "image-pull-secret": ("a,b", ("a", "b")),
        "trusted-ca": ("corporate/bundle.pem", TrustedCa(config_map="corporate", key="bundle.pem")),
        "openshift": ("true", True),
        "allow-code": ("1", True),
        "permit-argument": ("trustRemoteCode", frozenset({"trustRemoteCode"})),
        "permit-env": ("A,B", frozenset({"A", "B"})),
        "admit-image": ("ghcr.io/a,quay.io", ("ghcr.io/a", "quay.io")),
        "admit-service-account": ("models", frozenset({"models"})),
        "admit-file-path": ("/etc", ("/etc",)),
        "scrapers": ('[{"ipBlock": {"cidr": "10.0.0.0/8"}}]', [{"ipBlock": {"cidr": "10.0.0.0/8"}}]),
        "profiles": ('{"a": {}}', {"a": read_profile("a", {})}),
        "monitoring-label": ("release=x,team=y", {"release": "x", "team": "y"}),
        "log-format": ("json", "json"),
        "health-port": ("0", 0),
    }
    assert set(given) == {flag.name for flag in FLAGS}
    for flag in FLAGS:
        text, expected = given[flag.name]
        line = [f"--{flag.name}"] if flag.switch else [f"--{flag.name}", text]
        assert getattr(read_settings(line, {}), flag.field) == expected
        assert getattr(read_settings([], {flag.env: text}), flag.field) == expected


def test_a_flag_wins_over_its_environment_variable() -> None:
    environment = {"SLIPWAY_OPERATOR_CPU_IMAGE": "from-env"}
    assert read_settings(["--cpu-image", "from-flag"], environment).cpu_image == "from-flag"


def test_a_repeated_flag_adds_up_and_keeps_each_value_once() -> None:
    settings = read_settings(["--namespace", "a", "--namespace", "b,a"], {})
    assert settings.namespaces == ("a", "b")
    assert settings.scopes == ("a", "b")


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["--health-port", "x"], {}, "--health-port: 'x' is no port"),
        (["--health-port", "70000"], {}, "up to 65535"),
        (["--monitoring-label", "release"], {}, "'release' is no label: write KEY=VALUE."),
        (["--log-format", "xml"], {}, "write text or json"),
        (
            ["--trusted-ca", "/ca.crt"],
            {},
            "--trusted-ca: trustedCA.configMap: '' is not the name of a Kubernetes",
        ),
        ([], {"SLIPWAY_OPERATOR_OPENSHIFT": "maybe"}, "SLIPWAY_OPERATOR_OPENSHIFT: 'maybe' is neither"),
    ],
)
def test_a_malformed_value_is_refused_in_a_sentence(
    arguments: list[str], environment: dict[str, str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings(arguments, environment)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_bundle_of_authorities_has_the_usual_key() -> None:
    assert read_settings(["--trusted-ca", "corporate"], {}).trusted_ca == TrustedCa(config_map="corporate")

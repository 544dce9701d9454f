"""The values of the Helm charts, each with what it is for, its default and what it may be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, get_args, get_origin

from slipway import __version__
from slipway.service.crd.structure import anchored, field_texts
from slipway.service.facts import ARCHITECTURE, PROMETHEUS, REGISTRY
from slipway.service.fields import camel, types_of
from slipway.service.policy_values import Policy

Node = dict[str, Any]

NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
KEY = r"^[-._a-zA-Z0-9]{1,253}$"
NAMESPACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
PART_OF_A_NAME = r"^([a-z]([-a-z0-9]{0,61}[a-z0-9])?)?$"
REPOSITORY = r"^[a-z0-9][-a-z0-9._/:]*$"
DIGEST = r"^(sha256:[0-9a-f]{64})?$"
DURATION = r"^([0-9]+(ms|s|m|h))+$"
TEXTS: Node = {"type": "object", "additionalProperties": {"type": "string"}}
QUANTITIES: Node = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a chart: what it is for, its default, and what it may be (JSON Schema)."""

    text: str
    default: object
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """Values that belong together, under one key."""

    text: str
    members: Mapping[str, Value | Group] = field(default_factory=dict)


def _flag(text: str, default: bool) -> Value:
    return Value(text, default, {"type": "boolean"})


def _word(text: str, default: str, **schema: object) -> Value:
    return Value(text, default, {"type": "string", **schema})


def _texts(text: str) -> Value:
    return Value(text, {}, TEXTS)


def _of_class(cls: type) -> dict[str, Value]:
    """A value for each field of the dataclass, with its text, default and type."""
    texts, types, usual = field_texts(cls), types_of(cls), cls()
    return {
        camel(one.name): Value(
            texts[one.name], json.loads(json.dumps(getattr(usual, one.name))), _schema(types[one.name])
        )
        for one in fields(cls)
    }


def _schema(wanted: Any) -> Node:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if wanted is bool:
        return {"type": "boolean"}
    if origin is Annotated:
        return {"type": "string", "pattern": anchored(arguments[1])}
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "uniqueItems": True, "items": _schema(arguments[0])}
    keys, values = map(_schema, arguments)
    return {"type": "object", "propertyNames": keys, "additionalProperties": values}


def _list(text: str, pattern: str) -> Value:
    items = {"type": "string", "pattern": pattern}
    return Value(text, [], {"type": "array", "uniqueItems": True, "items": items})


RELEASED: Mapping[str, Mapping[str, str]] = {}
"""Version → image → digest. The charts of a version that stands here name its images by them."""


def image(text: str, repository: str, released: Mapping[str, Mapping[str, str]] = RELEASED) -> Group:
    """The values that name an image, whose tag someone could move and whose digest nobody can."""
    return Group(
        text,
        {
            "repository": _word("Its name without registry and tag.", repository, pattern=REPOSITORY),
            "tag": _word("Empty: the version of this chart.", "", pattern=r"^[A-Za-z0-9_.-]{0,128}$"),
            "digest": _word(
                "sha256:…, which names the image beyond doubt; the tag is then left out.",
                released.get(__version__, {}).get(repository, ""),
                pattern=DIGEST,
            ),
            "architecture": _word(
                "Of the nodes that can run it, as their label kubernetes.io/arch says. Empty: all can.",
                ARCHITECTURE,
                pattern=r"^[a-z0-9]*$",
            ),
        },
    )


NAMES: Mapping[str, Value | Group] = {
    "nameOverride": _word(
        "In place of `operator` in the names of what the release makes in its namespaces: RELEASE-operator.",
        "",
        pattern=PART_OF_A_NAME,
    ),
    "fullnameOverride": _word(
        "In place of the whole of these names. What is cluster-wide keeps its own, by which two releases see "
        "each other.",
        "",
        pattern=PART_OF_A_NAME,
    ),
}

SCOPE: Mapping[str, Value | Group] = {
    "namespaces": _list(
        "The namespaces whose InferenceServices this operator serves, with a Role in each and nothing "
        "cluster-wide: no ClusterRole and no CRD, which whoever administers the cluster installs. Empty: the "
        "whole cluster.",
        NAMESPACE,
    ),
    "crds": Group(
        "The CustomResourceDefinitions.",
        {
            "install": _flag(
                "Install the CRDs and upgrade them with the chart. `helm uninstall` keeps them, and with "
                "them every InferenceService. Set false where another release or person owns them; without "
                "effect where `namespaces` is set.",
                True,
            )
        },
    ),
    "rbac": Group(
        "Access rights of people.",
        {
            "aggregate": _flag(
                "Let everyone with the roles view, edit or admin in a namespace see, and with the latter two "
                "change, its InferenceServices. Without effect where `namespaces` is set.",
                True,
            )
        },
    ),
}

IMAGES: Mapping[str, Value | Group] = {
    "registry": _word(
        "Goes before the names of all three images, such as registry.example.com/mirror. Empty where the "
        "names have one of their own.",
        REGISTRY,
        pattern=r"^([A-Za-z0-9][-A-Za-z0-9._/:]*[A-Za-z0-9])?$",
    ),
    "image": image("The operator's image.", "slipway/operator"),
    "imagePullPolicy": _word(
        "When the operator's image is pulled.", "IfNotPresent", enum=["Always", "IfNotPresent", "Never"]
    ),
    "imagePullSecrets": _list("Names of the Secrets with which the operator's image is pulled.", NAME),
    "runtime": Group(
        "The images in which models run, where a resource names none of its own.",
        {
            "cpu": image("For services without devices.", "slipway/runtime-cpu"),
            "cuda": image("For services with devices of NVIDIA.", "slipway/runtime-cuda"),
            "imagePullSecrets": _list(
                "Names of Secrets in the services' own namespaces, for pods whose resource names none. A "
                "change reaches new pods only.",
                NAME,
            ),
        },
    ),
}

BEHAVIOUR: Mapping[str, Value | Group] = {
    "trustedCA": Group(
        "Certificate authorities that servers trust, and what fetches their models, where neither resource "
        "nor profile names any: those of a proxy or a private store, with the public ones that are needed.",
        {
            "configMap": _word(
                "Name of a ConfigMap in each namespace of services. Empty: those of the image.",
                "",
                pattern=rf"^$|{NAME}",
            ),
            "key": _word("Key with the certificates, as PEM.", "ca.crt", pattern=KEY),
        },
    ),
    "openshift": Value(
        "Leave the user ID of pods to the namespace's range, as OpenShift's security constraints ask. auto: "
        "where the cluster has the group security.openshift.io, which Helm sees while it installs and "
        "`helm template` is told by --api-versions.",
        "auto",
        {"enum": ["auto", True, False]},
    ),
    "policy": Group(
        "What those who write InferenceServices may ask for. It is set as soon as a value under it is, "
        "allowCode, permittedArguments, permittedEnv and admission aside. Then whatever could run code, take "
        "devices, read Secrets or outrank others is refused unless a value admits it.",
        {
            **_of_class(Policy),
            "admission": _flag(
                "Have the API server refuse what this policy does, by a ValidatingAdmissionPolicy on "
                "InferenceServices and their pods. Without it the operator says so in the status. Without "
                "effect where `namespaces` is set.",
                False,
            ),
        },
    ),
    "profiles": Value(
        "Serving profiles by name, each as the spec of a ServingProfile, for resources that choose one by "
        "spec.profile. Read where `namespaces` is set; elsewhere ServingProfiles of the cluster are.",
        {},
        {"type": "object", "additionalProperties": {"type": "object"}},
    ),
    "monitoring": Group(
        "How Prometheus finds the services and the operator, and what it and Grafana make of their metrics.",
        {
            "labels": _texts(
                "Labels of each ServiceMonitor and PodMonitor, the operator's own included, and of the "
                "PrometheusRule, such as `release: prometheus`; those of a resource win."
            ),
            "from": Value(
                "Who scrapes, as `from` of a NetworkPolicy: they reach the pods of resources with "
                "service.from, and the operator where networkPolicy.enabled is set.",
                [PROMETHEUS],
                {"type": "array", "items": {"type": "object", "minProperties": 1}},
            ),
            "serviceMonitor": Group(
                "How Prometheus finds the operator itself; needs the Prometheus Operator's CRDs.",
                {
                    "enabled": _flag("Make a ServiceMonitor for it.", False),
                    "interval": _word("Between two scrapes.", "30s", pattern=DURATION),
                },
            ),
            "alerts": Group(
                "The alert rules; they need the Prometheus Operator's CRDs.",
                {"enabled": _flag("Make a PrometheusRule of them.", False)},
            ),
            "dashboard": Group(
                "The dashboard for Grafana.",
                {
                    "enabled": _flag(
                        "Make a ConfigMap of it, for a Grafana whose sidecar collects them.", False
                    ),
                    "labels": Value(
                        "Labels of the ConfigMap, by which the sidecar finds it.",
                        {"grafana_dashboard": "1"},
                        TEXTS,
                    ),
                    "annotations": _texts("Annotations of the ConfigMap, such as grafana_folder."),
                },
            ),
        },
    ),
    "networkPolicy": Group(
        "Who reaches the operator's port 8080, where its metrics and probes are.",
        {
            "enabled": _flag(
                "Make a NetworkPolicy that lets those of monitoring.from in, beside the kubelet, whom no "
                "policy keeps out.",
                False,
            )
        },
    ),
    "logFormat": _word("How the operator logs: json, or text for people.", "json", enum=["json", "text"]),
}

POD: Mapping[str, Value | Group] = {
    "replicas": Value(
        "Operator pods. One works; the others wait for its Lease and take over within 40 seconds. Of several "
        "a drain takes one at a time, by a PodDisruptionBudget.",
        1,
        {"type": "integer", "minimum": 0, "maximum": 5},
    ),
    "serviceAccount": Group(
        "The operator's identity.",
        {
            "create": _flag("Make the ServiceAccount; else it is there already.", True),
            "name": _word(
                "Empty: RELEASE-operator, or what overrides it.",
                "",
                pattern=rf"^$|{NAME}",
            ),
            "annotations": _texts("Annotations of the ServiceAccount."),
        },
    ),
    "resources": Group(
        "Resources of the operator's container.",
        {
            "requests": Value("What is set aside for it.", {"cpu": "50m", "memory": "160Mi"}, QUANTITIES),
            "limits": Value("The most that it may use.", {"memory": "512Mi"}, QUANTITIES),
        },
    ),
    "podLabels": _texts("More labels of the operator's pods."),
    "podAnnotations": _texts("Annotations of the operator's pods."),
    "nodeSelector": _texts("Labels of the nodes on which the operator may run."),
    "tolerations": Value(
        "Taints that the operator's pods tolerate.", [], {"type": "array", "items": {"type": "object"}}
    ),
    "affinity": Value("Affinity of the operator's pods.", {}, {"type": "object"}),
    "topologySpreadConstraints": Value(
        "How the operator's pods are spread. Empty: several go to different nodes and zones where they can.",
        [],
        {"type": "array", "items": {"type": "object"}},
    ),
    "priorityClassName": _word("Priority class of the operator's pods.", "", pattern=rf"^$|{NAME}"),
}

OPERATOR = Group("Values of the chart slipway.", {**NAMES, **SCOPE, **IMAGES, **BEHAVIOUR, **POD})

NAMING: Mapping[str, Value] = {
    "name": _word(
        "Name of the InferenceService, and of its Deployment and Service. Empty: the release's name.",
        "",
        pattern=r"^([a-z]([-a-z0-9]{0,48}[a-z0-9])?)?$",
    ),
    "labels": _texts("Labels of the InferenceService."),
    "annotations": _texts("Annotations of the InferenceService."),
}
"""Of the chart slipway-model, beside the fields of the spec."""

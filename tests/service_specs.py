"""Specs of services that nobody wrote, of all that a document can ask for."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = st.from_regex(r"\A[A-Z]{1,3}\Z")
SPECS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(
            [
                {"hub": {"id": "a/b", "revision": None}},
                {"pvc": {"name": "c"}, "cache": {"pvc": "c", "accessMode": "ReadWriteOnce"}},
                {"image": {"reference": "r/m", "pullPolicy": "Never"}},
                {"image": {"reference": "r:5000/m@sha256:0"}},
                {"image": {"reference": "r:5000/m@sha256:0", "pullPolicy": "IfNotPresent"}},
                {"s3": {"uri": "s3://b/x", "secret": "keys", "endpoint": None}},
                {"path": "/x", "servedNames": ["y"]},
            ]
        )
    },
    optional={
        "devices": st.sampled_from(
            [{}, {"vendor": "nvidia"}, {"claims": ["x"]}, {"vendor": "nvidia", "profile": "1g.10gb"}]
        ),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "maxModelLen": st.sampled_from([512, "1k", 1000, None]),
                "tensorParallelSize": st.integers(1, 4),
                "drainGrace": st.integers(0, 60),
                "allowCredentials": st.booleans(),
            },
        ),
        "env": st.lists(
            st.fixed_dictionaries({"name": NAMES, "value": st.text(max_size=5)}),
            unique_by=lambda entry: entry["name"],
            max_size=4,
        ),
        "replicas": st.integers(0, 3),
        "suspend": st.booleans(),
        "resources": st.sampled_from(
            [
                {},
                {"cpu": "1500m", "memory": "1Gi"},
                {"cpu": 1.5, "memory": "1024Mi"},
                {"sharedMemory": "1M"},
            ]
        ),
        "monitoring": st.sampled_from([{}, {"enabled": True}, {"enabled": True, "kind": "PodMonitor"}]),
        "rollout": st.sampled_from([{}, {"template": "Latest"}, {"drainSeconds": 90}, {"maxUnavailable": 1}]),
        "secrets": st.sampled_from([{}, {"tls": {"name": "t"}}, {"apiKey": {"name": "a", "key": "k"}}]),
        "volumes": st.sampled_from(
            [
                [],
                [{"name": "v", "mountPath": "/v", "emptyDir": {}}, {"name": "w", "pvc": {"name": "c"}}],
                [
                    {
                        "name": "v",
                        "mountPath": "/v",
                        "projected": {
                            "sources": [
                                {"serviceAccountToken": {"path": "token"}},
                                {"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}},
                                {
                                    "downwardAPI": {
                                        "items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]
                                    }
                                },
                            ]
                        },
                    }
                ],
            ]
        ),
        "sidecars": st.sampled_from(
            [[], [{"name": "c", "image": "a", "args": None, "resources": {"limits": {"memory": None}}}]]
        ),
        "scheduling": st.sampled_from(
            [
                {},
                {"tolerations": [{"key": "a", "value": None}]},
                {"schedulerName": "default-scheduler"},
            ]
        ),
        "service": st.sampled_from([{}, {"labels": {"exposed": "yes"}}]),
        "runtime": st.sampled_from(
            [
                {},
                {"podLabels": {"app.kubernetes.io/component": "server"}},
                {"imagePullPolicy": "IfNotPresent"},
                {"image": "r/own"},
                {"image": "r/own", "imagePullPolicy": "Always"},
            ]
        ),
    },
)


def document_of(spec: dict[str, Any]) -> dict[str, Any]:
    """The document with that spec."""
    return {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo", "namespace": "models"},
        "spec": spec,
    }

"""Random changes of a spec, drawn from the schema that the API server has."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]
Path = tuple[str, ...]
Patch = dict[str, Any]

TEXTS = (
    "",
    "a",
    "demo",
    "Über alles",
    "two words",
    "-leading",
    "../up",
    "a" * 70,
    "1",
    "7",
    "500m",
    "2",
    "1.5",
    "8Gi",
    "512Mi",
    "1k",
    "30s",
    "1m30s",
    "0%",
    "25%",
    "100%",
    "120%",
    "/models/demo",
    "/models/other",
    "/etc/files",
    "part/of",
    "org/name",
    "v1.0",
    "1g.10gb",
    "10.0.0.53",
    "10.0.0.0/8",
    "metadata.name",
    "spec.nodeName",
    "s0:c1,c2",
    "s3://bucket/folder",
    "https://s3.example.org",
    "http://127.0.0.1:4317",
    "registry.example/model:1",
    "registry.example/runtime@sha256:0",
    "tls.crt",
    "other.pem",
    "NAME",
    "HTTPS_PROXY",
    "NCCL_DEBUG",
    "VLLM_LOGGING_LEVEL",
    "VLLM_PORT",
    "VLLM_NO_SUCH",
    "SLIPWAY_CPU_ISA",
    "hermes",
    "{}",
    '{"a": 1}',
)
"""Something for every rule of the schema, and something against each."""
KEYS = ("team", "example.org/purpose", "app.kubernetes.io/instance", "kubernetes.io/hostname", "")
NEVER_FITS = {"key": "zone", "operator": "In", "values": ["nowhere"]}
GIVEN: Mapping[str, Sequence[Any]] = {
    # More pods than this show nothing else.
    "replicas": (0, 1, 2, 3, 5, -1),
    "profile": ("demo", "missing", "No name"),
    # Another scheduler leaves the pods alone without a word.
    "scheduling.schedulerName": ("default-scheduler",),
    # What the schema takes as it is, because it is Kubernetes' own.
    "scheduling.affinity": (
        {},
        {"podAntiAffinity": {}},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
         {"nodeSelectorTerms": [{"matchExpressions": [NEVER_FITS]}]}}},
        {"nodeAffinity": {"no": "such"}},
        {"nodeAffinity": "text"},
    ),
    "scheduling.tolerations[]": (
        {"key": "dedicated", "operator": "Exists"},
        {"key": "dedicated", "operator": "Equal", "value": "models", "effect": "NoSchedule"},
        {"operator": "Perhaps"},
        {"tolerationSeconds": 5},
    ),
    "scheduling.topologySpreadConstraints[]": (
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
         "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "slipway"}}},
        {"topologyKey": "zone"},
    ),
}  # fmt: skip
"""Values for fields about which the schema says too little."""
MATCHES = re.compile(r"self\.matches\(r'(.*?)'\)")


class Draw:
    """Merge patches of a spec; the same seed and schema give the same ones.

    Three in four values keep to what the schema says of their field; whether they keep to its rules about
    several fields is left to chance.
    """

    def __init__(self, spec: Schema, seed: int) -> None:
        self._spec = spec
        self._random = random.Random(seed)

    def patch(self) -> Patch:
        """One field or a few that are near each other, set to new values or taken away."""
        properties = self._spec["properties"]
        first = self._random.choice((*["engine"] * 5, "env", *properties))
        if first == "model" and self._random.random() < 0.7:
            return {"model": self._source(properties["model"])}
        return {first: self._change(properties[first], (first,))}

    def _source(self, model: Schema) -> Patch:
        """Another source in the place of the one before, so that there is exactly one."""
        names = ("hub", "pvc", "image", "s3", "path")
        chosen = self._random.choice(names)
        value = self._value(model["properties"][chosen], ("model", chosen))
        return {**dict.fromkeys(names), chosen: value}

    def _change(self, schema: Schema, path: Path) -> Any:
        """A few of an object's fields, or a value for what is none; null takes away."""
        if path != ("model",) and self._random.random() < 0.12:
            return None
        if not schema.get("properties") or len(path) > 2:
            return self._value(schema, path)
        names = self._some(schema["properties"], 2, least=1)
        return {name: self._change(schema["properties"][name], (*path, name)) for name in names}

    def _value(self, schema: Schema, path: Path) -> Any:
        known = GIVEN.get(".".join(path).replace(".[]", "[]"))
        if known is not None:
            return self._random.choice(known)
        if self._random.random() < 0.03:
            return self._random.choice((True, -7, "text", [], {}))  # of any type
        if "enum" in schema:
            return self._random.choice((*schema["enum"], *schema["enum"], "other"))
        if schema.get("x-kubernetes-int-or-string"):
            return self._number(schema) if self._random.random() < 0.4 else self._text(schema)
        match schema.get("type"):
            case "boolean":
                return self._random.random() < 0.6
            case "integer":
                return self._number(schema)
            case "number":
                return self._random.choice((0.0, 0.5, 1.0, 1.25))
            case "string":
                return self._text(schema)
            case "array":
                return [self._value(schema["items"], (*path, "[]")) for _ in range(self._random.randrange(3))]
            case "object":
                return self._object(schema, path)
        return self._random.choice(({}, {"a": 1}, "text", 1))

    def _object(self, schema: Schema, path: Path) -> Patch:
        if entries := schema.get("additionalProperties"):
            return {key: self._value(entries, (*path, "{}")) for key in self._some(KEYS, 2)}
        if "properties" not in schema:
            return self._random.choice(({}, {"a": 1}, {"a": {"b": [1, "c"]}}))
        properties = schema["properties"]
        names = {*schema.get("required", ()), *self._some(properties, 2)}
        return {name: self._value(properties[name], (*path, name)) for name in properties if name in names}

    def _number(self, schema: Schema) -> int:
        least, most = int(schema.get("minimum", -2)), int(schema.get("maximum", 1 << 20))
        near = [least, least + 1, least + self._random.randrange(8), 4, 64, 1000, 4096, most, least - 1]
        fitting = [number for number in near if least <= number <= most]
        return self._random.choice(fitting if self._random.random() < 0.75 else near)

    def _text(self, schema: Schema) -> str:
        rules = " ".join(rule["rule"] for rule in schema.get("x-kubernetes-validations", ()))
        patterns = [*MATCHES.findall(rules), schema.get("pattern", "")]
        lengths = range(schema.get("minLength", 0), schema.get("maxLength", 1 << 16) + 1)
        fitting = [
            text for text in TEXTS if len(text) in lengths and all(re.search(p, text) for p in patterns)
        ]
        assert fitting, f"no text of TEXTS fits {patterns}: add one"
        return self._random.choice(fitting if self._random.random() < 0.75 else TEXTS)

    def _some(self, names: Any, most: int, least: int = 0) -> list[str]:
        names = list(names)
        return self._random.sample(names, min(len(names), self._random.randint(least, most)))

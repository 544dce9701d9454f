"""What of the Helm charts is generated: values, their schemas, the CRD's body and the operator's rules.

The values of `helm/slipway` are declared once, in `slipway.service.chart_values`; its values.yaml and
values.schema.json are printed from that. The values of `helm/slipway-model` are the fields of an
InferenceService's spec, so that chart's schema is the CRD's own, rewritten from OpenAPI to JSON Schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from slipway import __version__
from slipway.service.admission import policies
from slipway.service.chart_values import NAMING, OPERATOR, Group, Node, Value

DRAFT = "http://json-schema.org/draft-07/schema#"
WIDTH = 100
GLOBAL: Node = {"type": "object", "description": "Set by Helm where this chart is a part of another."}


def operator_values() -> str:
    """values.yaml of helm/slipway: each value under its description."""
    return _head("slipway") + "".join(_written(OPERATOR.members, 0))


def operator_schema() -> Node:
    """values.schema.json of helm/slipway: closed, and every value described."""
    schema = _group_schema(OPERATOR)
    schema["properties"]["global"] = GLOBAL
    return {"$schema": DRAFT, "title": "Values of the chart slipway"} | schema


def model_values(crd: Mapping[str, Any]) -> str:
    """values.yaml of helm/slipway-model: its own values, and a list of the spec's fields."""
    lines = ["", "# What follows is the spec of the InferenceService, field by field:"]
    for name, node in spec_schema(crd)["properties"].items():
        lines += _comment(f"{name}: {node.get('description', '')}".rstrip(), 0)
    return _head("slipway-model") + "".join(_written(NAMING, 0)) + "\n".join(lines) + "\n"


def model_schema(crd: Mapping[str, Any]) -> Node:
    """values.schema.json of helm/slipway-model, from the schema that the API server checks."""
    spec = json_schema(spec_schema(crd))
    taken = sorted(set(spec["properties"]) & {*NAMING, "global"})
    if taken:
        raise ValueError(
            f"spec.{taken[0]} has the name of a value of the chart slipway-model. Rename that one."
        )
    own = _group_schema(Group("", NAMING))["properties"]
    return {
        "$schema": DRAFT,
        "title": "Values of the chart slipway-model",
        "description": "The spec of one InferenceService, and its name, labels and annotations.",
        **{key: item for key, item in spec.items() if key not in ("description", "properties")},
        "properties": own | spec["properties"] | {"global": GLOBAL},
    }


def spec_schema(crd: Mapping[str, Any]) -> Node:
    """The OpenAPI schema of the stored version's spec."""
    stored = next(version for version in crd["spec"]["versions"] if version["storage"])
    schema: Node = stored["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def json_schema(node: Mapping[str, Any]) -> Node:
    """A structural OpenAPI schema as JSON Schema, draft 7, without CEL rules: those are the API server's.

    The API server prunes or refuses unknown fields by itself; JSON Schema has to be told.
    """
    result = {key: item for key, item in node.items() if not key.startswith("x-kubernetes-")}
    for key in ("format", "nullable", "default"):
        result.pop(key, None)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in node:
            result[key] = [_branch(item) for item in node[key]]
    if node.get("x-kubernetes-int-or-string") and "anyOf" not in node:
        result["type"] = ["integer", "string"]
    if node.get("exclusiveMinimum") is True:
        result["exclusiveMinimum"] = result.pop("minimum")
    if node.get("exclusiveMaximum") is True:
        result["exclusiveMaximum"] = result.pop("maximum")
    if node.get("nullable") and "type" in result:
        result["type"] = [result["type"], "null"]
        if "enum" in result:
            result["enum"] = [*result["enum"], None]
    if "items" in node:
        result["items"] = json_schema(node["items"])
    if isinstance(node.get("additionalProperties"), Mapping):
        result["additionalProperties"] = json_schema(node["additionalProperties"])
    if "properties" in node:
        result["properties"] = {name: json_schema(item) for name, item in node["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            result["additionalProperties"] = False
    return result


def _branch(node: Mapping[str, Any]) -> Node:
    """A branch of anyOf narrows what stands beside it, so it stays open."""
    branch = json_schema(node)
    branch.pop("additionalProperties", None)
    return branch


def outputs(
    crds: Sequence[Mapping[str, Any]], rules: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, str]:
    """Path below the repository → content, for `python -m slipway.generate`.

    `crds` are the CustomResourceDefinitions, that of InferenceServices first; `rules` are the operator's, of
    `rbac.authorization.k8s.io/v1`: `service` where it serves resources, `cluster` beside them where it serves
    all namespaces, `lease` in its own namespace.
    """
    crd = crds[0]
    return {
        "helm/slipway/values.yaml": operator_values(),
        "helm/slipway/values.schema.json": _json(operator_schema()),
        "helm/slipway/files/admission.yaml": _yaml(policies()),
        **{f"helm/slipway/files/crds/{_name(one)}.yaml": _yaml({"spec": one["spec"]}) for one in crds},
        **{f"helm/slipway/files/rules-{place}.yaml": _yaml(list(rules[place])) for place in PLACES},
        "helm/slipway-model/values.yaml": model_values(crd),
        "helm/slipway-model/values.schema.json": _json(model_schema(crd)),
        **{f"helm/{chart}/Chart.yaml": _chart(chart, text) for chart, text in CHARTS.items()},
    }


def _name(item: Mapping[str, Any]) -> str:
    return str(item["metadata"]["name"])


PLACES = ("service", "cluster", "lease")

CHARTS = {
    "slipway": "The operator that serves language models from InferenceService resources, and their CRD.",
    "slipway-model": "One served language model: an InferenceService from values.",
}


def _chart(name: str, text: str) -> str:
    return (
        f"apiVersion: v2\nname: {name}\ndescription: {json.dumps(text)}\ntype: application\n"
        f'version: {__version__}\nappVersion: "{__version__}"\n'
        'kubeVersion: ">=1.31.0-0"\nkeywords: [llm, inference, openai, vllm]\n'
    )


def _group_schema(group: Group) -> Node:
    properties: Node = {}
    for name, member in group.members.items():
        match member:
            case Group():
                properties[name] = _group_schema(member)
            case Value(text, default, schema):
                properties[name] = {"description": text, **schema, "default": default}
    return {
        "type": "object",
        "description": group.text,
        "additionalProperties": False,
        "properties": properties,
    }


def _head(chart: str) -> str:
    return f"# Values of the chart {chart}, generated with their schema by `make generate`.\n"


def _written(members: Mapping[str, Value | Group], depth: int) -> Iterator[str]:
    """The members as YAML, each under its description; a blank line before those of the outermost level."""
    for name, member in members.items():
        gap = "" if depth else "\n"
        comment = "\n".join(_comment(member.text, depth))
        match member:
            case Group():
                yield f"{gap}{comment}\n{'  ' * depth}{name}:\n"
                yield from _written(member.members, depth + 1)
            case Value():
                yield f"{gap}{comment}\n{'  ' * depth}{name}: {json.dumps(member.default)}\n"


def _comment(text: str, depth: int) -> list[str]:
    lead = "  " * depth + "# "
    return [lead + line for line in wrap(text, WIDTH - len(lead), break_long_words=False)]


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _yaml(value: object) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes a list or mapping that occurs twice twice: Helm's readers need no anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    text: str = yaml.dump(value, Dumper=Plain, sort_keys=False, allow_unicode=True, width=110)
    return text

"""What the pages for platform teams name in their sentences exists: fields, values, reasons, metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from platform_pages import RELEASE, ROOT, chart_schema, check_helm, check_kubectl, crd, reasons_named
from slipway.metrics.promql import DECLARED
from slipway.service.charts import spec_schema
from slipway_operator.conditions import CONDITIONS
from slipway_operator.permissions import CLUSTER_RULES, LEASE_RULES, SERVICE_RULES
from slipway_operator.reasons import BY_NAME

PAGES = [ROOT / "docs/kubernetes.md", ROOT / "docs/operator.md", *sorted(ROOT.glob("docs/kubernetes/*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
METRIC = re.compile(r"(vllm:|slipway:|slipway_operator_)\w+")
PATH = re.compile(r"[a-z]\w*(?:\.[a-z]\w*|\[\])+")
OTHER_WORDS = frozenset(
    {
        "InferenceService",
        "Containerfile",
        "Deployment",
        "Latest",
        "Pinned",
        "ImageVolume",
        "Ready",
        "Stalled",
        "Auto",
    }
    | {
        "NAMESPACE",
        "PodMonitor",
        "ServingProfile",
        "PrometheusRule",
        "OnRootMismatch",
        "ReadWriteMany",
        "ReadWriteOnce",
        "ReadWriteOncePod",
        "PreferClose",
        "PreferSameNode",
        "PreferSameZone",
        "Bundle",
    }
)
"""Words in code that look like reasons and are none."""

FOUND = (AssertionError, KeyError, jsonschema.ValidationError)
"""How a check says that a line is wrong."""


def listed(found: Mapping[Path, set[str]]) -> str:
    """Page and words, for those pages where something was found."""
    return "\n".join(
        f"{page.relative_to(ROOT)}: {', '.join(sorted(words))}" for page, words in found.items() if words
    )


def words_in_code(page: Path) -> Iterator[str]:
    return (match[1] for match in CODE.finditer(FENCE.sub("", page.read_text())))


def has_field(schema: Mapping[str, Any], path: str) -> bool:
    """Whether `a.b[].c` leads to a field of the schema."""
    node: Mapping[str, Any] = schema
    for word in path.replace("[]", ".[]").split("."):
        if word == "[]":
            node = node.get("items", {})
        elif word in node.get("properties", {}):
            node = node["properties"][word]
        else:
            return False
    return True


def test_a_field_named_in_a_sentence_is_one_of_the_spec_or_of_the_charts_values():
    spec, values = spec_schema(crd()), chart_schema()
    tops = set(spec["properties"]) | set(values["properties"]) | {"spec"}
    wrong = {
        page: {
            word
            for word in words_in_code(page)
            if PATH.fullmatch(word)
            and word.split(".")[0].removesuffix("[]") in tops
            and not has_field(spec, word.removeprefix("spec."))
            and not has_field(values, word)
        }
        for page in PAGES
    }
    assert not listed(wrong), listed(wrong)


def test_a_reason_or_condition_named_in_a_sentence_is_in_the_catalogue():
    known = OTHER_WORDS | set(BY_NAME) | set(CONDITIONS)
    wrong = {
        page: {
            word
            for word in set(reasons_named(FENCE.sub("", page.read_text()))) - known
            if re.search(r"[a-z]", word) and not word.startswith("Slipway")  # an alert
        }
        for page in PAGES
    }
    assert not listed(wrong), listed(wrong)


def test_troubleshooting_says_something_about_every_reason():
    text = (ROOT / "docs/kubernetes/troubleshooting.md").read_text()
    exits = set(re.findall(r"`(\w+)`", (ROOT / "docs/exit-codes.md").read_text()))
    assert set(BY_NAME) - exits <= set(reasons_named(text))
    assert "](../exit-codes.md)" in text


def test_a_metric_named_in_a_sentence_is_declared():
    wrong = {
        page: {word for word in words_in_code(page) if METRIC.fullmatch(word)} - set(DECLARED)
        for page in PAGES
    }
    assert not listed(wrong), listed(wrong)


def test_the_page_on_the_operator_names_all_its_metrics():
    named = set(words_in_code(ROOT / "docs/operator.md"))
    assert {name for name in DECLARED if name.startswith("slipway_operator_")} <= named


def test_the_operators_deployment_is_called_as_the_pages_say():
    names = (ROOT / "helm/slipway/templates/_names.tpl").read_text()
    assert 'printf "%s-%s" .Release.Name (.Values.nameOverride | default "operator")' in names
    assert RELEASE == "slipway"


def test_the_page_on_installing_names_what_the_operator_has_rights_on_and_nothing_else():
    page = (ROOT / "docs/kubernetes/install.md").read_text()
    section = re.search(
        r"^## What the operator may do$(.*?)\*\*It has no right", page, re.MULTILINE | re.DOTALL
    )
    assert section
    named = {word.lower().removesuffix("s") for word in re.findall(r"\b[A-Z]\w*[a-z]s?\b", section[1])}
    rules = (*SERVICE_RULES, *CLUSTER_RULES, *LEASE_RULES)
    given = {resource.split("/")[0].removesuffix("s") for rule in rules for resource in rule.resources}
    assert named - {"the", "it"} == given


def test_the_pages_are_all_in_the_table_of_pages():
    table = (ROOT / "docs/kubernetes.md").read_text()
    for page in PAGES[1:]:
        assert f"]({page.relative_to(ROOT / 'docs')})" in table


@pytest.mark.parametrize(
    "wrong",
    [
        "kubectl get inferencservices",
        "kubectl apply -f examples/nowhere.yaml",
        "kubectl scale inferenceservices/other --replicas 2",
        "kubectl logs deployment/slipway",
        "kubectl explain inferenceservices.spec.engine.maxNumSequences",
        "kubectl get inferenceservices --watch-only",
        "kubectl create secret generic nobody-reads-it --from-literal=key=x",
        "kubectl wait inferenceservices/demo --for=condition=Prepared",
        """kubectl patch inferenceservices/demo --patch '{"spec": {"suspended": true}}'""",
        """kubectl patch inferenceservices/demo --patch '{"spec": {"suspend": "yes"}}'""",
        "helm install slipway helm/nowhere --namespace slipway-system",
        "helm install slipway helm/slipway --namespace slipway-system --set openShift=true",
        "helm install slipway helm/slipway --namespace slipway-system --values values.yaml",
        "helm rollback other --namespace slipway-system",
    ],
)
def test_a_line_that_names_what_does_not_exist_is_found(wrong: str):
    check = check_helm if wrong.startswith("helm") else check_kubectl
    with pytest.raises(FOUND):
        check(wrong, ())

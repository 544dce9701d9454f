"""The health check that the manual gives to Argo CD is of one mind with kstatus, whatever the status says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from as_printed import NOW, Object, deployment, resource
from hypothesis import given
from lupa import lua51
from test_status import conditions, kstatus, observations, refusal, serving, told

from slipway.service import InvalidService
from slipway_operator.status import Observed

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes" / "gitops.md"
KEY = "resource.customizations.health.slipway.dev_InferenceService"
HEALTH = {"Current": "Healthy", "InProgress": "Progressing", "Failed": "Degraded"}

Check = Callable[[Object], tuple[str, str]]


@pytest.fixture(scope="session")
def check() -> Check:
    """Status and message for a resource, by the check as it is printed, in the Lua that Argo CD has."""
    blocks = PAGE.read_text(encoding="utf-8").split("```yaml\n")[1:]
    documents = [yaml.safe_load(block.partition("```")[0]) for block in blocks]
    (source,) = [one["data"][KEY] for one in documents if one["kind"] == "ConfigMap"]
    lua: Any = lua51.LuaRuntime()
    run = lua.eval(f"function(obj) {source} end")

    def checked(whole: Object) -> tuple[str, str]:
        health = run(lua.table_from(whole, recursive=True))
        return health["status"], health["message"]

    return checked


def test_a_resource_that_no_operator_has_seen_is_on_its_way(check):
    assert check(resource()) == ("Progressing", "The operator has not seen this generation yet.")


def test_a_status_of_an_older_generation_is_not_believed(check):
    seen = resource(status=told(serving()))
    seen["metadata"]["generation"] = 2
    assert check(seen)[0] == "Progressing"


def test_a_model_that_serves_is_healthy_and_its_summary_is_shown(check):
    assert check(resource(status=told(serving()))) == ("Healthy", "Serving: 1 of 1 replicas admit requests")


@pytest.mark.parametrize("wish", [{"suspend": True}, {"replicas": 0}])
def test_a_model_without_replicas_is_suspended_once_they_are_gone(check, wish):
    idle = serving(resource=resource(**wish), deployment=deployment(replicas=0), pods=[])
    assert check(resource(status=told(idle)))[0] == "Suspended"
    going = serving(resource=resource(**wish), deployment=deployment(replicas=0, made=1))
    assert check(resource(status=told(going)))[0] == "Progressing"


def test_a_refused_document_is_degraded_with_the_reason_though_it_is_suspended(check):
    error = InvalidService("spec.engine.maxModelLen", "-5 is below 1.")
    refused = Observed(resource=resource(suspend=True), invalid=refusal(error), now=NOW)
    assert check(resource(status=told(refused, refused=True))) == (
        "Degraded",
        "InvalidSpec: spec.engine.maxModelLen: -5 is below 1",
    )


@given(observed=observations())
def test_it_is_of_one_mind_with_kstatus(check: Check, observed: Observed):
    whole = told(observed)
    expected = HEALTH[kstatus(whole, 1)]
    if expected == "Healthy" and "Ready" not in conditions(whole):
        expected = "Suspended"
    assert check({**observed.resource, "status": whole}) == (expected, whole["summary"])

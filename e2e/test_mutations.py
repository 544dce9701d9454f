"""Random changes of a spec: the operator fulfils or explains each, never breaks, never writes needlessly."""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.ground.control_plane import ControlPlane
from e2e.mutations import Draw
from e2e.operators import (
    DEFINITION,
    Namespace,
    Object,
    Operator,
    administrator,
    put_profile,
    served,
    service,
    taking_anything,
    until,
)
from slipway.service import Facts, InvalidService, ServiceSpec, from_mapping
from slipway.service.diff import Change, diff
from slipway.service.intent import intent_hash
from slipway.service.profile import check_profiled, read_profile
from slipway_operator.cluster import KINDS, MADE, OPTIONAL, SERVICE, Kind, Refused
from slipway_operator.reasons import BY_NAME

SUBJECTS = 6
KINDS_MADE = (*MADE, *OPTIONAL)
STILL = 0.7
"""Seconds without a change after which none is expected."""
MERGE = "application/merge-patch+json"
FACTS = Facts(kinds=frozenset(kind.name for kind in OPTIONAL))
PROFILE = {"env": [{"name": "TZ", "value": "UTC"}], "scheduling": {"nodeSelector": {"pool": "fake"}}}
PROFILES = {"demo": read_profile("demo", PROFILE)}


def facts_of(spec: ServiceSpec) -> Facts:
    return replace(FACTS, profile=PROFILES[spec.profile] if spec.profile else None)


@dataclass(slots=True)
class Subject:
    """A service that changes, and what was last seen of it."""

    name: str
    resource: Object
    good: Object
    """The last spec that was fulfilled."""
    patch: Object = field(default_factory=dict)
    refused: bool = False

    def read(self) -> ServiceSpec | InvalidService:
        """Its document as the operator should read it."""
        try:
            spec = from_mapping({**self.resource, "metadata": {"name": self.name}})
            if spec.profile is not None and spec.profile not in PROFILES:
                return InvalidService("spec.profile", f"there is no ServingProfile {spec.profile}.")
            check_profiled(spec, facts_of(spec).profile)
            return spec
        except InvalidService as error:
            return error


@pytest.fixture
def plane(plane: ControlPlane) -> ControlPlane:
    """With all that a document may call for, and nodes with devices."""
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(map(taking_anything, OPTIONAL)))
    for kind in OPTIONAL:
        served(plane, f"{kind.group}/{kind.version}/{kind.plural}")
    put_profile(plane, "demo", **PROFILE)
    plane.kwok(3, {"nvidia.com/gpu": 8})
    return plane


def test_thirty_mutations_are_fulfilled_or_explained(plane: ControlPlane, tmp_path: Path) -> None:
    mutate(plane, tmp_path, 30, seed=307)


@pytest.mark.soak
def test_three_hundred_mutations_are_fulfilled_or_explained(plane: ControlPlane, tmp_path: Path) -> None:
    mutate(plane, tmp_path, 300, seed=20261122)


def mutate(plane: ControlPlane, folder: Path, count: int, seed: int) -> None:
    namespace = Namespace(plane, "mutations")
    operator = Operator(plane, folder, "mutations")
    trial = Trial(operator, namespace)
    draw = Draw(schema(plane), seed)
    tally = {"refused": 0, "fulfilled": 0, "explained": 0}
    for first in range(0, count, SUBJECTS):
        patches = [draw.patch() for _ in range(min(SUBJECTS, count - first))]
        try:
            for outcome in trial.round(patches):
                tally[outcome] += 1
        except AssertionError as failure:
            numbered = "\n".join(f"{first + n}: {json.dumps(patch)}" for n, patch in enumerate(patches))
            raise AssertionError(f"seed {seed}, among the mutations\n{numbered}\n{failure}") from failure
    operator.stop()
    print(f"\nseed {seed}: {tally}")
    assert sum(tally.values()) == count
    assert min(tally.values()) >= count // 100, f"{tally}: the mutations say too little"
    assert operator.process.returncode == 0
    assert operator.forbidden() == set()
    assert "Traceback" not in operator.log.read_text(), operator.log.read_text()


def schema(plane: ControlPlane) -> Object:
    """Of the spec, as the API server has it."""
    crd = json.loads(plane.kubectl("get", "crd", DEFINITION.stem, "-o", "json"))
    found: Object = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


class Trial:
    """Services of one operator that are changed at the same time, one mutation each in a round."""

    def __init__(self, operator: Operator, namespace: Namespace) -> None:
        self.operator = operator
        self.namespace = namespace
        self.api = administrator(namespace.plane)
        namespace.apply(*(service(f"demo-{number}") for number in range(SUBJECTS)))
        operator.wait_active()
        self.subjects = [Subject(f"demo-{n}", {}, {}) for n in range(SUBJECTS)]
        self.settle()
        for subject in self.subjects:
            assert fulfilled(subject.resource), subject.resource["status"]
            subject.good = subject.resource["spec"]

    def round(self, patches: list[Object]) -> list[str]:
        """Mutate, wait, judge each; then mend what is not fulfilled, and look whether all rest."""
        mutated = self.subjects[: len(patches)]
        before = {subject.name: copy.copy(subject) for subject in mutated}
        children = self.children()
        written = len(self.operator.writes())
        for subject, patch in zip(mutated, patches, strict=True):
            self.change(subject, patch)
        self.settle()
        writes = self.operator.writes()[written:]
        outcomes = [
            self.judge(before[subject.name], subject, children, self.children(), writes)
            for subject in mutated
        ]
        self.mend()
        self.rest()
        return outcomes

    def ask(self, *arguments: Any) -> Object:
        with self.namespace.plane.inside():
            return self.api.call(*arguments)

    def change(self, subject: Subject, patch: Object) -> None:
        subject.patch, subject.refused = patch, False
        try:
            self.ask("PATCH", self.path(subject), None, {"spec": patch}, MERGE)
        except Refused as problem:
            if problem.status not in (400, 422):
                raise
            subject.refused = True

    def path(self, subject: Subject) -> str:
        return SERVICE.path(self.namespace.name, subject.name)

    def settle(self) -> None:
        """Wait until every service is told of as it is now, and nothing moves any more."""
        seen: list[Object] = []
        since = time.monotonic()

        def still() -> bool:
            nonlocal seen, since
            for subject in self.subjects:
                subject.resource = self.ask("GET", self.path(subject))
            now = [{s.name: s.resource for s in self.subjects}, self.children()]
            if now != seen or self.operator.metric("slipway_operator_queue_depth"):
                seen, since = now, time.monotonic()
            return time.monotonic() - since > STILL and all(told(s.resource) for s in self.subjects)

        until(still, lambda: "all is told:\n" + "\n".join(map(summary, self.subjects)))

    def children(self) -> dict[str, Object]:
        """What the operator made, and the ReplicaSets made from it, by path."""
        found: dict[str, Object] = {}
        for kind in (*KINDS_MADE, KINDS["ReplicaSet"]):
            for item in self.ask("GET", kind.path(self.namespace.name))["items"]:
                found[kind.path(self.namespace.name, item["metadata"]["name"])] = item
        return found

    def judge(
        self,
        before: Subject,
        after: Subject,
        old: Mapping[str, Object],
        new: Mapping[str, Object],
        writes: list[str],
    ) -> str:
        said = f"{after.name} {json.dumps(after.patch)}: {after.resource['status']['summary']}"
        if after.refused:
            assert after.resource["metadata"]["generation"] == before.resource["metadata"]["generation"], said
            assert not [write for write in writes if re.search(rf"/{after.name}(-\w+)?$", write)], said
            return "refused"
        valid = condition(after.resource, "Valid")
        spec = after.read()
        if isinstance(spec, InvalidService):
            assert valid["status"] == "False", said
            assert str(spec)[:500] in valid["message"], f"{said}\n{spec}"
            self.unchanged(after, old, new, KINDS_MADE)
            return "explained"
        if valid["status"] == "False":
            reasons = ("NotSupported", "API server refuses")
            assert any(reason in f"{valid['reason']} {valid['message']}" for reason in reasons), said
            return "explained"
        deployment = new[KINDS["Deployment"].path(self.namespace.name, after.name)]
        assert deployment["spec"]["replicas"] == (0 if spec.suspend else spec.replicas), said
        earlier = before.read()
        assert isinstance(earlier, ServiceSpec), "what was mended is fulfilled"
        predicted = diff(earlier, spec, facts_of(earlier), facts_of(spec))
        touched = {one.kind for one in predicted.objects if one.change is not Change.UNCHANGED}
        if predicted.restart or intent_hash(earlier) != intent_hash(spec):
            touched.add("ControllerRevision")
        self.unchanged(after, old, new, [kind for kind in KINDS_MADE if kind.name not in touched])
        self.same_pods(after, old, new, same=not predicted.restart)
        return "fulfilled" if fulfilled(after.resource) else "explained"

    def unchanged(
        self, subject: Subject, old: Mapping[str, Object], new: Mapping[str, Object], kinds: Sequence[Kind]
    ) -> None:
        """Nobody has written the objects of these kinds, apart from the status that Kubernetes keeps."""
        for kind in kinds:
            folder = f"{kind.path(self.namespace.name)}/"
            for path in {*old, *new}:
                if path.startswith(folder) and of(subject, new.get(path) or old[path]):
                    assert path in old, f"{path} was made for {json.dumps(subject.patch)}"
                    assert path in new, f"{path} was deleted for {json.dumps(subject.patch)}"
                    assert essence(old[path]) == essence(new[path]), f"{path}: {json.dumps(subject.patch)}"

    def same_pods(
        self, subject: Subject, old: Mapping[str, Object], new: Mapping[str, Object], *, same: bool
    ) -> None:
        """The template is the one before exactly where it should be, and then so are the ReplicaSets."""
        place = KINDS["Deployment"].path(self.namespace.name, subject.name)
        kept = old[place]["spec"]["template"] == new[place]["spec"]["template"]
        assert kept == same, json.dumps(subject.patch)
        folder = f"{KINDS['ReplicaSet'].path(self.namespace.name)}/"
        before, after = (
            {path for path, item in them.items() if path.startswith(folder) and of(subject, item)}
            for them in (old, new)
        )
        assert before == after or not same, json.dumps(subject.patch)

    def rest(self) -> None:
        """A reconciliation without a reason writes nothing."""
        before = self.children()
        written, count = len(self.operator.writes()), self.operator.reconciled()
        for subject in self.subjects:
            note = {"metadata": {"annotations": {"note": str(count)}}}
            self.ask("PATCH", self.path(subject), None, note, MERGE)
        until(lambda: self.operator.reconciled() >= count + len(self.subjects), "all are looked at")
        until(lambda: self.operator.metric("slipway_operator_queue_depth") == 0, "an empty queue")
        assert self.operator.writes()[written:] == []
        assert self.children() == before
        assert self.operator.metric('slipway_operator_reconciles_total{outcome="failed"}') == 0

    def mend(self) -> None:
        """Give a service whose spec is not fulfilled the last one that was: it is so again."""
        broken = []
        for subject in self.subjects:
            if fulfilled(subject.resource):
                subject.good = subject.resource["spec"]
                continue
            broken.append(subject)
            current = self.ask("GET", self.path(subject))
            self.ask("PUT", self.path(subject), None, {**current, "spec": subject.good})
        if broken:
            self.settle()
        for subject in broken:
            assert fulfilled(subject.resource), (
                f"{subject.name} after {json.dumps(subject.patch)}: {summary(subject)}"
            )


def of(subject: Subject, item: Object) -> bool:
    return item["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == subject.name


def essence(item: Object) -> Object:
    """The object but for what others than the operator keep on it."""
    metadata = item["metadata"]
    return {
        "uid": metadata["uid"],
        "labels": metadata.get("labels"),
        "generation": metadata.get("generation"),
        "spec": item.get("spec"),
        "revision": item.get("revision"),
        "data": item.get("data"),
        "applied": [entry for entry in metadata["managedFields"] if entry["manager"] == "slipway-operator"],
    }


def condition(resource: Object, kind: str) -> Object:
    conditions = resource.get("status", {}).get("conditions") or ()
    return next((item for item in conditions if item["type"] == kind), {})


def fulfilled(resource: Object) -> bool:
    """All replicas serve, or none is wanted."""
    ready = condition(resource, "Ready")
    return ready.get("status", "True") == "True" and not condition(resource, "Reconciling")


def told(resource: Object) -> bool:
    """Whether the status is about this very spec and says what is, or what is in the way."""
    status = resource.get("status", {})
    if status.get("observedGeneration") != resource["metadata"]["generation"]:
        return False
    if fulfilled(resource):
        return True
    ready = condition(resource, "Ready") or condition(resource, "Progressing")
    return not BY_NAME[ready["reason"]].calm and bool(ready["message"])


def summary(subject: Subject) -> str:
    status = subject.resource.get("status", {})
    return f"{subject.name}: {status.get('summary')} after {json.dumps(subject.patch)}"

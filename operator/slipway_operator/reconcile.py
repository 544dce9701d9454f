"""From a resource to what the cluster has: observe, render, write what differs, update the status."""

from __future__ import annotations

import datetime
import logging
from dataclasses import dataclass, replace

from slipway.service import Facts, InvalidService, ServiceSpec, from_mapping, render
from slipway.service.engine import check_supported
from slipway.service.facts import Owner
from slipway.service.fit_pod import fit_pod, is_fit_pod
from slipway.service.intent import pod_template
from slipway.service.profile import ServingProfile, check_profiled, misfits_of
from slipway.service.render import deployment, network_policies
from slipway.service.rollout import claims_of, exclusive_claims, said_of_room
from slipway_operator import conditions, memory, reasons
from slipway_operator.cluster import KINDS, MADE, OPTIONAL, SERVICE, Cluster, Object, Refused
from slipway_operator.discovery import Claims, Nodes
from slipway_operator.drift import foreign_env, needs_apply
from slipway_operator.events import PodEvents, Recorder, transitions
from slipway_operator.fits import devices_of, is_asked, judged, stands
from slipway_operator.informer import MANAGER, Children, Key, Store, place_of, slim
from slipway_operator.pace import Pace, only_words_differ
from slipway_operator.pod_findings import current_pods
from slipway_operator.pod_findings import refusal as refusal_by_admission
from slipway_operator.profile_store import Profiles
from slipway_operator.progress import INTERVAL, Loading, memories
from slipway_operator.reasons import Finding
from slipway_operator.settings import Settings
from slipway_operator.shapes import (
    claims,
    controller,
    current_replica_set,
    has_ended,
    is_false,
    is_going,
    is_ready,
    name,
    owned_by,
    uid,
    users,
)
from slipway_operator.status import Observed, refusal, status
from slipway_operator.surge import no_room
from slipway_operator.template_pin import Pinned, in_force, pin
from slipway_operator.volume_types import volume_advice
from slipway_operator.wordings import MALFORMED, WEBHOOK_AWAY
from slipway_operator.writer import Writer

LOOK_AGAIN = 30.0
"""Seconds until the next look where what is waited for is none of ours, so that no event will tell."""

log = logging.getLogger(__name__)


class Gone(Exception):
    """The resource was deleted while nobody told us."""


class NotApplied(Exception):
    """The status is written, but something still has to be written: try again after a back-off."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the document asks for; no objects where it cannot be rendered."""

    spec: ServiceSpec | None
    objects: tuple[Object, ...] = ()
    invalid: Finding | None = None
    upgrade: str | None = None
    arguments: Finding | None = None
    """Whether the image takes them; None where it is the operator's own."""
    fit: Finding | None = None
    """Why pods stay as they are though the document is in order: it is asked whether its model fits, or it
    fits nothing."""


@dataclass(slots=True)
class Outcome:
    """How the writes went."""

    conflict: str | None = None
    refused: Finding | None = None
    left_over: bool = False
    """Whether an object of a deleted resource of our name still stands in the way."""
    checked: bool = False
    """Whether the resource is surely there."""


class Reconciler:
    """Brings one service at a time to what its document says. Writes nothing where nothing differs."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        resources: Store,
        children: Children,
        profiles: Profiles,
        writer: Writer,
        recorder: Recorder,
        pace: Pace,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._resources = resources
        self._children = children
        self._profiles = profiles
        self._writer = writer
        self._recorder = recorder
        self._pace = pace
        self.nodes = Nodes(cluster, permitted=not settings.namespaces)
        self._claims = Claims(cluster)
        self.pod_events = PodEvents(cluster)
        self.loading = Loading()
        self.kinds: frozenset[str] | None = None
        """Optional kinds that the cluster has; None until it has been asked."""

    async def reconcile(self, key: Key) -> float | None:
        """Seconds after which to look again, or None: an event will tell.

        Raises NotActive, Refused, Unreachable and NotApplied: the caller tries again after a back-off.
        """
        resource = self._resources.get(*key)
        if resource is None:
            self._claims.forget(key)
            self._pace.forget(key)
        if resource is None or is_going(resource):
            return None  # the garbage collector takes what it owned
        try:
            wanted = await self._wanted(resource)
            outcome = await self._apply(resource, wanted)
        except Gone:
            self._resources.drop(resource)
            return None
        again = await self._update_status(resource, wanted, outcome)
        if outcome.refused and self._current(resource):
            raise NotApplied(outcome.refused.message)
        return again

    async def _wanted(self, resource: Object) -> Wanted:
        """The document rendered, with the pod template that is pinned for it."""
        facts = self._facts(resource)
        document = {**resource, "metadata": {**resource["metadata"]}}
        try:
            spec = from_mapping(document, self._settings.policy)
            profile = await self._profiles.chosen(spec)
            whole = check_profiled(spec, profile)
            check_supported(whole)
            facts = replace(
                facts, profile=profile, exclusive_claims=await self._exclusive_claims(resource, spec)
            )
            pinned = self._pinned(resource, spec, facts)
            arguments = self._arguments(whole, profile)
            if pinned.is_new and arguments is not None and arguments.reason is reasons.ARGUMENTS_REFUSED:
                return Wanted(None, invalid=arguments, arguments=arguments)
            if pinned.is_new and spec.rollout.fit != "Off":
                of_new = replace(facts, template=pinned.template)
                fit = await self._waits_for_fit(resource, spec, whole, of_new)
                if fit is not None:
                    return Wanted(spec, self._unrolled(resource, spec, facts), arguments=arguments, fit=fit)
            room = await no_room(
                self._cluster, self.nodes, whole, pinned.template, self._own(resource, "Deployment")
            )
            objects = render(spec, replace(facts, no_room=room, template=pinned.template))
        except InvalidService as error:
            return Wanted(None, invalid=refusal(error))
        order = [kind.name for kind in (*MADE, *OPTIONAL)]
        objects = sorted([pinned.revision, *objects], key=lambda item: order.index(item["kind"]))
        return Wanted(spec, tuple(objects), upgrade=pinned.upgrade, arguments=arguments)

    def _arguments(self, spec: ServiceSpec, profile: ServingProfile | None) -> Finding | None:
        """Whether the image takes them, of a document that has its profile's parts."""
        image = spec.runtime.image
        facts = self._settings.facts
        if image in (None, facts.cpu_image, facts.cuda_image):
            return None
        found = misfits_of(spec, profile)
        if found is None:
            return reasons.SCHEMA_UNKNOWN.found(f"no profile has the schema of {image}.")
        if not found:
            return reasons.SCHEMA_MATCHES.found(f"{image} takes the arguments.")
        return reasons.ARGUMENTS_REFUSED.found(f"{image} does not take the arguments. {' '.join(found)}")

    def _facts(self, resource: Object) -> Facts:
        settings, metadata = self._settings, resource["metadata"]
        return settings.facts.of_service(
            kinds=self.kinds or frozenset(),
            namespace=metadata["namespace"],
            owner=Owner(metadata["name"], metadata["uid"]),
            operator_namespace=settings.lease_namespace,
        )

    async def _waits_for_fit(
        self, resource: Object, spec: ServiceSpec, whole: ServiceSpec, facts: Facts
    ) -> Finding | None:
        """Why new pods are not rolled out yet; None where nothing holds them up.

        Raises Gone, NotActive, Refused and Unreachable.
        """
        assert facts.template is not None
        pod_spec = facts.template["spec"]
        if not is_asked(whole, pod_spec):
            return None
        devices = devices_of(await self.nodes.all(), whole, pod_spec)
        if not devices:
            return stands(resource)
        pod = fit_pod(spec, facts, devices)
        held = exclusive_claims(spec, facts).keys() & claims(pod)
        if held and self._own(resource, "Deployment"):
            return None  # the pods that run may have it on another node
        await self._tidy(resource, pod)
        live = self._live(pod)
        if live is None or not owned_by(live, resource):
            live = None
            if problem := await self._ask(resource, spec, facts, pod):
                log.warning("%s: rolling out unasked: %s", "/".join(place_of(resource)), problem)
                return None
        return judged(resource, pod, live, datetime.datetime.now(datetime.UTC))

    async def _ask(self, resource: Object, spec: ServiceSpec, facts: Facts, pod: Object) -> str | None:
        """Make the pod that asks whether the model fits, after the NetworkPolicy for it. The cause where that
        is not possible, else None."""
        outcome = Outcome()
        policies = [one for one in network_policies(spec, facts) if not self._selects_as_wanted(one)]
        for item in (*policies, pod):
            await self._apply_one(resource, item, outcome)
            if outcome.refused:
                return outcome.refused.message
            if outcome.conflict:
                return outcome.conflict
            if outcome.left_over:
                return f"{item['kind']} {name(item)} of a deleted {SERVICE.name} is still there."
        return None

    def _selects_as_wanted(self, policy: Object) -> bool:
        """Whether the NetworkPolicy is there and selects the right pods. Its rules stay as they are."""
        live = self._live(policy)
        return live is not None and live["spec"]["podSelector"] == policy["spec"]["podSelector"]

    def _unrolled(self, resource: Object, spec: ServiceSpec, facts: Facts) -> tuple[Object, ...]:
        """The Deployment with the template that runs, so that replicas and suspend are applied at once."""
        live, revision = self._own(resource, "Deployment"), in_force(self._revisions(resource), spec)
        if live is None or revision is None:
            return ()
        room = said_of_room(live["metadata"].get("annotations") or {})
        return (deployment(spec, replace(facts, template=revision["data"]["template"], no_room=room)),)

    async def _tidy(self, resource: Object, asked: Object | None = None) -> None:
        """Delete the pods that ask whether the model fits, but for the one that is asked now."""
        store = self._children.stores["Pod"]
        service = name(resource)
        for pod in [one for one in store.names(place_of(resource)) if is_fit_pod(service, one)]:
            item = None if asked is not None and pod == name(asked) else store.get(place_of(resource)[0], pod)
            if item is not None and owned_by(item, resource) and not is_going(item):
                await self._writer.delete(item, store)

    def _pinned(self, resource: Object, spec: ServiceSpec, facts: Facts) -> Pinned:
        return pin(spec, facts, in_force(self._revisions(resource), spec), pod_template)

    def _revisions(self, resource: Object) -> list[Object]:
        revisions = self._children.of("ControllerRevision", place_of(resource))
        return [revision for revision in revisions if owned_by(revision, resource)]

    async def _exclusive_claims(self, resource: Object, spec: ServiceSpec) -> dict[str, str]:
        """The claims that not every node can mount, with their modes, where the document does not say it."""
        unsaid = [claim for claim, mode in claims_of(spec).items() if mode is None]
        if not unsaid:
            return {}
        key = place_of(resource)
        pods = self._children.of("Pod", key)
        modes = {claim: await self._claims.exclusive(key, claim, users(pods, claim)) for claim in unsaid}
        return {claim: mode for claim, mode in modes.items() if mode}

    async def _apply(self, resource: Object, wanted: Wanted) -> Outcome:
        """Write what differs, remove what is no longer rendered. Raises Gone, NotActive and Unreachable."""
        outcome = Outcome()
        if not wanted.objects:
            return outcome  # refused now, it may have been served before: what runs, runs on
        for item in wanted.objects:
            await self._apply_one(resource, item, outcome)
        if not outcome.refused and wanted.fit is None:
            await self._prune(resource, wanted)
        return outcome

    async def _apply_one(self, resource: Object, item: Object, outcome: Outcome) -> None:
        """Write one object if it differs; `outcome` learns how that went."""
        try:
            live = self._live(item) or await self._unlabelled(item)
            if live is None and not outcome.checked:
                await self._check_owner(resource)
                outcome.checked = True
            if live is None or owned_by(live, resource):
                await self._write(resource, item, live)
            elif _left_over(resource, live):
                outcome.left_over = True
            else:
                outcome.conflict = outcome.conflict or _conflict(resource, live)
        except Refused as problem:
            if may_pass(problem):
                raise
            outcome.refused = outcome.refused or refused(item, problem)

    def _live(self, item: Object) -> Object | None:
        return self._children.stores[item["kind"]].get(*place_of(item))

    async def _unlabelled(self, item: Object) -> Object | None:
        """An object of the wanted name that no watch of ours shows: a stranger's, or ours without a label."""
        kind = KINDS[item["kind"]]
        found = await self._cluster.find(kind.path(*place_of(item)))
        return slim(found, kind) if found else None

    async def _check_owner(self, resource: Object) -> None:
        """A missing child may be missing because the resource was deleted in a gap of kopf's watch."""
        there = await self._cluster.find(SERVICE.path(*place_of(resource)))
        if there is None or uid(there) != uid(resource) or is_going(there):
            raise Gone

    async def _write(self, resource: Object, item: Object, live: Object | None) -> None:
        """Apply the object if it differs from the live one, which is ours."""
        if live is not None and (is_going(live) or item["kind"] == "Pod"):
            return  # its end will be an event, and what a pod asks never changes
        difference = needs_apply(item, live, MANAGER)
        if difference is None:
            return
        log.info("%s: applying: %s", "/".join(place_of(resource)), difference)
        await self._writer.apply(item, live, self._children.stores[item["kind"]])

    async def _prune(self, resource: Object, wanted: Wanted) -> None:
        """Delete what we made for this resource and render no more."""
        await self._tidy(resource)
        kept = {(item["kind"], item["metadata"]["name"]) for item in wanted.objects}
        for kind, store in [*self._children.stores.items()]:
            if kind in ("ReplicaSet", "Pod"):
                continue
            for item_name in store.names(place_of(resource)):
                item = None if (kind, item_name) in kept else store.get(place_of(resource)[0], item_name)
                if item is None or not owned_by(item, resource):
                    continue
                log.info("%s: deleting %s %s", "/".join(place_of(resource)), kind, item_name)
                await self._writer.delete(item, store)

    async def _update_status(self, resource: Object, wanted: Wanted, outcome: Outcome) -> float | None:
        """Bring .status up to date; in how many seconds more may be known."""
        key = place_of(resource)
        current = self._current(resource)
        if current is None:
            return None  # what we rendered is not what is asked for now: the key is in the queue again
        deployment = self._own(resource, "Deployment")
        owner = [deployment] if deployment else []
        replica_sets = [one for one in self._children.of("ReplicaSet", key) if owned_by(one, *owner)]
        pods = [one for one in self._children.of("Pod", key) if owned_by(one, *replica_sets)]
        now = datetime.datetime.now(datetime.UTC)
        replica_set = current_replica_set(replica_sets, deployment)
        mine = current_pods(pods, replica_set)
        serving = list(filter(is_ready, mine))
        known = memory.told_before(current, replica_set)
        unmeasured = serving[0] if serving and not memory.is_whole(known) else None
        said, next_answer = self.loading.of(pods, now, unmeasured)
        # Of a server that answers how far it is no event says more, unless it has ended before; and each
        # question for events has the API server look at all those of the namespace.
        unexplained = [pod for pod in pods if name(pod) not in said or has_ended(pod)]
        events, next_event = await self.pod_events.of(unexplained, now)
        observed = Observed(
            resource=current,
            deployment=deployment,
            replica_sets=replica_sets,
            pods=pods,
            events=events,
            service=self._own(resource, "Service"),
            conflict=outcome.conflict,
            invalid=wanted.invalid or outcome.refused,
            fit=wanted.fit,
            drift=foreign_env(deployment, MANAGER) if deployment else (),
            upgrade=wanted.upgrade,
            missing_monitor=self._missing_monitor(wanted.spec),
            arguments=wanted.arguments,
            nodes=await self.nodes.all() if any(is_false(pod, "PodScheduled") for pod in pods) else (),
            progress={pod: one.progress for pod, one in said.items() if one.progress},
            awaited=self.loading.awaited(pods, now),
            memory=memory.told(known, replica_set, memories(mine, said)),
            now=now,
        )
        after = status(observed, wanted.spec)
        before = current.get("status") or {}
        if after == before:
            self._pace.clear(key)
        elif self._pace.admits(key, urgent=not only_words_differ(before, after)):
            await self._writer.set_status(current, after, self._resources)
            for transition in transitions(before, after):
                await self._recorder.post(current, transition)
        if next_answer is not None:
            # Until shortly before it can be written nobody needs to know how far the pods are.
            next_answer = max(next_answer, self._pace.expected(key) - INTERVAL)
        if outcome.conflict or outcome.left_over or wanted.fit:
            return LOOK_AGAIN
        return min((wait for wait in (next_event, next_answer) if wait is not None), default=None)

    def _missing_monitor(self, spec: ServiceSpec | None) -> str | None:
        if spec is None or not spec.monitoring.enabled or self.kinds is None:
            return None
        return None if spec.monitoring.kind in self.kinds else spec.monitoring.kind

    def _current(self, resource: Object) -> Object | None:
        """The resource as it is known now, while it still asks for what `resource` does."""
        current = self._resources.get(*place_of(resource))
        same = current and current["metadata"]["generation"] == resource["metadata"]["generation"]
        return current if same else None

    def _own(self, resource: Object, kind: str) -> Object | None:
        """The resource's Deployment or Service, which carries its name."""
        item = self._children.stores[kind].get(*place_of(resource))
        return item if item and owned_by(item, resource) else None


def _left_over(resource: Object, item: Object) -> bool:
    """Whether it belonged to a deleted resource of our name: the garbage collector is about to take it."""
    owner = controller(item) or {}
    return (owner.get("kind"), owner.get("name")) == (SERVICE.name, resource["metadata"]["name"])


def _conflict(resource: Object, item: Object) -> str:
    kind, name = item["kind"], item["metadata"]["name"]
    owner = controller(item)
    whose = f"belongs to {owner['kind']} {owner['name']}" if owner else "was not made by this resource"
    return (
        f"{kind} {name} {whose} and is left alone. "
        f"Give this {SERVICE.name} another name, or delete that {kind}."
    )


def refused(item: Object, problem: Refused) -> Finding:
    """What to report of an object that the API server will not have."""
    what = f"{item['kind']} {item['metadata']['name']}"
    if sentence := refusal_by_admission(str(problem), what):
        return reasons.ADMISSION_REFUSED.found(sentence, conditions.PROGRESSING)
    words, malformed = MALFORMED.pattern.subn("", str(problem))
    invalid = malformed or problem.status in (400, 422)
    text = f"The API server refuses {what}: {words}"
    if advice := volume_advice(words):
        return reasons.ADMISSION_REFUSED.found(f"{advice}. {text}", conditions.PROGRESSING)
    if invalid:
        return reasons.INVALID_SPEC.found(text)
    return reasons.ADMISSION_REFUSED.found(text, conditions.PROGRESSING)


def may_pass(problem: Refused) -> bool:
    """Whether another try may succeed though nobody changes anything."""
    lasting = MALFORMED.search(str(problem)) or WEBHOOK_AWAY.search(str(problem))
    return problem.status in (401, 404, 409, 429) or (problem.status >= 500 and not lasting)

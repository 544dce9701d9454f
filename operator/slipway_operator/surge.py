"""Whether a new pod finds room beside the old ones, for `spec.rollout.maxSurge: Auto`."""

from __future__ import annotations

from slipway.service.labels import selector
from slipway.service.rollout import AUTO, said_of_room, surge_of
from slipway.service.spec import ServiceSpec
from slipway_operator.cluster import KINDS, Cluster
from slipway_operator.demand import admitted, allocatable, importance, labels, lacking, request, resources
from slipway_operator.discovery import Nodes
from slipway_operator.drift import rolls
from slipway_operator.informer import MANAGER
from slipway_operator.shapes import Object, Objects, name


async def no_room(
    cluster: Cluster, nodes: Nodes, whole: ServiceSpec, template: Object, live: Object | None
) -> str | None:
    """Why no pod of the template fits beside those that run, in a clause; None where one does, where the end
    of the old ones would not help, or where nobody asked. A rollout goes on as it began: its Deployment says
    how.

    whole  the document with its profile's parts

    Raises Unreachable and Refused.
    """
    if surge_of(whole) != AUTO or live is None:
        return None
    if not rolls(template, live, MANAGER):
        return said_of_room(live["metadata"].get("annotations") or {})
    if not (live.get("status") or {}).get("replicas"):
        return None  # nobody is in the way
    return await _no_node(cluster, nodes, template["spec"], live)


async def _no_node(cluster: Cluster, nodes: Nodes, pod_spec: Object, live: Object) -> str | None:
    if claims := pod_spec.get("resourceClaims"):
        if shared := [claim["resourceClaimName"] for claim in claims if "resourceClaimName" in claim]:
            return f"a new pod would share the devices of claim {shared[0]} with the pods that run"
        return "what claims have free is not known before a pod asks"
    known = await nodes.all()
    if not known:
        return "the operator may not see what nodes have free"
    # What no node has is another scheduler's to count, as HAMi counts shares of a GPU.
    counted = {wanted for wanted in resources(pod_spec) for node in known if allocatable(node, wanted)[0]}
    short: set[str] = set()
    helps = False
    for node in sorted((node for node in known if admitted(node, pod_spec)), key=name):
        if counted & {*lacking(pod_spec, node, ())}:
            continue  # of one that is too small when it is empty nobody need know what runs there
        pods = await _pods_on(cluster, name(node))
        missing = counted & {*lacking(pod_spec, node, pods)}
        if not missing:
            return None
        short |= missing
        others = [pod for pod in pods if not _of(live, pod)]
        helps = helps or not counted & {*lacking(pod_spec, node, others)}
    if not helps:
        return None  # the old pods serve on while the new one waits
    wanted = min(short, key=importance)
    return f"no node has {wanted} {request(pod_spec, wanted)[1]} free beside the pods that run"


def _of(deployment: Object, pod: Object) -> bool:
    """Whether the pod is one of the Deployment's."""
    same = pod["metadata"].get("namespace") == deployment["metadata"].get("namespace")
    return same and selector(name(deployment)).items() <= labels(pod).items()


async def _pods_on(cluster: Cluster, node: str) -> Objects:
    """Those that hold something, of every namespace; only whose they are and what they ask for."""
    living = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    return await cluster.ask_for_all(KINDS["Pod"].path(None), _asking, query={"fieldSelector": living})


def _asking(pod: Object) -> Object:
    metadata = pod["metadata"]
    return {
        "metadata": {"namespace": metadata["namespace"], "labels": metadata.get("labels") or {}},
        "spec": pod["spec"],
    }

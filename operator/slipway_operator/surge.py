"""Whether a new pod finds room beside the old ones, for `spec.rollout.maxSurge: Auto`."""

from __future__ import annotations

from slipway.service.rollout import said_of_room, surges_where_it_fits
from slipway.service.spec import ServiceSpec
from slipway_operator.cluster import KINDS, Cluster
from slipway_operator.demand import admitted, importance, lacking, request, resources
from slipway_operator.differences import rolls
from slipway_operator.discovery import Nodes
from slipway_operator.informer import MANAGER
from slipway_operator.shapes import Object, name


async def no_room(
    cluster: Cluster, nodes: Nodes, spec: ServiceSpec, template: Object, live: Object | None
) -> str | None:
    """Why no pod of the template fits beside those that run, in a clause; None where one does, or where
    nobody asked. A rollout goes on as it began: what was said then is on its Deployment.

    Raises Unreachable and Refused.
    """
    if not surges_where_it_fits(spec) or live is None:
        return None
    if not rolls(template, live, MANAGER):
        return said_of_room(live["metadata"].get("annotations") or {})
    if not (live.get("status") or {}).get("replicas"):
        return None  # nobody is in the way
    return await _no_node(cluster, nodes, template["spec"])


async def _no_node(cluster: Cluster, nodes: Nodes, pod_spec: Object) -> str | None:
    if claims := pod_spec.get("resourceClaims"):
        if shared := [claim["resourceClaimName"] for claim in claims if "resourceClaimName" in claim]:
            return f"a new pod would share the devices of claim {shared[0]} with the pods that run"
        return "what claims have free is not known before a pod asks"
    known = await nodes.all()
    if not known:
        return "the operator may not see what nodes have free"
    short: set[str] = set()
    for node in sorted((node for node in known if admitted(node, pod_spec)), key=name):
        # Of one that is too small when it is empty nobody need know what runs there.
        missing = lacking(pod_spec, node, ()) or lacking(pod_spec, node, await _pods_on(cluster, name(node)))
        if not missing:
            return None
        short |= {*missing}
    wanted = sorted(short or resources(pod_spec), key=importance)
    asked = f" {wanted[0]} {request(pod_spec, wanted[0])[1]}" if wanted else " room"
    return f"no node has{asked} free beside the pods that run"


async def _pods_on(cluster: Cluster, node: str) -> list[Object]:
    """Those that hold something, of every namespace; only what they ask for."""
    living = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    return await cluster.ask_for_all(
        KINDS["Pod"].path(None), lambda pod: {"spec": pod["spec"]}, query={"fieldSelector": living}
    )

"""Nodes without machines, for scale: kwok says that what is scheduled onto them runs."""

from __future__ import annotations

import json
from collections.abc import Mapping

MODULE = "sigs.k8s.io/kwok"
# Below the module's folder: how nodes become ready and pods run at once. kwok knows none by itself.
STAGES = "kustomize/stage/fast"
MARK = "kwok.x-k8s.io/node"


def nodes(count: int, devices: Mapping[str, int], pool: str) -> str:
    """A list of `count` nodes for kubectl, each with 32 CPUs, 256 GiB and the devices, by resource name.

    pool  is a label of theirs, and how their names begin
    """
    amounts = {"cpu": "32", "memory": "256Gi", "pods": "250", **{k: str(v) for k, v in devices.items()}}
    items = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"{pool}-{number}",
                "labels": {
                    "kubernetes.io/hostname": f"{pool}-{number}",
                    "kubernetes.io/arch": "amd64",
                    "type": "kwok",
                    "pool": pool,
                },
                "annotations": {MARK: "fake"},
            },
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        for number in range(count)
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})

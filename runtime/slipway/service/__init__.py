"""The service document and what it becomes: Kubernetes objects, a podman command, a Compose file, a process.

One pure function makes the objects, `render(spec, facts)`; the operator, the command line and the
tests share it. Nothing here imports torch or talks to a cluster.
"""

from slipway.service.compose import compose_file
from slipway.service.document import from_mapping, load, warnings
from slipway.service.facts import Facts, Owner
from slipway.service.fields import InvalidService
from slipway.service.local import LocalStart, local_start
from slipway.service.podman import podman_command
from slipway.service.policy_values import Policy
from slipway.service.quadlet import quadlet_unit
from slipway.service.render import render
from slipway.service.spec import API_VERSION, KIND, ServiceSpec

__all__ = [
    "API_VERSION",
    "KIND",
    "Facts",
    "InvalidService",
    "LocalStart",
    "Owner",
    "Policy",
    "ServiceSpec",
    "compose_file",
    "from_mapping",
    "load",
    "local_start",
    "podman_command",
    "quadlet_unit",
    "render",
    "warnings",
]

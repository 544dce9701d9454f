"""Names and addresses. Every ground has a network of its own, so all of them use the same addresses."""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

PREFIX = "slipway-e2e-"

NODE = "node"
REGISTRY_PORT = 5000
REGISTRY = f"127.0.0.1:{REGISTRY_PORT}"
API_PORT = 6443


@dataclass(frozen=True, slots=True)
class Addresses:
    """Of one family. The loopback has IPv4 either way, as on a machine whose network has none."""

    node: str
    network: str
    """The node's, with its length."""
    pods: str
    pods_of_node: str
    """The part of that which the controllers give to the first node."""
    services: str
    first_service: str
    everywhere: str
    """What a server binds to for all addresses of its own."""
    all: str
    """The route to everything."""


V4 = Addresses(
    node="10.77.0.1",
    network="10.77.0.1/24",
    pods="10.78.0.0/16",
    pods_of_node="10.78.0.0/24",
    services="10.79.0.0/16",
    first_service="10.79.0.1",
    everywhere="0.0.0.0",
    all="0.0.0.0/0",
)
SECOND = replace(V4, node="10.77.0.2", network="10.77.0.2/24", pods_of_node="10.78.1.0/24")
"""Of a node beside the first."""
V6 = Addresses(
    node="fd77::1",
    network="fd77::1/64",
    pods="fd78::/56",
    pods_of_node="fd78::/64",
    services="fd79::/112",
    first_service="fd79::1",
    everywhere="::",
    all="::/0",
)


def parent() -> Path:
    """The folder that holds the work folders of all grounds."""
    return Path(tempfile.gettempdir())


@dataclass(frozen=True, slots=True)
class Ground:
    """One test ground by its name, and everything that can be found from that name alone.

    Whoever clears a ground away, perhaps after its owner was killed, knows nothing else: each process is in
    `netns` or in the control group `/name`, each mount and file is under `folder`.
    """

    name: str

    @classmethod
    def fresh(cls) -> Ground:
        # Short: containerd's sockets lie below the folder, and a socket's path has 107 characters at most.
        return cls(PREFIX + secrets.token_hex(4))

    @property
    def folder(self) -> Path:
        return parent() / self.name

    @property
    def netns(self) -> Path:
        return Path("/run/netns") / self.name

    @property
    def owner(self) -> Path:
        """The file that says which process the ground belongs to."""
        return self.folder / "owner"

"""Names and addresses. Every ground has a network of its own, so all of them use the same addresses."""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

PREFIX = "slipway-e2e-"

NODE = "node"
NODE_ADDRESS = "10.77.0.1"
NETWORK_LENGTH = 24
POD_RANGE = "10.78.0.0/16"
NODE_POD_RANGE = "10.78.0.0/24"
SERVICE_RANGE = "10.79.0.0/16"
FIRST_SERVICE = "10.79.0.1"
DNS_SERVICE = "10.79.0.10"
REGISTRY = "127.0.0.1:5000"
API_PORT = 6443


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

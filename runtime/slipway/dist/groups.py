"""Ranks as torch's process groups: NCCL between devices, gloo between processes.

What is sent has a shape that all ranks know. Nothing here pickles: torch's calls for objects do, and are not
used.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, Store
from torch.distributed import ProcessGroupGloo, ProcessGroupNCCL

from slipway.dist.ports import interface_of, without_listeners

LOOPBACK = "127.0.0.1"
NCCL = {"NCCL_RUNTIME_CONNECT": "0", "NCCL_GRAPH_REGISTER": "0"}
"""Unless the environment says otherwise. NCCL connects at once, and registers nothing for a graph: either
would have a capture wait for the other ranks, each of which captures when it has time."""
TIMEOUT = timedelta(minutes=10)
"""Longest wait for the other ranks: weights are read between two calls. A rank that dies is found before."""


class Group:
    """Ranks that compute together. Each makes the same calls in the same order.

    device  where its tensors lie: NCCL's calls are launched as kernels are and wait for nothing, gloo's wait
    """

    def __init__(
        self,
        store: Store,
        name: str,
        rank: int,
        size: int,
        device: torch.device,
        address: str = LOOPBACK,
    ) -> None:
        """
        name     of these ranks among those that share the store
        address  of this host, on which gloo listens until all are connected, and NCCL as long as it lives
        """
        self.rank, self.size = rank, size
        gloo: Any = ProcessGroupGloo  # whose stubs have little of it
        options = gloo._Options()
        options._timeout = TIMEOUT
        with without_listeners():
            options._devices = [gloo.create_device(hostname=address)]
            self._host = gloo(PrefixStore(f"{name} host", store), rank, size, options)
            self.agree(True)  # behind it all are connected
        self._device = self._host
        if device.type == "cuda":
            for variable, value in (NCCL | _interface(address)).items():
                os.environ.setdefault(variable, value)
            nccl: Any = ProcessGroupNCCL
            self._device = nccl(PrefixStore(f"{name} device", store), rank, size, TIMEOUT)

    def all_reduce(self, x: Tensor) -> None:
        """x = x₀ + x₁ + …, contiguous."""
        self._device.allreduce([x]).wait()

    def all_gather(self, x: Tensor) -> Tensor:
        """x [rows, …], contiguous and of one shape on all ranks → [ranks · rows, …], in their order."""
        found = x.new_empty(self.size * len(x), *x.shape[1:])
        self._device._allgather_base(found, x).wait()
        return found

    def broadcast(self, x: Tensor) -> None:
        """x becomes the first rank's, contiguous."""
        self._device.broadcast([x], BroadcastOptions()).wait()

    def leave(self) -> None:
        """A rank is lost: its calls end, those under way too."""
        for one in {id(one): one for one in (self._device, self._host)}.values():
            one.abort()

    def told(self, own: bytes) -> list[bytes]:
        """What each rank tells the others, through the host; of one length."""
        x = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        found = x.new_empty(self.size * len(x))
        self._host._allgather_base(found, x).wait()
        return [bytes(part.tolist()) for part in found.view(self.size, -1)]

    def numbers(self, own: int) -> list[int]:
        """The same of a number."""
        return [int.from_bytes(part, "little") for part in self.told(own.to_bytes(8, "little"))]

    def agree(self, own: bool) -> bool:
        """Whether it holds for every rank."""
        return all(self.numbers(int(own)))


def _interface(address: str) -> dict[str, str]:
    """What has NCCL listen at this address of the host, and not at another: it chooses by interface."""
    name = interface_of(address)
    return {"NCCL_SOCKET_IFNAME": f"={name}"} if name else {}

"""Memory of devices that other processes of this host map, by CUDA's driver."""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from typing import Any, Protocol

import torch

from slipway.dist.groups import Group
from slipway_kernels.collective import SIZES, Peers, memory_bytes

log = logging.getLogger("slipway.engine")

_HANDLE = 64
"""Bytes of an IPC handle."""
_LAZY_PEER_ACCESS = 1
_NATIVE_ATOMICS = 3
_NON_BLOCKING = 1
COME = 0x7F
"""Every byte of a count that no round reaches."""
_PROBE = 64
"""Bytes that a peer reads before it is relied on."""


class PeerMemory(Protocol):
    """Memory of this rank that others map."""

    handle: bytes
    address: int
    number: int
    """Of its device among those of the host."""

    def reaches(self, others: list[int]) -> bool:
        """Whether devices of these numbers can be read and written from this rank's."""

    def opened(self, handle: bytes) -> int:
        """Where another rank's memory lies for this one. Raises OSError where it cannot be mapped."""

    def write(self, data: bytes) -> None:
        """Into the memory's beginning."""

    def read(self, address: int, count: int) -> bytes:
        """Of this rank's memory or another's, which has been opened."""

    def leave(self) -> None:
        """Have all of this rank's flags say that the others have come, so that no kernel waits for them."""


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * _HANDLE),)


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: object) -> None:
    status = getattr(_driver(), name)(*arguments)
    if status:
        raise OSError(f"{name} failed with CUDA's error {status}")


class CudaMemory:
    """An allocation of its own: a handle stands for all of one. It is zeros at first, and is never freed."""

    def __init__(self, device: torch.device, size: int) -> None:
        """size: ranks"""
        nbytes, self._flags = memory_bytes(size), memory_bytes(size, 0)
        torch.cuda.synchronize(device)  # the device's context is this thread's from now on
        self.number = torch.cuda.current_device()
        pointer, handle = ctypes.c_uint64(), _Handle()
        _call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        _call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(nbytes))
        _call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
        self.address, self.handle = pointer.value, bytes(handle.bytes)
        # A stream of its own, beside the one on which a kernel may wait.
        self._context, self._stream = ctypes.c_void_p(), ctypes.c_void_p()
        _call("cuCtxGetCurrent", ctypes.byref(self._context))
        _call("cuStreamCreate", ctypes.byref(self._stream), ctypes.c_uint(_NON_BLOCKING))

    def reaches(self, others: list[int]) -> bool:
        """Flags are exchanged in a peer's memory, which links without atomics do not do."""
        return all(other == self.number or self._atomics(other) for other in others)

    def opened(self, handle: bytes) -> int:
        pointer = ctypes.c_uint64()
        given = _Handle.from_buffer_copy(handle)
        _call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return pointer.value

    def write(self, data: bytes) -> None:
        _call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address), data, ctypes.c_size_t(len(data)))

    def read(self, address: int, count: int) -> bytes:
        found = ctypes.create_string_buffer(count)
        _call("cuMemcpyDtoH_v2", found, ctypes.c_uint64(address), ctypes.c_size_t(count))
        return found.raw

    def leave(self) -> None:
        _call("cuCtxSetCurrent", self._context)  # of the thread that found out
        flags = ctypes.c_uint64(self.address)
        come = ctypes.c_ubyte(COME), ctypes.c_size_t(self._flags)
        _call("cuMemsetD8Async", flags, *come, self._stream)

    def _atomics(self, other: int) -> bool:
        if other >= torch.cuda.device_count() or not torch.cuda.can_device_access_peer(self.number, other):
            return False
        found = ctypes.c_int()
        _call("cuDeviceGetP2PAttribute", ctypes.byref(found), _NATIVE_ATOMICS, self.number, other)
        return bool(found.value)


def memory_of(device: torch.device, group: Group) -> PeerMemory | None:
    """What others are to map of this rank; None where there is no kernel for it."""
    if group.size not in SIZES or device.type != "cuda":
        return None
    return CudaMemory(device, group.size)


def mapped(group: Group, memory: PeerMemory, device: torch.device, *, check: bool) -> Peers | None:
    """The ranks' memory, where they can read each other's; None: NCCL adds everything up.

    check  what a peer has written is read, beside what the driver says of the link
    Every rank decides the same.
    """
    numbers, handles = group.numbers(memory.number), group.told(memory.handle)
    addresses: list[int] = []
    fault = ""
    try:
        if memory.reaches(numbers):
            addresses = [
                memory.address if rank == group.rank else memory.opened(handle)
                for rank, handle in enumerate(handles)
            ]
        else:
            fault = f"device {memory.number} has no link with atomics to each of {numbers}"
    except OSError as error:
        fault = str(error)
    if group.agree(not fault) and check:
        fault = "" if _read_back(group, memory, addresses) else "what a peer wrote did not arrive"
    if group.agree(not fault):
        return Peers.of(group.rank, addresses, device)
    if fault:
        log.info("No custom all-reduce, NCCL adds everything up: %s.", fault)
    return None


def _read_back(group: Group, memory: PeerMemory, addresses: list[int]) -> bool:
    """Whether each rank's memory has, for this one, what that rank has written."""
    memory.write(_pattern(group.rank))
    group.agree(True)  # all have written
    found = all(memory.read(address, _PROBE) == _pattern(rank) for rank, address in enumerate(addresses))
    group.agree(True)  # all have read
    memory.write(bytes(_PROBE))
    return found


def _pattern(rank: int) -> bytes:
    return bytes((rank + 1) * (place + 3) % 251 for place in range(_PROBE))

"""Which adapters are on the device: a step's are copied from host memory, unless they are there already."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from slipway.engine.messages import AdapterRef
from slipway.engine.plan import NO_PLACE, StepPlan
from slipway.exits import Exit
from slipway.load.errors import LoadError
from slipway.model.adapters import Addition
from slipway.model.roles import Place
from slipway.worker.cache_size import GIB
from slipway.worker.device.batch import StepShape
from slipway.worker.device.low_rank import LowRank
from slipway.worker.device.pinned import HostMemory
from slipway.worker.device.state import SlotState

log = logging.getLogger("slipway.engine")

COPIES = HostMemory(
    "adapters",
    "max_cpu_loras",
    "Lower --max-cpu-loras or --max-lora-rank, or give the container more memory.",
)


class HostCopy:
    """An adapter in host memory, as it lies in a place on the device.

    Raises Exit where the host has no room for it, or the driver does not pin it.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        COPIES.check(size)
        self.experts: HostCopy | None = None
        """What it adds to experts, if anything."""
        self.memory = torch.empty(size, dtype=torch.uint8)
        self._sent: torch.cuda.Event | None = None
        if device.type == "cuda":
            COPIES.pin(self.memory, self)
            self._sent = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def send(self, place: Tensor) -> None:
        """Have the device copy it there, after all work that it was given before."""
        place.copy_(self.memory, non_blocking=True)
        if self._sent is not None:
            self._sent.record()

    def wait(self) -> None:
        """Until the device does not read it any more."""
        if self._sent is not None:
            self._sent.synchronize()
        if self.experts is not None:
            self.experts.wait()


class DeviceAdapters:
    """The adapters that the engine holds, in host memory, and those of them that steps use, on the device.

    The engine numbers the places of what it holds (`--max-cpu-loras`); the device may have fewer, as many as
    a step may have adapters (`--max-loras`). Of those there the least recently used make room. In every step
    that has some, slots are told which place of the device has theirs.
    """

    def __init__(self, low_rank: LowRank, state: SlotState, most: int) -> None:
        """most  adapters that the engine holds"""
        self._low_rank = low_rank
        self._state = state
        self._of_slot = np.full(state.num_slots, -1)
        """The engine's place of each slot's adapter; -1: it has none."""
        self._ready: dict[int, tuple[int, HostCopy]] = {}
        """By the engine's place, the adapter, by its number, that was read for it and is not there yet."""
        self._held: dict[int, HostCopy] = {}
        """By the engine's place."""
        self._spare: list[HostCopy] = []
        self._on_device = np.full(most + 1, -1, np.int32)
        """By the engine's place, that of the device; -1: it is not there. The last one is that of none."""
        self._free = list(range(low_rank.num_places))
        self._with_experts: set[int] = set()
        """Places of the device where something is added to experts."""
        self._used: dict[int, None] = {}
        """The engine's places of what is on the device, the least recently used first."""
        size, count = low_rank.place_bytes / GIB, low_rank.num_places
        log.info("%d places for adapters take %.2f GiB of the device, each %.3f", count, count * size, size)

    def read(self, adapter: AdapterRef, place: int) -> None:
        """Make an adapter ready for a place of the engine's, in any thread; for NO_PLACE it is not kept.

        Raises LoadError where it cannot be served.
        """
        copy = self._copy(adapter)
        if place == NO_PLACE:
            self._spare.append(copy)
        else:
            self._ready[place] = adapter.number, copy

    def follow(self, plan: StepPlan, shape: StepShape) -> StepShape:
        """Have the device know the adapters of the plan's requests; the step's shape, with what they are.

        Raises ValueError where these are more than a step may have.
        """
        for change in plan.adapters:
            self._put(change.place, change.adapter)
        for start in plan.starts:
            self._of_slot[start.slot] = start.adapter
        wanted = np.unique(self._of_slot[shape.slots])
        wanted = wanted[wanted >= 0]
        if len(wanted):
            self._bring(wanted.tolist())
            self._state.arena.put("adapters", self._on_device[self._of_slot])
        experts = any(self._held[place].experts is not None for place in wanted.tolist())
        return replace(shape, num_adapters=len(wanted), adapt_experts=experts)

    def sleep(self) -> None:
        """Give back the device's memory. What lies on the host comes again as steps use it."""
        self._low_rank.memory.untyped_storage().resize_(0)
        self._low_rank.experts.sleep()
        for place in list(self._used):
            self._leave(place)

    def wake(self) -> None:
        """Have the memory again. Raises torch.OutOfMemoryError."""
        memory = self._low_rank.memory
        memory.untyped_storage().resize_(memory.nbytes)
        memory.zero_()
        self._low_rank.experts.wake()

    def _copy(self, adapter: AdapterRef) -> HostCopy:
        """The adapter in host memory, in that of one that has gone where there is some."""
        try:
            copy = self._spare.pop() if self._spare else self._new_copy()
        except Exit as error:
            raise LoadError("NoSpace", str(error), hint=error.hint, argument=error.argument) from None
        copy.wait()
        try:
            copy.experts = self._expert_copy(adapter, self._low_rank.read(adapter, copy.memory))
        except BaseException:
            self._spare.append(copy)
            raise
        return copy

    def _expert_copy(self, adapter: AdapterRef, found: Mapping[Place, Addition]) -> HostCopy | None:
        """What it adds to experts, where that is something; the device has room for it then."""
        experts = self._low_rank.experts
        if not experts.wanted(found):
            return None
        try:
            experts.allocate()
            copy = HostCopy(experts.place_bytes, self._low_rank.device)
        except torch.OutOfMemoryError:
            places, size = self._low_rank.num_places, experts.place_bytes / GIB
            message = (
                f"The adapter {adapter.name} adds to experts, and the device has no room for {places} "
                f"places of {size:.2f} GiB beside what --gpu-memory-utilization leaves."
            )
            hint = "Lower --gpu-memory-utilization, --max-loras or --max-lora-rank."
            raise LoadError("NoSpace", message, hint=hint, argument="gpu_memory_utilization") from None
        except Exit as error:
            raise LoadError("NoSpace", str(error), hint=error.hint, argument=error.argument) from None
        experts.fill(found, copy.memory)
        return copy

    def _new_copy(self) -> HostCopy:
        return HostCopy(self._low_rank.place_bytes, self._low_rank.device)

    def _put(self, place: int, adapter: AdapterRef | None) -> None:
        """The engine's place has this adapter from now on; it is read now unless it has been before."""
        if place in self._used:
            self._leave(place)
        if place in self._held:
            self._spare.append(self._held.pop(place))
        number, ready = self._ready.pop(place, (0, None))
        if ready is not None and (adapter is None or adapter.number != number):
            self._spare.append(ready)
            ready = None
        if adapter is not None:
            self._held[place] = ready or self._copy(adapter)

    def _bring(self, wanted: Sequence[int]) -> None:
        """Have the adapters of these places on the device."""
        if len(wanted) > self._low_rank.num_places:
            raise ValueError(
                f"The plan has requests to {len(wanted)} adapters, and a step has room for "
                f"{self._low_rank.num_places}."
            )
        for place in wanted:
            if place not in self._used:
                if not self._free:
                    self._leave(next(one for one in self._used if one not in wanted))
                self._on_device[place] = self._free.pop()
                self._send(self._held[place], int(self._on_device[place]))
            self._used.pop(place, None)
            self._used[place] = None

    def _send(self, copy: HostCopy, place: int) -> None:
        copy.send(self._low_rank.memory[place])
        memory = self._low_rank.experts.memory
        if memory is None:
            return
        if copy.experts is not None:
            copy.experts.send(memory[place])
        elif place in self._with_experts:
            memory[place].zero_()
        (self._with_experts.discard if copy.experts is None else self._with_experts.add)(place)

    def _leave(self, place: int) -> None:
        """Its place on the device is free: what is put there waits for the steps under way."""
        del self._used[place]
        self._free.append(int(self._on_device[place]))
        self._on_device[place] = -1

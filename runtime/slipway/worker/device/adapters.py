"""Which adapters are on the device: a step's are copied from host memory, unless they are there already."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from slipway.engine.messages import AdapterRef
from slipway.engine.plan import NO_PLACE, StepPlan
from slipway.exits import Exit
from slipway.load.errors import LoadError
from slipway.model.adapters import Addition
from slipway.model.own_rows import Own
from slipway.model.roles import Place
from slipway.worker.cache_size import GIB
from slipway.worker.device.batch import StepShape
from slipway.worker.device.low_rank import LowRank, SlotAdapters
from slipway.worker.device.own_places import rows_of
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
        self.own: HostCopy | None = None
        """Its rows of tokens, if it has some, and how many `own_rows` of each matrix."""
        self.own_rows = 0
        self.added = self.rotation = 0
        """As of `Own`."""
        self.memory = torch.empty(size, dtype=torch.uint8)
        self._sent: torch.cuda.Event | None = None
        if device.type == "cuda":
            COPIES.pin(self.memory, self)
            self._sent = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def send(self, *copies: tuple[Tensor, Tensor]) -> None:
        """Have the device copy parts of it, each to its place, after all work that it was given before."""
        for place, part in copies:
            place.copy_(part, non_blocking=True)
        if self._sent is not None:
            self._sent.record()

    def wait(self) -> None:
        """Until the device does not read it any more."""
        if self._sent is not None:
            self._sent.synchronize()
        for beside in (self.experts, self.own):
            if beside is not None:
                beside.wait()


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
        self._with_own: set[int] = set()
        """Places of the device with rows of tokens."""
        self._rotation_of = np.zeros(most + 1, np.int32)
        """By the engine's place; the last one is that of none."""
        self._used: dict[int, None] = {}
        """The engine's places of what is on the device, the least recently used first."""
        size, count = low_rank.place_bytes / GIB, low_rank.num_places
        log.info("%d places for adapters take %.2f GiB of the device, each %.3f", count, count * size, size)

    def read(self, adapter: AdapterRef, place: int) -> int:
        """Make an adapter ready for a place of the engine's, in any thread; for NO_PLACE it is not kept. The
        tokens that it adds to the vocabulary.

        Raises LoadError where it cannot be served.
        """
        copy = self._copy(adapter)
        if place == NO_PLACE:
            self._spare.append(copy)
        else:
            self._ready[place] = adapter.number, copy
        return copy.added

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
        if self._low_rank.own.adopt():
            self._with_own.clear()
            for place in list(self._used):
                self._leave(place)
        if len(wanted):
            self._bring(wanted.tolist())
            self._state.arena.put("adapters", self._on_device[self._of_slot])
            if self._low_rank.factors:
                self._state.arena.put("rotations", self._rotation_of[self._of_slot])
        held = [self._held[place] for place in wanted.tolist()]
        return replace(
            shape,
            num_adapters=len(wanted),
            adapt_experts=any(one.experts is not None for one in held),
            own_rows=self._low_rank.own.rows if any(one.own is not None for one in held) else 0,
        )

    def of(self, shape: StepShape) -> SlotAdapters | None:
        """Those of a step of this shape, as kernels read them; None where it has none."""
        if not shape.num_adapters:
            return None
        state = self._state
        rotations = state.rotations if self._low_rank.factors else None
        own = bool(shape.own_rows)
        return SlotAdapters(state.adapters, shape.num_adapters, shape.adapt_experts, own, rotations)

    def sleep(self) -> None:
        """Give back the device's memory. What lies on the host comes again as steps use it."""
        self._low_rank.memory.untyped_storage().resize_(0)
        self._low_rank.experts.sleep()
        self._low_rank.own.sleep()
        for place in list(self._used):
            self._leave(place)

    def wake(self) -> None:
        """Have the memory again. Raises torch.OutOfMemoryError."""
        memory = self._low_rank.memory
        memory.untyped_storage().resize_(memory.nbytes)
        memory.zero_()
        self._low_rank.experts.wake()
        self._low_rank.own.wake()

    def _copy(self, adapter: AdapterRef) -> HostCopy:
        """The adapter in host memory, in that of one that has gone where there is some."""
        try:
            copy = self._spare.pop() if self._spare else self._new_copy()
        except Exit as error:
            raise LoadError("NoSpace", str(error), hint=error.hint, argument=error.argument) from None
        copy.wait()
        try:
            found, own = self._low_rank.read(adapter, copy.memory)
            copy.experts = self._expert_copy(adapter, found)
            copy.own, copy.own_rows = self._own_copy(adapter, own), rows_of(own)
            copy.added, copy.rotation = own.added, own.rotation
        except BaseException:
            self._spare.append(copy)
            raise
        return copy

    def _expert_copy(self, adapter: AdapterRef, found: Mapping[Place, Addition]) -> HostCopy | None:
        """What it adds to experts, where that is something; the device has room for it then."""
        experts = self._low_rank.experts
        if not experts.wanted(found):
            return None
        size = experts.place_bytes
        less = "--gpu-memory-utilization, --max-loras or --max-lora-rank"
        with self._room_beside(f"The adapter {adapter.name} adds to experts", size, less):
            experts.allocate()
            copy = HostCopy(size, self._low_rank.device)
        experts.fill(found, copy.memory)
        return copy

    def _own_copy(self, adapter: AdapterRef, own: Own) -> HostCopy | None:
        """Its rows of tokens, where it has some; the device has room for them from the next step on."""
        places, rows = self._low_rank.own, rows_of(own)
        if not rows:
            return None
        size = places.place_bytes(places.room_for(rows))
        what = f"The adapter {adapter.name} has rows of its own for {rows} tokens"
        with self._room_beside(what, size, "--gpu-memory-utilization or --max-loras"):
            places.reserve(rows)
            copy = HostCopy(places.place_bytes(rows), self._low_rank.device)
        places.fill(own, copy.memory)
        return copy

    @contextmanager
    def _room_beside(self, what: str, size: int, less: str) -> Iterator[None]:
        """Have memory there that no profile knows of. Raises LoadError where there is too little.

        what  wants places of so many bytes, which become smaller or fewer by `less`
        """
        try:
            yield
        except torch.OutOfMemoryError:
            message = (
                f"{what}, and the device has no room for {self._low_rank.num_places} places of "
                f"{size / GIB:.2f} GiB beside what --gpu-memory-utilization leaves."
            )
            hint, argument = f"Lower {less}.", "gpu_memory_utilization"
            raise LoadError("NoSpace", message, hint=hint, argument=argument) from None
        except Exit as error:
            raise LoadError("NoSpace", str(error), hint=error.hint, argument=error.argument) from None

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
            self._rotation_of[place] = self._held[place].rotation

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
        copy.send((self._low_rank.memory[place], copy.memory))
        memory, own = self._low_rank.experts.memory, self._low_rank.own
        if copy.experts is not None and memory is not None:
            copy.experts.send((memory[place], copy.experts.memory))
            self._with_experts.add(place)
        elif place in self._with_experts and memory is not None:
            memory[place].zero_()
            self._with_experts.discard(place)
        if copy.own is not None:
            copy.own.send(*own.copies(copy.own.memory, copy.own_rows, place))
            self._with_own.add(place)
        elif place in self._with_own:
            own.clear(place)
            self._with_own.discard(place)

    def _leave(self, place: int) -> None:
        """Its place on the device is free: what is put there waits for the steps under way."""
        del self._used[place]
        self._free.append(int(self._on_device[place]))
        self._on_device[place] = -1

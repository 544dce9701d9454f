"""One rank of an engine on a device, a process of its own: `main`.

Each rank has a whole engine here, which plans the same steps of the same requests: what they share is the
model's matrices, over gloo. `job` is a JSON file; what a rank gave is written beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import msgspec
import torch

from local_engine import LocalEngine
from repeated_graphs import Repeated
from slipway.dist.groups import Group
from slipway.engine.messages import AdapterRef
from slipway.engine.params import SamplingParams
from slipway.engine.start import Start
from slipway.worker.device import joining
from slipway.worker.device.peer_memory import COME
from slipway.worker.device.worker import DeviceWorker
from slipway_kernels.collective import memory_bytes
from slipway_kernels.cuda.interpret import repair


class SharedFile:
    """Memory that other processes map, in the place of a device's."""

    def __init__(
        self, folder: Path, rank: int, size: int, *, reached: bool = True, misread: bool = False
    ) -> None:
        path, self._nbytes = folder / f"memory{rank}", memory_bytes(size)
        with path.open("wb") as file:
            file.truncate(self._nbytes)
        self.handle, self.number = str(path).encode().ljust(256), rank
        self._misread = misread
        self._reached, self._flags = reached, memory_bytes(size, 0)
        self._maps: list[torch.Tensor] = []
        self.address = self.opened(self.handle)

    def reaches(self, others: list[int]) -> bool:
        return self._reached

    def opened(self, handle: bytes) -> int:
        name = handle.decode().rstrip()
        self._maps.append(torch.from_file(name, shared=True, size=self._nbytes, dtype=torch.uint8))
        return self._maps[-1].data_ptr()

    def write(self, data: bytes) -> None:
        self._maps[0][: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def read(self, address: int, count: int) -> bytes:
        found = next(one for one in self._maps if one.data_ptr() == address)
        return bytes(count) if self._misread else bytes(found[:count].tolist())

    def leave(self) -> None:
        self._maps[0][: self._flags] = COME


def noted(group: type[Group], calls: list[tuple[str, list[int], str]]) -> None:
    """Have every call of the group written down: its name, shape and type."""
    for name in ("all_reduce", "all_gather", "broadcast"):
        whole = getattr(group, name)

        def call(self: Group, x: torch.Tensor, name: str = name, whole: Any = whole) -> Any:
            calls.append((name, list(x.shape), str(x.dtype)))
            return whole(self, x)

        setattr(group, name, call)


def main(job: Path, rank: int, variables: Mapping[str, str]) -> None:
    """variables  of the environment, for this rank alone"""
    os.environ.update(variables)
    told = json.loads(job.read_text())
    folder = job.parent
    repair()
    torch.set_num_threads(1)
    calls: list[tuple[str, list[int], str]] = []
    steps: list[int] = []
    noted(Group, calls)
    if told["peers"]:

        def memory_of(device: torch.device, group: Group) -> SharedFile:
            reached, misread = rank != told.get("unreached"), rank == told.get("misread")
            return SharedFile(folder, rank, group.size, reached=reached, misread=misread)

        joining.memory_of = memory_of
    launch = DeviceWorker.launch

    def counted(self: DeviceWorker, plan: Any) -> None:
        steps.append(len(calls))
        launch(self, plan)

    DeviceWorker.launch = counted  # type: ignore[method-assign]
    settings = told["settings"] | {
        "device": "cuda",
        "rank": rank,
        "rank_folder": str(folder),
        "tensor_parallel_size": told["size"],
    }
    Start.of = Start._of  # type: ignore[method-assign]  # the other ranks are started beside it
    with LocalEngine(told["model"], **settings) as engine:
        if told["graphs"]:
            room = 1000 if rank in told.get("graphed", [rank]) else 0
            repeated = Repeated.into(engine.worker, told["graphs"], 64, room=room)
        work = [(tokens, SamplingParams(**params)) for tokens, params in told["work"]]
        adapter = told.get("adapter")
        named = {"adapter": AdapterRef(**adapter)} if adapter else {}

        def answers() -> list[list[int]]:
            names = [engine.add(tokens, params, **named) for tokens, params in work]
            engine.finish()
            return [engine.output(name).tokens for name in names]

        if told["graphs"] and adapter:  # graphs that add adapters are captured where steps have missed them
            answers()
            while engine.worker.idle():
                pass
            repeated.replayed = 0
        peers = engine.worker._meeting.met.peers  # type: ignore[attr-defined]
        before, rounds_before = len(calls), 0 if peers is None else int(peers.rounds[0])
        found = answers()
        steps.append(len(calls))
        replayed = repeated.replayed if told["graphs"] else 0
    rounds = 0 if peers is None else int(peers.rounds[0])
    said = {
        "tokens": found,
        "calls": calls[before:],
        "before": calls[:before],
        "steps": [step - before for step in steps if step >= before],
        "replayed": replayed,
        "rounds": rounds,
        "rounds before": rounds_before,
    }
    (folder / f"said{rank}").write_bytes(msgspec.json.encode(said))

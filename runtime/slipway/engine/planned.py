"""What every rank decides alike before it loads: the device, how the model runs, what reads its weights."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from slipway import driver
from slipway.dist.channel import ALONE, Neighbours
from slipway.dist.hosts import ranks_of
from slipway.dist.mesh import Mesh
from slipway.engine.config import EngineConfig
from slipway.engine.cuda_files import use_given
from slipway.engine.executor import Worker
from slipway.engine.messages import Loading, Memory
from slipway.engine.tokens import token_ids_of
from slipway.engine.wire import Hub
from slipway.engine.worker_classes import check_classes, of_named_classes
from slipway.envs import read
from slipway.exits import DEVICE_UNAVAILABLE, INTERNAL_ERROR, Exit
from slipway.load.extras import require_torch
from slipway.load.folder import stored_bytes
from slipway.load.progress import Progress
from slipway.worker.processors import check_processors

if TYPE_CHECKING:
    from slipway.worker.plan import ModelPlan


class StartProgress:
    """Tells clients how a start comes along, and times its phases."""

    def __init__(self, hub: Hub | None) -> None:
        self.seconds: dict[str, float] = {}
        self.memory: Memory | None = None
        """Told from then on."""
        self._hub = hub
        self.check: Callable[[], None] = lambda: None
        """Raises what else makes going on useless."""
        self._last_report = 0.0  # as time.monotonic() counts
        self._begun = time.monotonic()

    def __call__(self, phase: str, done: int, total: int) -> None:
        """At most ten times a second, but always the first and the last."""
        now = time.monotonic()
        if self._hub is None or (0 < done < total and now - self._last_report < 0.1):
            return
        self._last_report = now
        self._hub.poll(0)  # only greetings can have come
        if self._hub.closed:
            raise SystemExit(INTERNAL_ERROR.code)  # with what started it: nobody is left to be told
        self._hub.broadcast(Loading(phase, done, total, self.memory))
        self.check()

    def over(self) -> None:
        """Clients have more to say than greetings from now on: what a worker still tells goes nowhere."""
        self._hub = None

    def ended(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[phase] = round(now - self._begun, 3)
        self._begun = now


def chosen_device(asked: str) -> str:
    """cpu or cuda; `auto` takes CUDA where there is one. Raises Exit where CUDA is asked for and missing."""
    if asked == "cpu" or (asked == "auto" and not driver.loaded()):
        return "cpu"
    use_given(read(os.environ))
    require_torch(
        "--device cuda computes with torch and Triton",
        "use --device cpu",
        "triton",
        extra="cuda",
        argument="device",
    )
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if asked == "auto":
        return "cpu"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cuda"
    raise Exit(
        DEVICE_UNAVAILABLE,
        "--device cuda, and torch finds no CUDA device here.",
        "Check that the driver is loaded, that the pod asks for a GPU and that CUDA_VISIBLE_DEVICES names "
        "one; or use --device cpu.",
        "device",
    )


def planned(config: EngineConfig, progress: StartProgress) -> tuple[EngineConfig, ModelPlan]:
    """How a model runs, and the configuration as the machine and the model decide what it leaves open.

    Raises LoadError and Exit.
    """
    from slipway.load.checkpoint import open_checkpoint
    from slipway.worker.drafts.plan import plan_with_draft

    config = msgspec.structs.replace(config, device=chosen_device(config.device))
    if config.device == "cuda" and Mesh.of(config).size > 1:
        check_ranks_on_devices(config)
    if config.processors:
        check_processors(config.device)
    check_classes(config)
    loader(config.device)
    progress.ended("import")
    checkpoint = open_checkpoint(config, progress)
    progress.ended("open")
    return plan_with_draft(checkpoint, config, progress, token_ids_of(config))


def check_ranks_on_devices(config: EngineConfig) -> None:
    """Raises Exit where the ranks of this host are more than the devices here."""
    import torch

    size = len(ranks_of(config, config.node_rank))
    devices = max(0, torch.cuda.device_count() - config.first_device)
    if torch.cuda.is_available() and devices < size:
        sizes = ("tensor_parallel_size", "pipeline_parallel_size")
        asked = {name: count for name in sizes if (count := getattr(config, name)) > 1}
        told = " ".join(f"--{name.replace('_', '-')} {count}" for name, count in asked.items())
        where = f" over --nnodes {config.nnodes}" if config.nnodes > 1 else ""
        raise Exit(
            DEVICE_UNAVAILABLE,
            f"{told}{where}: each of {size} ranks here takes a device, and torch finds {devices} for them.",
            "Lower it, or show more: what CUDA_VISIBLE_DEVICES lists, or the GPUs that the pod asks for.",
            next(iter(asked)),
        )


def loader(
    device: str, memory: int | None = None, neighbours: Neighbours = ALONE
) -> Callable[[ModelPlan, EngineConfig, Progress], Worker]:
    """Reads the weights of a plan: the workers of both devices begin so, and go on alike.

    memory      the descriptor of what ranks share on a CPU
    neighbours  the pipeline stages before and behind
    """
    if device == "cuda":
        from slipway.worker.device.load import load as load_on_device

        return of_named_classes(load_on_device)
    from slipway.worker.cpu import CpuWorker

    load = of_named_classes(CpuWorker)
    return load if memory is None else partial(load, memory=memory, neighbours=neighbours)


def read_libraries(device: str) -> None:
    """Import what a worker on this device needs. Whoever beats to others does it before: an import of torch
    holds all threads of the process while a cold disk is read."""
    with contextlib.suppress(ImportError, OSError):  # loading says it to those who wait for the model
        loader(device)


def on_host(config: EngineConfig) -> bool:
    """Whether this host's processors will compute the model; before anything has looked for a device."""
    return config.device == "cpu" or not driver.loaded()


def to_be_read(config: EngineConfig) -> int:
    """Bytes of weights that will lie in this process's memory; none where they go to a device."""
    if not on_host(config):
        return 0
    models = [config.model, *([config.draft.model] if config.draft and config.draft.model else [])]
    return sum(map(stored_bytes, models)) // Mesh.of(config).size

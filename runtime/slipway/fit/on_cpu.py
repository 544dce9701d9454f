"""What a rank needs of a host whose processors compute: its program says it, over weights never read."""

from __future__ import annotations

import os
from dataclasses import dataclass

from slipway.dist.mesh import Mesh
from slipway.engine.config import EngineConfig
from slipway.fit.needs import RankNeeds, Step
from slipway.load.arrays import FP32
from slipway.schemes.choice import Schemes
from slipway.worker.cache_size import token_budget
from slipway.worker.cpu import TOKEN_BUDGET
from slipway.worker.native import Native
from slipway.worker.placement import placement
from slipway.worker.plan import ModelPlan
from slipway_kernels.cpu import PageMemory, Program, Ranks, Slots, Threads, apart, shared_memory

INTERPRETER = 32 << 20
"""Of an engine's process: Python, its libraries and their heaps, measured at 28 to 36 MiB."""
_SHORT = 512
"""Positions of one split of attention: a step's memory grows with the context beyond it."""


@dataclass(frozen=True, slots=True)
class _Built:
    """A rank's program for contexts of some length, in bytes: of the matrices, and of a step."""

    weights: int
    workspace: int


def cpu_needs(plan: ModelPlan, route: Native, config: EngineConfig) -> RankNeeds:
    """plan: of one rank, with its `route`. Nothing of the model is read, and no memory touched for it.

    Raises RuntimeError where the kernels are not built.
    """
    length = plan.max_model_len
    tokens = token_budget(config, length, TOKEN_BUDGET)
    threads = Threads(placement(config).threads)
    short = _built(plan, route, config, threads, tokens, min(length, _SHORT))
    long = _built(plan, route, config, threads, tokens, length)
    groups, blocks = len(plan.kv.groups), plan.kv.max_blocks(length)
    ropes = {one.attention.rope for one in route.spec.layers} - {None}
    return RankNeeds(
        weights=long.weights,
        state=0,
        request_bytes=0,
        sampled_bytes=0,
        sampled_rows=0,
        position_bytes=sum(FP32.itemsize * rope.rotary_dim for rope in ropes if rope),
        slot_bytes=4 * (1 + groups * blocks / length),
        logits_bytes=0,
        step=Step(
            token_bytes=-(-short.workspace // tokens),
            position_bytes=(long.workspace - short.workspace) / length,
        ),
        runtime=INTERPRETER,
        kv=plan.kv,
    )


def _built(
    plan: ModelPlan, route: Native, config: EngineConfig, threads: Threads, tokens: int, length: int
) -> _Built:
    """What the program takes once it is made, as `CpuWorker` makes it."""
    kv, mesh = plan.kv, Mesh.of(config)
    slots = Slots(config.max_num_seqs, length, len(kv.groups), kv.max_blocks(length))
    memory, ranks = -1, None
    if mesh.tp > 1:
        memory = shared_memory()
        ranks = Ranks(route.shard.rank, mesh.tp, threads.count * mesh.tp, memory)
    try:
        with apart():
            weights = route.unread(route.part(plan), Schemes(plan.element, threads))
            make = route.lowered(plan, weights, threads, ranks)
            program, _ = make(slots, PageMemory(1, kv.page_bytes), tokens, config.max_logprobs)
        assert isinstance(program, Program), "native models are programs"
        return _Built(program.weight_bytes, program.workspace_bytes)
    finally:
        if memory >= 0:
            os.close(memory)

"""From a plan of the model to a worker on the device."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import torch

from slipway.engine.config import EngineConfig
from slipway.load.progress import Progress
from slipway.worker.cache_size import num_host_pages, token_budget
from slipway.worker.device.attention import backend
from slipway.worker.device.memory import Budget, device_memory
from slipway.worker.device.offload import layers_on_host
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.schemes import DeviceSchemes
from slipway.worker.device.state import SlotState
from slipway.worker.device.swap import SwapSpace
from slipway.worker.device.transfer import Transfer
from slipway.worker.device.worker import AnyDecoder, DeviceWorker
from slipway.worker.plan import ModelPlan
from slipway_kernels.cuda.interpret import repair
from slipway_kernels.cuda.launch import device_in_use
from slipway_kernels.sampling import RecordLayout

TOKEN_BUDGET = 2048


def load(plan: ModelPlan, config: EngineConfig, progress: Progress) -> DeviceWorker:
    """A worker that has its weights, and neither slots nor pages.

    Raises LoadError where checkpoint and configuration disagree, and Exit where memory does not suffice or a
    step is too small.
    """
    device = device_in_use()
    if device.type == "cpu":
        repair()
    before, total = device_memory(device)
    progress("load", 0, plan.checkpoint.total_bytes)
    layout = RecordLayout(plan.route.vocab)
    budget = token_budget(config, plan.max_model_len, TOKEN_BUDGET)
    state = SlotState(
        config.max_num_seqs,
        len(plan.kv.groups),
        min(plan.kv.block_sizes),
        layout.words,
        budget,
        config.num_drafts,
        device,
    )
    decoder = _decoder(plan, config, device)
    return DeviceWorker(
        plan,
        state,
        Sampler(state, layout, max(1, config.max_logprobs)),
        decoder,
        SwapSpace(num_host_pages(config, plan), plan.kv.page_bytes, device),
        config.graph_sizes if decoder.graphs and device.type == "cuda" else (),
        graph_lengths=(min(config.graph_max_length, plan.max_model_len), plan.max_model_len),
        token_budget=budget,
        progress=progress,
        budget=partial(Budget, total, config.gpu_memory_utilization, total - before),
        timed=config.timed,
    )


def _decoder(plan: ModelPlan, config: EngineConfig, device: torch.device) -> AnyDecoder:
    """The model with its weights on the device."""
    attention = partial(
        backend,
        config.attention_backend,
        max_requests=config.max_num_seqs,
        each=1 + config.num_drafts,
        max_length=plan.max_model_len,
        device=device,
    )
    on_host = layers_on_host(plan, config.offload_bytes)
    with closing(Transfer(device)) as transfer:
        schemes = DeviceSchemes(plan.element, transfer, on_host)
        return plan.route.on_device(plan, schemes, attention)

"""From a plan of the model to a worker on the device: weights, measured memory, pages, graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from functools import partial

import torch

from slipway.engine.config import EngineConfig
from slipway.load.torch_arrays import torch_type
from slipway.worker.cache_size import CacheSize, cache_size, num_host_pages
from slipway.worker.device.attention import backend
from slipway.worker.device.memory import GRAPH_BYTES, Budget, allocated_within, device_memory, measured_peak
from slipway.worker.device.offload import layers_on_host
from slipway.worker.device.pages import DevicePages
from slipway.worker.device.place import DevicePlace
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

log = logging.getLogger("slipway.engine")


def load(
    plan: ModelPlan,
    config: EngineConfig,
    token_budget: int,
    progress: Callable[[str, int, int], None],
) -> tuple[DeviceWorker, CacheSize]:
    """A worker that has computed its largest step, and the size of its cache.

    Raises LoadError where checkpoint and configuration disagree, and Exit where memory does not suffice.
    """
    device = device_in_use()
    if device.type == "cpu":
        repair()
    before, total = device_memory(device)
    progress("load", 0, plan.checkpoint.total_bytes)
    layout = RecordLayout(plan.vocab)
    state = SlotState(
        config.max_num_seqs,
        len(plan.kv.groups),
        min(plan.kv.block_sizes),
        layout.words,
        token_budget,
        config.num_drafts,
        device,
    )
    state.allocate(1)
    kept = torch_type(plan.kv_dtype)
    decoder = _decoder(plan, config, device)
    max_top = max(1, config.max_logprobs)
    sampler = Sampler(state, layout, max_top)
    worker = DeviceWorker(
        state,
        sampler,
        decoder,
        SwapSpace(num_host_pages(config, plan), plan.kv.page_bytes, device),
        config.graph_sizes if decoder.graphs and device.type == "cuda" else (),
        graph_lengths=(min(config.graph_max_length, plan.max_model_len), plan.max_model_len),
        token_budget=token_budget,
        max_top=max_top,
        progress=progress,
        kv_divisors=plan.kv_divisors,
    )
    worker.use(DevicePages(plan.kv, 1, kept, device, plan.kv_scales))
    with measured_peak(device) as peak:
        worker.largest_step()
    budget = Budget(
        total=total,
        share=config.gpu_memory_utilization,
        weights=_allocated(device),
        activations=peak(),
        graphs=GRAPH_BYTES * len(worker.graph_sizes.sizes) * len(worker.graph_sizes.each),
        others=total - before,
    )
    log.info("%s", budget.explained())
    size = cache_size(config, plan, budget.kv_cache, "--gpu-memory-utilization", state.position_bytes)
    state.allocate(size.max_model_len)
    pages, count = allocated_within(
        size.num_pages, lambda number: DevicePages(plan.kv, number, kept, device, plan.kv_scales)
    )
    if count < size.num_pages:
        size = _shrunk(config, plan, size, count)
    worker.use(pages)
    return worker, size


def _decoder(plan: ModelPlan, config: EngineConfig, device: torch.device) -> AnyDecoder:
    """The model with its weights on the device."""
    length = plan.max_model_len
    attention = partial(
        backend,
        config.attention_backend,
        max_requests=config.max_num_seqs,
        each=1 + config.num_drafts,
        max_length=length,
        device=device,
    )
    on_host = layers_on_host(plan, config.offload_bytes)
    with closing(Transfer(device)) as transfer:
        schemes = DeviceSchemes(plan.element, transfer, on_host)
        dtype = torch_type(plan.element)
        place = DevicePlace(schemes, attention, length, dtype, device, on_host)
        return plan.route.on_device(plan.checkpoint, place)


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _shrunk(config: EngineConfig, plan: ModelPlan, planned: CacheSize, pages: int) -> CacheSize:
    """What is left of a pool for which there was less memory than planned, and a warning."""
    size = cache_size(config, plan, pages * plan.kv.page_bytes, "--gpu-memory-utilization")
    warning = (
        f"The device had room for {pages} of the {planned.num_pages} KV pages that were planned: something "
        "else took its memory meanwhile. Serving with less; --gpu-memory-utilization asks for less at once."
    )
    return CacheSize(pages, size.max_model_len, " ".join(filter(None, (warning, size.warning))))

"""From a plan of the model to a worker on the device."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import msgspec
import torch

from slipway.dist.mesh import Mesh
from slipway.dist.stores import RankStore
from slipway.engine.config import EngineConfig
from slipway.load.progress import Progress
from slipway.worker.cache_size import num_host_pages, token_budget
from slipway.worker.device.any_decoder import AnyDecoder
from slipway.worker.device.attention import backend
from slipway.worker.device.budget import Budget, default_token_budget
from slipway.worker.device.given import GivenEmbeddings
from slipway.worker.device.guesser import Drafted
from slipway.worker.device.joining import device_of, met
from slipway.worker.device.meeting import Meeting
from slipway.worker.device.memory import device_memory
from slipway.worker.device.neighbours import StageNeighbours
from slipway.worker.device.offload import layers_on_host
from slipway.worker.device.pooling import PoolingWorker
from slipway.worker.device.processed import ProcessedRows
from slipway.worker.device.proposer import DeviceProposer, NgramOnDevice
from slipway.worker.device.ranks import Ranks, TensorRanks
from slipway.worker.device.sampler import Sampler
from slipway.worker.device.schemes import DeviceSchemes
from slipway.worker.device.stage_worker import StageWorker
from slipway.worker.device.state import SlotState
from slipway.worker.device.swap import SwapSpace
from slipway.worker.device.transfer import Transfer
from slipway.worker.device.worker import DeviceWorker
from slipway.worker.plan import ModelPlan
from slipway.worker.processors import Processors
from slipway_kernels.cuda.interpret import repair
from slipway_kernels.sampling import Acceptance, RecordLayout


def load(plan: ModelPlan, config: EngineConfig, progress: Progress) -> DeviceWorker:
    """A worker that has its weights, and neither slots nor pages.

    Raises LoadError where checkpoint and configuration disagree, and Exit where memory does not suffice or a
    step is too small.
    """
    pools = plan.pooler is not None
    if pools:
        config = msgspec.structs.replace(config, num_drafts=0)
    device, ranks, meeting = device_of(config), None, None
    if device.type == "cpu":
        repair()
    mesh = Mesh.of(config)
    if mesh.size > 1:
        meeting = Meeting(partial(met, config, device, RankStore(config)))
    if meeting is not None and mesh.tp > 1:
        ranks = TensorRanks(mesh.shard(config.rank).rank, mesh.tp, meeting)
    draws = plan.draws and (ranks is None or ranks.draws)
    before, total = device_memory(device)
    progress("load", 0, plan.checkpoint.total_bytes)
    added = 0 if plan.adapters is None else plan.adapters.own.room
    drawn = plan.route.vocab + added if plan.draws and not pools else 1  # else it takes no workspace
    layout = RecordLayout(drawn)
    budget = token_budget(config, plan.max_model_len, default_token_budget(total))
    state = SlotState(
        config.max_num_seqs,
        len(plan.kv.groups),
        min(plan.kv.block_sizes, default=1),
        layout.words,
        budget,
        config.num_drafts,
        device,
    )
    rule = config.acceptance
    acceptance = None if rule is None else Acceptance(rule.threshold, rule.alpha)
    sampler = Sampler(state, layout, max(1, config.max_logprobs), acceptance, ranks)
    proposer = _proposer(plan, config, state, sampler, budget)
    decoder = _read(plan, config, device, proposer, ranks)
    return _kind(plan)(
        plan,
        state,
        sampler,
        decoder,
        partial(_read_again, plan, config, device, proposer, ranks, progress),
        SwapSpace(num_host_pages(config, plan), plan.kv.page_bytes, device),
        config.graph_sizes if decoder.graphs and device.type == "cuda" and not pools else (),
        graph_lengths=(min(config.graph_max_length, plan.max_model_len), plan.max_model_len),
        proposer=proposer,
        given=GivenEmbeddings(plan.hidden_size, device) if _takes_rows(plan, config) else None,
        processed=ProcessedRows(Processors(config.processor_threads), state, plan.route.vocab)
        if config.processors and draws
        else None,
        token_budget=budget,
        progress=progress,
        budget=partial(Budget, total, config.gpu_memory_utilization, total - before),
        timed=config.timed,
        ranks=ranks,
        neighbours=StageNeighbours(meeting) if meeting is not None and mesh.pp > 1 else None,
        meeting=meeting,
        workers=config.machine_parts,
    )


def _kind(plan: ModelPlan) -> type[DeviceWorker]:
    if not plan.draws:
        return StageWorker
    return DeviceWorker if plan.pooler is None else PoolingWorker


def _takes_rows(plan: ModelPlan, config: EngineConfig) -> bool:
    if plan.route.stage is not None and not plan.route.stage.is_first:
        return False
    return plan.pooler is None and (config.enable_prompt_embeds or plan.prompt_adapters is not None)


def _proposer(
    plan: ModelPlan, config: EngineConfig, state: SlotState, sampler: Sampler, token_budget: int
) -> DeviceProposer:
    """What guesses, if anything is to. Raises LoadError where that cannot be served here."""
    if not plan.draws:
        return DeviceProposer()
    if plan.draft is not None:
        return plan.draft.on_device(state, sampler, token_budget)
    if config.num_drafts:
        return NgramOnDevice(state, config.prompt_lookup_min, config.prompt_lookup_max)
    return DeviceProposer()


def _read_again(
    plan: ModelPlan,
    config: EngineConfig,
    device: torch.device,
    proposer: DeviceProposer,
    ranks: Ranks | None,
    progress: Progress,
) -> AnyDecoder:
    """The same models, of their files as they are now. Raises LoadError where they have gone."""
    plan = plan.opened_again(config, progress)
    with closing(plan):
        return _read(plan, config, device, proposer, ranks)


def _read(
    plan: ModelPlan,
    config: EngineConfig,
    device: torch.device,
    proposer: DeviceProposer,
    ranks: Ranks | None,
) -> AnyDecoder:
    """The model with its weights on the device, and beside it what guesses for it."""
    target = read_decoder(plan, config, device, 1 + config.num_drafts, ranks)
    if plan.draft is None or not plan.draws:
        return target
    proposer.guesser = plan.draft.read_on_device(device, target)
    return Drafted(target, proposer.guesser)


def read_decoder(
    plan: ModelPlan, config: EngineConfig, device: torch.device, each: int, ranks: Ranks | None = None
) -> AnyDecoder:
    """A model with its weights on the device.

    each   rows of a request that computes no prompt
    ranks  that share its matrices; None: this one has all of each
    """
    attention = partial(
        backend,
        config.attention_backend,
        max_requests=config.max_num_seqs,
        each=each,
        max_length=plan.max_model_len,
        device=device,
    )
    on_host = layers_on_host(plan, config.offload_bytes)
    with closing(Transfer(device)) as transfer:
        schemes = DeviceSchemes(plan.element, transfer, on_host, ranks=ranks)
        return plan.route.on_device(plan, schemes, attention)

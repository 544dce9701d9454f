"""What a model needs, as the engine would plan it: reads the configuration and headers, and no weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from slipway.dist.mesh import Mesh
from slipway.engine.config import EngineConfig
from slipway.fit.described import DescribedCheckpoint
from slipway.fit.frontend import frontend_bytes
from slipway.fit.needs import Needs, RankNeeds
from slipway.fit.on_cpu import cpu_needs
from slipway.fit.on_cuda import cuda_needs
from slipway.load.checkpoint import Checkpoint, open_checkpoint
from slipway.load.errors import LoadError
from slipway.load.folder import find_weights
from slipway.load.hub import locate
from slipway.model.limits import trained_length
from slipway.model.pooling import TokenIds, no_tokenizer
from slipway.worker import cpu
from slipway.worker.device import budget
from slipway.worker.device.forms import Arch
from slipway.worker.drafts.plan import plan_with_draft
from slipway.worker.native import Native
from slipway.worker.plan import ModelPlan
from slipway_kernels.cpu.memory import AHEAD


def describe(
    config: EngineConfig, arch: int = 0, *, engines: int = 1, token_ids: TokenIds = no_tokenizer
) -> Needs:
    """The needs of the model that `config` names, on the device that it names: cpu or cuda.

    arch       compute capability of CUDA's device, times ten
    engines    on the host, each as `config` says
    token_ids  of tokens whose logits are scores
    Raises LoadError where the engine would not start, or what it needs is not known without the weights.
    """
    parts = Mesh.of(config).size * engines
    config = msgspec.structs.replace(
        config, machine_parts=parts, engines_on_host=engines, use_tqdm_on_load=False
    )
    config, plan = plan_with_draft(opened(config), config, silent, token_ids, lambda: arch)
    return needs_of_plan(config, plan, token_ids, lambda: arch)


def needs_of_plan(config: EngineConfig, plan: ModelPlan, token_ids: TokenIds, arch: Arch) -> Needs:
    """The same of a model that an engine has planned as its first rank. Raises LoadError."""
    on_device = config.device == "cuda"
    return Needs(
        architecture=plan.route.architecture,
        kind="cuda" if on_device else "cpu",
        ranks=_ranks(config, plan, token_ids, arch),
        engines=config.engines_on_host,
        frontend=frontend_bytes(plan.checkpoint, plan.route.vocab, config.frontends),
        trained_len=trained_length(plan.route.config),
        asked_len=config.max_model_len,
        default_budget=budget.default_token_budget(0) if on_device else cpu.TOKEN_BUDGET,
        touched_ahead=0 if on_device else AHEAD,
        num_drafts=config.num_drafts,
        graph_sizes=tuple(config.graph_sizes) if on_device and plan.pooler is None else (),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_chunked_prefill=config.enable_chunked_prefill,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        kv_cache_bytes=config.kv_cache_bytes,
        gpu_memory_utilization=config.gpu_memory_utilization,
        tensor_parallel_size=config.tensor_parallel_size,
        notes=tuple(_notes(config, plan)),
    )


def opened(config: EngineConfig) -> Checkpoint:
    """The model's files that are here, or what its configuration says of them. Raises LoadError.

    Of a model on the hub the configuration alone is fetched.
    """
    here = Path(config.model).expanduser().exists()
    if not here and (config.load_format == "gguf" or ".gguf" in config.model or ":" in config.model):
        raise LoadError(
            "ModelNotFound",
            f"{config.model} is not on this machine, and a GGUF file has its header inside.",
            hint="Fetch the file first.",
        )
    path = locate(
        config.model,
        revision=config.revision,
        token=config.hf_token,
        download_dir=config.download_dir,
        weights=False,
        code=config.trust_remote_code,
    )
    config = msgspec.structs.replace(config, model=str(path))
    if path.is_dir() and config.load_format != "dummy" and not _has_weights(path, config):
        return DescribedCheckpoint(path, config)
    return open_checkpoint(config, silent)


def silent(phase: str, done: int, total: int) -> None:
    """Nobody waits for it."""


def _has_weights(folder: Path, config: EngineConfig) -> bool:
    try:
        find_weights(folder, config.load_format, config.ignore_patterns)
    except LoadError:
        return False
    return True


def _ranks(config: EngineConfig, plan: ModelPlan, token_ids: TokenIds, arch: Arch) -> tuple[RankNeeds, ...]:
    """Of every rank of an engine; `plan` is the first one's."""
    mesh = Mesh.of(config)
    found = {0: _needs(config, plan, arch)}

    def needs(rank: int) -> RankNeeds:
        if rank not in found:
            other = msgspec.structs.replace(config, rank=rank)
            found[rank] = _needs(*plan_with_draft(plan.checkpoint, other, silent, token_ids, arch), arch)
        return found[rank]

    ranks: list[RankNeeds] = []
    for stage in (mesh.stage_ranks(first) for first in range(0, mesh.size, mesh.tp)):
        # No rank has more than the first one of its stage, and none less than the last.
        alike = needs(stage[0]) == needs(stage[-1])
        ranks += [needs(stage[0])] * len(stage) if alike else map(needs, stage)
    return tuple(ranks)


def _needs(config: EngineConfig, plan: ModelPlan, arch: Arch) -> RankNeeds:
    route = plan.route
    if not isinstance(route, Native):
        raise LoadError(
            "UnsupportedModel",
            f"{route.architecture} is no decoder with native code here, and only their needs are known.",
            hint="Start it and read what the log says of memory.",
        )
    if config.device == "cuda":
        needs = cuda_needs(plan, route, config, arch)
    else:
        needs = cpu_needs(plan, route, config)
    drafts = plan.draft.stored_bytes if plan.draft and plan.draws else 0
    return replace(needs, weights=needs.weights + drafts)


def _notes(config: EngineConfig, plan: ModelPlan) -> list[str]:
    """What is rough, or left out."""
    notes = list(plan.warnings)
    if isinstance(plan.checkpoint, DescribedCheckpoint):
        notes.append("No weights are here: their sizes follow from config.json.")
    if plan.draft:
        notes.append("What guesses is counted as its checkpoint stores it.")
    if plan.adapters is not None or plan.prompt_adapters is not None:
        notes.append("Adapters are not counted.")
    if config.offload_bytes and config.device == "cuda":
        notes.append("--cpu-offload-gb is not counted: all weights are taken to be on the device.")
    return notes

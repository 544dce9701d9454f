"""Decides how a model that guesses for another runs beside it, before its weights are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from slipway.dist.mesh import Mesh
from slipway.engine.config import DraftConfig, EngineConfig
from slipway.load.arrays import FP32
from slipway.load.checkpoint import Checkpoint, open_checkpoint
from slipway.load.config import Config, texts
from slipway.load.errors import LoadError
from slipway.load.progress import Progress
from slipway.model.kv import KVLayout, KVShape, kv_layout
from slipway.model.pooling import TokenIds, no_tokenizer
from slipway.model.spec import DecoderSpec
from slipway.model.stage import Stage
from slipway.worker.device.forms import Arch
from slipway.worker.drafts.eagle import Eagle
from slipway.worker.drafts.eagle3 import Eagle3
from slipway.worker.drafts.follow import FollowerPlan, FollowerSpec
from slipway.worker.drafts.heads import HeadSpec, HeadsPlan
from slipway.worker.drafts.medusa import Medusa
from slipway.worker.drafts.mlp import MLPSpeculator
from slipway.worker.drafts.model import DraftModelPlan
from slipway.worker.drafts.mtp import Mtp
from slipway.worker.drafts.parted import parted
from slipway.worker.kv_kinds import kv_held, kv_kinds, layer_bytes
from slipway.worker.plan import ModelPlan
from slipway.worker.planning import plan_model
from slipway.worker.route import check_heads

HEADS: dict[str, Callable[[Config], HeadSpec]] = {"medusa": Medusa.of, "mlp_speculator": MLPSpeculator.of}
FOLLOWERS: dict[str, Callable[[Config], FollowerSpec]] = {
    "eagle": Eagle.of,
    "eagle3": Eagle3.of,
    "mtp": Mtp.of,
}
"""By method, what reads their configuration."""


def plan_with_draft(
    checkpoint: Checkpoint,
    config: EngineConfig,
    progress: Progress,
    token_ids: TokenIds = no_tokenizer,
    arch: Arch | None = None,
) -> tuple[EngineConfig, ModelPlan]:
    """What the model decides of the configuration, and the plan of it and of what guesses for it.

    token_ids, arch  as `plan_model` has them
    Raises LoadError.
    """
    plan = plan_model(checkpoint, config, token_ids, arch)
    if not plan.kv.groups:  # rows see those behind them: no prompt is cut or begun in its midst
        config = msgspec.structs.replace(config, enable_chunked_prefill=False, enable_prefix_caching=False)
    plan = with_draft(plan, config, progress)
    if plan.draft:  # which may have a number of its own
        config = msgspec.structs.replace(config, num_drafts=plan.draft.num_drafts)
    return config, plan


def with_draft(target: ModelPlan, config: EngineConfig, progress: Progress) -> ModelPlan:
    """The plan with that of the model that guesses for it, where the configuration names one.

    It draws what the target may draw, in the same type. Raises LoadError where it cannot be read, or cannot
    guess for this target.
    """
    draft = config.draft
    if draft is None or target.pooler is not None:
        return target
    try:
        return _planned(target, config, draft, progress)
    except LoadError as error:
        if error.argument == "speculative_config":
            raise
        message, hint = f"Of the draft model {draft.model or config.model}: {error.message}", error.hint
        if error.argument == "tensor_parallel_size":
            hint = f"{hint} With draft_tensor_parallel_size 1 every rank has all of a draft model."
        raise LoadError(error.code, message, hint=hint, argument="speculative_config") from error


def _planned(target: ModelPlan, config: EngineConfig, draft: DraftConfig, progress: Progress) -> ModelPlan:
    if draft.method == "mtp" and draft.model == config.model and not draft.revision:
        draft = msgspec.structs.replace(draft, model=None)
    settings = _settings(draft, target, config)
    checkpoint = open_checkpoint(settings, progress)
    if draft.method == "draft_model":
        draft = msgspec.structs.replace(draft, method=_kind(checkpoint.config))
    _check_ranks(config.tensor_parallel_size, draft)
    if draft.method in HEADS:
        return _with_heads(target, config, draft, checkpoint, settings)
    if draft.method in FOLLOWERS:
        return _with_follower(target, config, draft, checkpoint, settings)
    _check_number(config.num_drafts, draft)
    return _with_model(target, config, draft, plan_model(checkpoint, settings), settings)


def _check_number(number: int, draft: DraftConfig) -> None:
    if not number:
        raise _unfit(
            f"--speculative-config has no num_speculative_tokens, the most that {draft.model} guesses ahead.",
            "Give it: 3 to 7 are usual.",
        )


def _check_ranks(size: int, draft: DraftConfig) -> None:
    """Heads are whole on every rank; layers that go on from the target's rows are cut as it is."""
    fitting = {1} if draft.method in HEADS else {size} if draft.method in FOLLOWERS else {1, size}
    asked = draft.tensor_parallel_size
    if asked is not None and asked not in fitting:
        allowed = " or ".join(map(str, sorted(fitting)))
        raise _unfit(
            f"draft_tensor_parallel_size {asked}: with --tensor-parallel-size {size} what guesses by "
            f"{draft.method} is on {allowed}.",
            "Leave it out.",
        )


def _kind(config: Config) -> str:
    """The method of what a configuration describes."""
    architecture, kind = next(iter(texts(config, "architectures")), ""), config.get("model_type")
    if "Eagle3" in architecture or config.get("speculators_model_type") == "eagle3":
        return "eagle3"
    if kind == "eagle" or architecture.startswith("Eagle"):
        return "eagle"
    return str(kind) if kind in HEADS else "draft_model"


def _with_model(
    target: ModelPlan, config: EngineConfig, draft: DraftConfig, plan: ModelPlan, settings: EngineConfig
) -> ModelPlan:
    """Its layers are dealt into the target's pages."""
    if plan.route.spec is None:
        raise _unfit(
            f"{draft.model} is a {plan.route.architecture}, which runs by transformers' code: that does not "
            "guess for another model.",
            "Name a draft model of an architecture with native code.",
        )
    _check_vocab(target, config, draft, plan.route.vocab)
    length = draft.max_model_len or plan.max_model_len
    if length > plan.max_model_len:
        raise _unfit(
            f"max_model_len {length} of the draft model is too long: it was made for {plan.max_model_len} "
            "tokens.",
            f"Set {plan.max_model_len} or less, or leave it out.",
        )
    # Its keys may come a block behind what is computed: a window keeps that much more for them.
    kinds = kv_kinds(plan.route, config, behind=config.block_size)
    layouts = _dealt(target, config, kinds, kv_held(plan.route))
    model = replace(
        plan,
        kv=layouts[1],
        max_model_len=min(length, target.max_model_len),
        vocab=target.route.vocab,
    )
    warnings = [*target.warnings, *(f"Of the draft model: {text}" for text in plan.warnings)]
    proposer = DraftModelPlan(model, settings, config.num_drafts)
    return replace(target, kv=layouts[0], draft=proposer, warnings=warnings)


def _dealt(
    target: ModelPlan, config: EngineConfig, kinds: list[tuple[int, KVShape]], held: list[KVShape]
) -> tuple[KVLayout, KVLayout]:
    """The pages with layers of these kinds beside the target's: for the target, and for what has these.

    held  [layer]  what a token takes of these on this rank
    """
    own = kv_kinds(target.route, config)
    size_of = layer_bytes(config.device, target.kv_dtype)
    shapes = kv_held(target.route) + held
    stage, here, num_own = target.route.stage, None, len(own)
    if stage is not None:
        here, num_own = stage.layers, len(stage.layers)
        if stage.is_last:
            here = range(here.start, len(own) + len(kinds))
    layout = kv_layout(own + kinds, config.block_size, size_of, len(kinds), shapes, here)
    target_places, places = layout.layer_place[:num_own], layout.layer_place[num_own:]
    return replace(layout, layer_place=target_places), replace(layout, layer_place=places)


def _with_follower(
    target: ModelPlan,
    config: EngineConfig,
    draft: DraftConfig,
    checkpoint: Checkpoint,
    settings: EngineConfig,
) -> ModelPlan:
    """They read the target's rows, and their layers are dealt into its pages."""
    described = checkpoint.config if draft.model else target.route.config  # which knows what was overridden
    spec = FOLLOWERS[draft.method](described)
    number = config.num_drafts or spec.usual_drafts
    _check_number(number, draft)
    _check_rows(config, draft, spec.hidden, target.route.spec)
    _check_vocab(target, config, draft, spec.vocab)
    hint = "Name layers with heads of such a size, or guess by n-grams."
    check_heads(draft.model or config.model, spec.attentions, hint, "speculative_config")
    shard = Mesh.of(config).shard(config.rank)
    forms = {spec.place(name): form for name, form in checkpoint.forms().items()}
    part, cuts = parted(spec, forms, shard, packed=target.element != FP32)
    whole, held = ([(one.kv_heads, one.head_dim) for one in some.attentions] for some in (spec, part))
    for_target, kv = _dealt(target, config, [(0, shape) for shape in whole], held)
    plan = FollowerPlan(
        spec,
        part,
        cuts,
        checkpoint,
        settings,
        number,
        vocab=target.route.vocab,
        element=target.element,
        kv_dtype=target.kv_dtype,
        kv=kv,
        length=min(draft.max_model_len or target.max_model_len, target.max_model_len),
    )
    taps = spec.taps(len(target.route.attentions))
    _check_taps(config, draft, taps, len(target.route.attentions))
    return replace(target, kv=for_target, draft=plan, taps=taps)


def _with_heads(
    target: ModelPlan,
    config: EngineConfig,
    draft: DraftConfig,
    checkpoint: Checkpoint,
    settings: EngineConfig,
) -> ModelPlan:
    """They read the target's final rows."""
    heads = HEADS[draft.method](checkpoint.config)
    _check_rows(config, draft, heads.hidden, target.route.spec)
    if config.num_drafts > heads.num_heads:
        raise _unfit(
            f"{config.num_drafts} drafts are asked for, and {draft.model} has heads for {heads.num_heads}.",
            f"Set num_speculative_tokens to {heads.num_heads} or less.",
        )
    _check_vocab(target, config, draft, heads.vocab)
    number = config.num_drafts or heads.num_heads
    length = min(draft.max_model_len or target.max_model_len, target.max_model_len)
    plan = HeadsPlan(heads, checkpoint, settings, number, target.route.vocab, target.element, length)
    return replace(target, draft=plan, taps=(len(target.route.attentions),))


def _check_rows(config: EngineConfig, draft: DraftConfig, hidden: int, target: DecoderSpec | None) -> None:
    """What reads rows of so many numbers can read the target's, and is asked for nothing else."""
    if target is None:
        raise _unfit(
            f"{config.model} runs by transformers' code, which does not tell the rows that {draft.method} "
            "goes on from.",
            "Serve an architecture with native code, or guess by n-grams.",
        )
    if hidden != target.hidden:
        raise _unfit(
            f"{draft.model} reads rows of {hidden} numbers, and those of {config.model} have "
            f"{target.hidden}: it was trained on another model.",
            "Name heads that were trained on this one.",
        )
    if draft.quantization:
        raise _unfit(
            f"quantization {draft.quantization}: heads are computed as they are stored.",
            "Leave it out, or name a draft model.",
        )


def _check_taps(config: EngineConfig, draft: DraftConfig, taps: Sequence[int], num_layers: int) -> None:
    """They guess on the last stage, and read what its layers make."""
    count = config.pipeline_parallel_size
    first = Stage.of(count - 1, count, num_layers, config.layer_partition).layers.start
    if away := [layer for layer in taps if 0 <= layer < first]:
        raise _unfit(
            f"{draft.model} reads the rows before the layers {', '.join(map(str, away))} of {config.model}, "
            f"and guesses on the last pipeline stage, which begins with layer {first}.",
            "Serve without --pipeline-parallel-size, or guess by n-grams or by what reads final rows.",
        )


def _check_vocab(target: ModelPlan, config: EngineConfig, draft: DraftConfig, vocab: int) -> None:
    if vocab < target.route.vocab:
        raise _unfit(
            f"{draft.model} knows {vocab} tokens, and {config.model} has {target.route.vocab}: it cannot "
            "read all that it has to go on from.",
            "Name a draft model with the target's tokenizer.",
        )


def _settings(draft: DraftConfig, target: ModelPlan, config: EngineConfig) -> EngineConfig:
    """That of the draft model, as if it were served; what concerns the target's files is left out, where it
    has others."""
    if draft.model is None:
        return msgspec.structs.replace(
            config,
            rank=Mesh.of(config).shard(config.rank).rank,
            pipeline_parallel_size=1,
            layer_partition=[],
            num_drafts=0,
            draft=None,
        )
    size = draft.tensor_parallel_size or config.tensor_parallel_size
    return msgspec.structs.replace(
        config,
        tensor_parallel_size=size,
        enable_expert_parallel=False,
        pipeline_parallel_size=1,
        rank=Mesh.of(config).shard(config.rank).rank if size > 1 else 0,
        model=draft.model,
        revision=draft.revision,
        code_revision=draft.code_revision,
        quantization=draft.quantization,
        max_model_len=None,
        num_drafts=0,
        draft=None,
        task="generate",
        override_pooler_config={},
        dtype=str(target.element),
        load_format="dummy" if config.load_format == "dummy" else "auto",
        config_format="auto",
        model_impl="auto",
        hf_config_path=None,
        hf_overrides={},
        rope_scaling={},
        rope_theta=None,
        disable_sliding_window=False,
        max_loras=0,
        enable_prompt_embeds=False,
        max_prompt_adapters=0,
        calculate_kv_scales=False,
        quantization_param_path=None,
        offload_bytes=0,
        layer_partition=[],
    )


def _unfit(message: str, hint: str) -> LoadError:
    return LoadError("UnsupportedModel", message, hint=hint, argument="speculative_config")

"""What a rank needs of a CUDA device, as its worker holds and computes it. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from slipway.engine.config import EngineConfig
from slipway.fit.needs import RankNeeds, Step
from slipway.fit.sized import SizedSchemes
from slipway.load.arrays import FP32
from slipway.model.roles import entries_of
from slipway.model.spec import Attention, DecoderSpec, Layer, Mlp, Moe
from slipway.model.stage import Stage
from slipway.worker.device.budget import slot_bytes
from slipway.worker.device.forms import Arch
from slipway.worker.native import Native
from slipway.worker.plan import ModelPlan
from slipway_kernels.sampling.limits import ROWS_AT_ONCE
from slipway_kernels.sampling.record import RecordLayout

CONTEXT = 512 << 20
"""Of CUDA's context, loaded kernels and what libraries keep outside of torch. Logs of vLLM, which counts the
same, have 0.1 to 0.4 GiB on one device and more on several."""
LIBRARIES = 48 << 20
"""Workspaces of cuBLAS, 32 MiB on Hopper, and two buffers through which changes reach the device."""
REPORTED_ROWS = 256
"""Prompt tokens whose log-probabilities are computed at once."""
SAMPLER_BYTES = 12.25
"""For each row that is sampled and each token: three arrays as wide as the vocabulary, and notes."""


def cuda_needs(plan: ModelPlan, route: Native, config: EngineConfig, arch: Arch) -> RankNeeds:
    """plan: of one rank, with its `route`."""
    stage = route.stage or Stage.whole(len(route.spec.layers))
    part = route.part(plan)
    spec = part.spec
    layers = [spec.layers[number] for number in stage.layers]
    schemes = SizedSchemes(plan.element, arch)
    route.unread(part, schemes)
    draws, element = plan.draws and plan.pooler is None, plan.element.itemsize
    vocab = route.vocab if draws else 1
    return RankNeeds(
        weights=sum(schemes.counted) + _vectors(spec, stage, element),
        state=LIBRARIES,
        request_bytes=4 * RecordLayout(vocab).words + _split_bytes(layers, 1 + config.num_drafts),
        sampled_bytes=int(SAMPLER_BYTES * vocab),
        sampled_rows=ROWS_AT_ONCE,
        position_bytes=_rotation_bytes(layers),
        slot_bytes=slot_bytes(len(plan.kv.groups), min(plan.kv.block_sizes, default=1)),
        logits_bytes=vocab * element,
        step=_step(spec, layers, vocab if draws else 0, element, config.tensor_parallel_size),
        runtime=CONTEXT,
        kv=plan.kv,
    )


def _vectors(spec: DecoderSpec, stage: Stage, element: int) -> int:
    """Norms, which stay in fp32, and biases."""
    vectors = [entry for entry in entries_of(spec) if len(entry.shape) == 1 and stage.has(entry)]
    sizes = {True: element, False: FP32.itemsize}
    return sum(prod(entry.shape) * sizes[entry.kind == "bias"] for entry in vectors)


def _rotation_bytes(layers: Sequence[Layer]) -> int:
    """Cosine and sine of each pair, in fp32, for each position."""
    ropes = {layer.attention.rope for layer in layers}
    return sum(FP32.itemsize * rope.rotary_dim for rope in ropes if rope is not None)


def _split_bytes(layers: Sequence[Layer], queries: int) -> int:
    """Of a request's queries, what the splits of its keys come to before they are added."""
    shapes = {(one.heads, one.head_dim) for one in (layer.attention for layer in layers)}
    return sum(FP32.itemsize * queries * heads * (size + 1) for heads, size in shapes)


def _step(spec: DecoderSpec, layers: Sequence[Layer], vocab: int, element: int, ranks: int) -> Step:
    most = max(max(_attended(spec, one.attention), _fed_forward(spec, one.mlp)) for one in layers)
    joined = vocab * element if ranks == 1 else vocab * element + vocab * element // ranks
    return Step(most * element, joined, fixed=REPORTED_ROWS * vocab * element)


def _attended(spec: DecoderSpec, attention: Attention) -> int:
    """Numbers of a token: the residual stream, its norm, queries, keys and values, queries rotated, what they
    attend to, and the branch."""
    queries, keys = (count * attention.head_dim for count in (attention.heads, attention.kv_heads))
    return 3 * spec.hidden + 3 * queries + 2 * keys


def _fed_forward(spec: DecoderSpec, mlp: Mlp | Moe) -> int:
    """Numbers of a token: the residual stream, its norm, what is between the products, and the branch."""
    match mlp:
        case Mlp():
            return 3 * spec.hidden + 3 * mlp.intermediate
        case Moe():
            between = mlp.top_k * (mlp.intermediate + spec.hidden) + mlp.experts
            shared = spec.hidden + 3 * mlp.shared.intermediate if mlp.shared else 0
            return 3 * spec.hidden + between + shared

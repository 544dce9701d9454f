"""Experts of a mixture, cut or whole on a rank: in every stored form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.ranks import Make, check_together, held, held_bytes, quantized
from model.stepping import plan
from packed_forms import MOE, MOE_OF_GROUPS, QUANTIZED, as_gguf, plain, sources
from slipway.load.arrays import Array, DType
from slipway.load.checkpoint import Checkpoint
from slipway.load.cut import Cut, Stored
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.load.quantized.tensors import Quantized
from slipway.model.registry import families
from slipway.model.shard import Shard, Sharded
from slipway.model.spec import Attention, DecoderSpec, Layer, Mlp, Moe
from slipway.model.weights import load_weights
from slipway.schemes.choice import Schemes
from tensor_files import load, save

MOE_OF_BLOCKS = {**MOE, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}


def stacked(place: Path) -> Path:
    """A layer's experts in two tensors, as transformers 5 has them."""
    folder = plain(place / "stacked", "bfloat16", MOE)
    tensors = load(folder / "model.safetensors")
    for layer in ("model.layers.0.mlp", "model.layers.1.mlp"):
        experts = [
            [tensors.pop(f"{layer}.experts.{expert}.{role}_proj.weight") for role in ("gate", "up", "down")]
            for expert in range(MOE["num_experts"])
        ]
        tensors[f"{layer}.experts.gate_up_proj"] = np.stack([np.concatenate(one[:2]) for one in experts])
        tensors[f"{layer}.experts.down_proj"] = np.stack([one[2] for one in experts])
    save(tensors, folder / "model.safetensors")
    return folder


EXPERTS: dict[str, tuple[Make, dict[str, Any]]] = {
    name: (make, settings) for name, make, settings in sources() if " made " in name
} | {
    "bfloat16": (lambda place: plain(place / "plain", "bfloat16", MOE), {}),
    "stacked": (stacked, {}),
    "fp8-block": (quantized("fp8-block", MOE_OF_BLOCKS, 512), {}),
    **{
        method: (quantized(kind, MOE_OF_GROUPS, **options), {})
        for method, options in QUANTIZED.items()
        if method != "fp8-block"
        for kind in (method.removesuffix("-8bit").removesuffix("-act-order"),)
    },
    **{
        f"GGUF {kind}": (
            lambda place, kind=kind: as_gguf(
                place / "model.gguf", kind, {**MOE_OF_BLOCKS, "moe_intermediate_size": 256}
            ),
            {},
        )
        for kind in ("BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K")
    },
}
"""Of experts, in every form that those have."""
FOUR = {**MOE, "num_experts": 4, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}
WIDE: dict[str, tuple[Make, dict[str, Any]]] = {
    "bfloat16": (lambda place: plain(place / "plain", "bfloat16", FOUR, 128), {}),
    "made int8": (lambda place: plain(place / "plain", "bfloat16", FOUR, 128), {"quantization": "int8"}),
    "gptq-act-order": (quantized("gptq", FOUR, 128, act_order=True), {}),
    "w8a8": (quantized("w8a8", FOUR, 128), {}),
    "fp8-block": (quantized("fp8-block", FOUR, 512), {}),
    "GGUF Q8_0": (lambda place: as_gguf(place / "model.gguf", "Q8_0", FOUR), {}),
    "dense": (lambda place: plain(place / "plain", "bfloat16"), {}),
    "dense fp8-block": (quantized("fp8-block", size=512), {}),
}
"""Wide enough that what a rank has of them is no matter of padding."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("whole_experts", [False, True], ids=["cut", "whole"])
@pytest.mark.parametrize("name", EXPERTS)
def test_ranks_together_compute_what_one_does_of_experts(
    name: str, whole_experts: bool, tmp_path: Path
) -> None:
    """Where an expert is one rank's alone, that one computes with it to the bit."""
    make, settings = EXPERTS[name]
    settings = {**settings, "dtype": "bfloat16"}
    (alone,), *others = held(make(tmp_path), settings, (1, 2, 3), whole_experts=whole_experts)
    for ranks in others:
        experts = [[place for place, _ in one.linears() if place[2] >= 0] for one in ranks]
        known = sorted(place for place, _ in alone.linears() if place[2] >= 0)
        if whole_experts:
            assert sorted(place for one in experts for place in one) == known
        else:
            assert all(sorted(one) == known for one in experts)
        check_together(alone, ranks)


@pytest.mark.parametrize("whole_experts", [False, True], ids=["cut", "whole"])
@pytest.mark.parametrize("name", WIDE)
def test_each_of_two_ranks_holds_six_tenths_at_most(name: str, whole_experts: bool, tmp_path: Path) -> None:
    make, settings = WIDE[name]
    settings = {**settings, "dtype": "bfloat16"}
    (alone,), ranks = held(make(tmp_path), settings, (1, 2), whole_experts=whole_experts)
    assert max(map(held_bytes, ranks)) <= 0.6 * held_bytes(alone)


@pytest.mark.parametrize(("size", "shares"), [(2, (4, 4)), (3, (3, 3, 2)), (8, (1,) * 8)])
def test_experts_are_given_out_as_even_as_can_be(size: int, shares: tuple[int, ...]) -> None:
    """What all rows see is cut as ever."""
    parts = [Sharded(experts(8), {}, Shard(rank, size, whole_experts=True)) for rank in range(size)]
    moes = [mlp for part in parts if isinstance(mlp := part.spec.layers[0].mlp, Moe)]
    assert tuple(len(moe.held) for moe in moes) == shares
    assert [expert for moe in moes for expert in moe.held] == list(range(8))
    assert sum(moe.shared.intermediate for moe in moes if moe.shared) == 64
    for part, moe in zip(parts, moes, strict=True):
        assert (moe.experts, moe.intermediate) == (8, 96)
        having = [expert for expert in range(8) if part.has((0, "expert_down", expert))]
        assert having == list(moe.held)
        assert not any(expert >= 0 for _, _, expert in part.cuts)


def test_more_ranks_than_experts_are_refused_with_what_fits() -> None:
    message = r"size 4 cannot cut 3 experts .* The largest that fits is 3. Without --enable-expert-parallel"
    with pytest.raises(LoadError, match=message):
        Sharded(experts(3), {}, Shard(0, 4, whole_experts=True))


def experts(count: int) -> DecoderSpec:
    """Each of 96 rows, and one of 64 that all rows see."""
    moe = Moe(count, 2, 96, "silu", normalize_top_k=True, shared=Mlp(64, "silu"))
    return DecoderSpec(
        "Any", 64, 256, (Layer(Attention(8, 8, 8, None, 1.0), moe),), 1e-5, 4096, tied_embedding=False
    )


class Counting(Checkpoint):
    """A checkpoint that writes down what is read of it."""

    def __init__(self, of: Checkpoint) -> None:
        self.read: list[str] = []
        self._of = of

    def forms(self) -> Mapping[str, Form]:
        return self._of.forms()

    def stored(self, dtype: DType) -> Iterator[tuple[str, Stored]]:
        for name, stored in self._of.stored(dtype):

            def read(cut: Cut, name: str = name, stored: Stored = stored) -> Array | Quantized:
                self.read.append(name)
                return stored.read(cut)

            yield name, Stored(stored.shape, read)


@pytest.mark.parametrize("name", ["bfloat16", "gptq", "GGUF Q8_0"])
def test_experts_of_other_ranks_are_not_read(name: str, tmp_path: Path) -> None:
    make, settings = EXPERTS[name]
    found = plan(make(tmp_path), **settings)
    spec, family = found.route.spec, families()[found.route.architecture]
    assert spec is not None
    counting = Counting(found.checkpoint)
    load_weights(spec, family, counting, Schemes(found.element), shard=Shard(1, 3, whole_experts=True))
    assert {one.split(".experts.")[1][0] for one in counting.read if ".experts." in one} == {"1"}
    assert sum("self_attn" in one for one in counting.read) > 0

"""What `--quantization` means for a checkpoint: what it says itself, or rounding plain weights."""

from __future__ import annotations

from dataclasses import dataclass

from slipway.load.arrays import E4M3, FP32
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form, GroupedForm, ScaledForm

GROUP = 32
"""Columns that share a scale: the products on CPU quantize activations by as many."""

LEFT_ALONE = frozenset(("embedding", "head", "router", "shared_scale", "score", "score_0", "score_1"))
"""Matrices whose few numbers decide much."""


@dataclass(frozen=True, slots=True)
class OnTheFly:
    """What `--quantization` asks for by a name of `ON_THE_FLY`."""

    bits: int
    floats: bool = False
    experts_only: bool = False

    def form(self, role: str, shape: tuple[int, ...]) -> Form | None:
        """How a matrix [n, k] of this role is held; None where it stays plain."""
        if len(shape) != 2 or role in LEFT_ALONE or (self.experts_only and "expert" not in role):
            return None
        if self.floats:
            return ScaledForm(E4M3)
        if self.experts_only:
            return GroupedForm(self.bits, shape[1], scales=FP32)
        if shape[1] % GROUP:
            return None
        return GroupedForm(self.bits, GROUP, minimums=self.bits == 4, scales=FP32)


ON_THE_FLY = {
    "fp8": OnTheFly(8, floats=True),
    "ptpc_fp8": OnTheFly(8, floats=True),
    "int8": OnTheFly(8),
    "int4": OnTheFly(4),
    "experts_int8": OnTheFly(8, experts_only=True),
}
"""What plain weights can be made by name; fp8 has a scale for each row, as ptpc_fp8 says in full."""

METHODS = {
    "awq": ("awq",),
    "awq_marlin": ("awq",),
    "compressed-tensors": ("compressed-tensors",),
    "fbgemm_fp8": ("fbgemm_fp8",),
    "fp8": ("fp8",),
    "gguf": ("gguf",),
    "gptq": ("gptq",),
    "gptq_bitblas": ("gptq",),
    "gptq_marlin": ("gptq",),
    "gptqmodel": ("gptq",),
    "ipex": ("awq", "gptq"),
    "moe_wna16": ("awq", "gptq"),
}
"""Checkpoints that each name stands for. Those that name a library's kernels run with ours."""

WORKING = tuple(sorted({*METHODS, *ON_THE_FLY}))
"""The names that mean something here."""


def conversion(asked: str | None, method: str) -> OnTheFly | None:
    """What is to be made of a checkpoint's plain weights.

    asked   `--quantization`
    method  how the checkpoint is quantized; "" where its weights are plain
    Raises LoadError where the two contradict each other, or the name is not supported.
    """
    if asked is None or method in METHODS.get(asked, ()):
        return None
    if not method and asked in ON_THE_FLY:
        return ON_THE_FLY[asked]
    if asked not in WORKING:
        raise _refused(f"--quantization {asked} is not supported yet.", f"Use one of {', '.join(WORKING)}.")
    if method:
        raise _refused(
            f"--quantization {asked} contradicts the checkpoint, whose weights are quantized by {method}.",
            f"Leave it out, or give {method}.",
        )
    raise _refused(
        f"--quantization {asked} wants a checkpoint that is quantized so, and this one's weights are plain.",
        f"Leave it out, or use a quantized checkpoint; plain weights can be made {', '.join(ON_THE_FLY)}.",
    )


def _refused(message: str, hint: str) -> LoadError:
    return LoadError("UnsupportedFormat", message, hint=hint, argument="quantization")

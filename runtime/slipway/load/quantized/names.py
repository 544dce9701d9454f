"""What `--quantization` means for a checkpoint: nothing more than it says itself, or a conversion."""

from __future__ import annotations

from slipway.load.errors import LoadError
from slipway.load.quantized.on_the_fly import ON_THE_FLY, OnTheFly

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

"""What a start says where weights are not held as the checkpoint, or `--quantization`, has them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from slipway.load.arrays import FP32, DType, is_float
from slipway.load.quantized.form import Form, GroupedForm, ScaledForm
from slipway.schemes.left_out import VARIABLE, left_out


def notices(
    forms: Collection[Form],
    kept: Callable[[Form], bool],
    dtype: DType,
    *,
    native: bool = True,
    device: str = "CPU",
    decoded: Collection[tuple[str, float]] = (),
) -> list[str]:
    """On matrices that are dequantized, with the price, and on scales left unused.

    forms   of the quantized matrices
    kept    whether a form is multiplied as it is
    dtype   what others are held in
    native  whether our own code runs the model
    device  where: CPU or CUDA
    decoded  types, and bits for each weight, of matrices that are plain once they are read
    """
    wide = [form for form in forms if not (native and kept(form))]
    texts = []
    if wide:
        times = max(dtype.itemsize * 8 / form.bits for form in wide)
        reason = _reason(wide, dtype, native, device)
        texts.append(
            f"{len(wide)} of {len(forms)} quantized matrices are held in {dtype}: {reason}. They take "
            f"{times:g} times the memory of the checkpoint, and as much longer to read in each step."
        )
    if decoded:
        times = max(dtype.itemsize * 8 / bits for _, bits in decoded)
        kinds = ", ".join(sorted({kind for kind, _ in decoded}))
        texts.append(
            f"{len(decoded)} quantized matrices are held in {dtype}: no product reads {kinds} as stored. "
            f"They take up to {times:.1f} times the memory of the file, and as much longer to read in each "
            "step."
        )
    if any(isinstance(form, ScaledForm) and form.static for form in forms):
        texts.append(
            f"The checkpoint's measured scales of activations are not used: on {device} activations are "
            "scaled token by token, or not quantized at all."
        )
    return texts


def _reason(wide: Collection[Form], dtype: DType, native: bool, device: str) -> str:
    if not native:
        return "transformers' code runs this model, and only ours multiplies quantized weights"
    if dtype == FP32:
        return "--dtype float32 asks for all the precision there is"
    if any(map(left_out, wide)):
        return f"{VARIABLE} leaves out what multiplies them as they are"
    if any(isinstance(form, ScaledForm) and is_float(form.values) for form in wide):
        return f"there are no such products of fp8 on this {device}"
    if any(isinstance(form, GroupedForm) and form.order for form in wide):
        return f"{device} has no products for columns in an order of their own (act-order, desc_act)"
    return f"there are no products on {device} for their form"

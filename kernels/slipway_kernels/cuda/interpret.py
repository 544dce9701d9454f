"""Makes Triton's interpreter compute in bf16, so that kernels can be checked on a CPU.

The interpreter keeps bf16 as its 16 bits. Up to triton 3.9 at least it feeds those bits to numpy as integers,
so that sums, products, dots and casts from integers are wrong, and it cuts fp32 off where the hardware rounds
to nearest, ties to even. Here all of them go through fp32 and are rounded once. Its casts to fp8 lose the
carry of a rounded mantissa; here torch's stand in for them, and what is too large saturates, as on the
device. It spreads the comparison of two scalars as if it were of their type. With numpy 2.4, triton 3.6's
also refuses a loop whose bounds are numbers of the launch.

Before every call of a function within a kernel it looks through triton.language for what to replace, which
took a third of its time; here once a launch for each module is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


def _widened(value: Any) -> Any:
    """The same numbers in fp32, where they are bf16."""
    if value.dtype.scalar != tl.bfloat16:
        return value
    wide = (value.data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return interpreter.TensorHandle(wide, tl.float32)


def _narrowed(values: Any) -> Any:
    values = values.astype(np.float32)
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.where(np.isnan(values), bits | np.uint32(0x400000), rounded)
    return interpreter.TensorHandle((rounded >> np.uint32(16)).astype(np.uint16), tl.bfloat16)


_FLOAT8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}


def _eighth(values: Any, target: Any) -> Any:
    """Rounded to fp8, ties to even; NaN stays NaN."""
    largest = torch.finfo(_FLOAT8[target]).max
    rounded = torch.from_numpy(values.astype(np.float32)).clamp(-largest, largest).to(_FLOAT8[target])
    return interpreter.TensorHandle(rounded.view(torch.uint8).numpy(), target)


@cache
def repair() -> None:
    """Change the interpreter of this process; once is enough."""
    builder = interpreter.InterpreterBuilder
    dot: Callable[..., Any] = builder.create_dot
    binary: Callable[..., Any] = builder.binary_op
    cast: Callable[..., Any] = builder.cast_impl
    convert: Callable[..., Any] = builder.create_fp_to_fp
    splat: Callable[..., Any] = builder.create_splat
    patch: Callable[..., Any] = interpreter._patch_lang_tensor

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return dot(self, _widened(a), _widened(b), d, *rest)

    def binary_op(self: Any, left: Any, right: Any, operation: Any) -> Any:
        if left.dtype.scalar != tl.bfloat16:
            return binary(self, left, right, operation)
        result = operation(_widened(left).data, _widened(right).data)
        return interpreter.TensorHandle(result, tl.int1) if result.dtype == np.bool_ else _narrowed(result)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar == tl.bfloat16:
            source = _widened(source)
        if target.scalar != tl.bfloat16:
            return cast(self, source, target)
        return _narrowed(cast(self, source, tl.float32).data)

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        if target.scalar not in _FLOAT8:
            return convert(self, source, target, rounding)
        return _eighth(cast_impl(self, source, tl.float32).data, target.scalar)

    def create_splat(self: Any, kind: Any, value: Any) -> Any:
        if value.data.dtype != np.bool_:
            return splat(self, kind, value)
        return interpreter.TensorHandle(np.full(kind.shape, value.data), tl.int1)

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patch_tensor
    builder.create_dot, builder.binary_op, builder.cast_impl = create_dot, binary_op, cast_impl
    builder.create_fp_to_fp, builder.create_splat = create_fp_to_fp, create_splat
    _hasten()


def _hasten() -> None:
    """Leave out what takes time and changes no result."""
    patch_language: Callable[..., Any] = interpreter._patch_lang
    launch: Callable[..., Any] = interpreter.GridExecutor.__call__
    patched: set[int] = set()

    def patch_once(function: Any) -> Any:
        """A launch asks first, and undoes the scope that it is given; what it calls drops theirs."""
        module = id(function.__globals__)
        if module in patched:
            return None
        patched.add(module)
        return patch_language(function)

    def launch_afresh(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        launch(self, *args, **kwargs)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, launch_afresh
    # Whether each sum of integers fits takes nine operations to tell, and only debugging is told of it.
    running = interpreter.interpreter_builder
    running.options = replace(running.options, sanitize_overflow=False)

"""Makes Triton's interpreter compute in bf16, so that kernels can be checked on a CPU.

The interpreter keeps bf16 as its 16 bits. Up to triton 3.9 at least it feeds those bits to numpy as integers,
so that sums, products, dots and casts from integers are wrong, and it cuts fp32 off where the hardware rounds
to nearest, ties to even. Here all of them go through fp32 and are rounded once. Its casts to fp8 lose the
carry of a rounded mantissa; here torch's stand in for them, and what is too large saturates, as on the
device. It spreads the comparison of two scalars as if it were of their type. With numpy 2.4, triton 3.6's
also refuses a loop whose bounds are numbers of the launch.

Its time goes into Python, not into numbers. Before every call of a function within a kernel it looks through
triton.language for what to replace, and for every result it makes and names the type anew: here once is
enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from inspect import getmembers
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
    interpreter._patch_builtin = _patch_builtin
    _remember_types()
    _pass_over_equal_types()


def _patch_builtin(target: Any, builder: Any, scope: Any) -> None:
    """Have the operations of the language that are found here interpreted, until the scope ends."""
    for name in _operations(target):
        if tl.core.is_builtin(member := getattr(target, name)):  # a test may have put another in its place
            scope.set_attr(target, name, _with_semantic(member))


@cache
def _operations(target: Any) -> list[str]:
    """By name. First asked for when none is interpreted yet."""
    return [name for name, member in getmembers(target) if tl.core.is_builtin(member)]


@cache
def _with_semantic(operation: Callable[..., Any]) -> Callable[..., Any]:
    semantic = interpreter.interpreter_semantic

    def interpreted(*args: Any, **named: Any) -> Any:
        named["_semantic"] = semantic
        return operation(*args, **named)

    return interpreted


def _remember_types() -> None:
    """Make each type of blocks once, and what numpy and a tensor tell of a type."""
    block: Any = tl.core.block_type
    tensor: Any = tl.core.tensor
    make: Callable[..., None] = block.__init__
    describe: Callable[..., None] = tensor.__init__
    in_numpy: Callable[[Any], Any] = interpreter._get_np_dtype
    made: dict[Any, Any] = {}
    by_name: dict[str, Any] = {}

    def of_numpy(type: Any) -> Any:
        if type.name not in by_name:
            by_name[type.name] = in_numpy(type)
        return by_name[type.name]

    def key_of(element: Any, shape: Any) -> Any:
        return element.name, *[size.value if isinstance(size, tl.constexpr) else size for size in shape]

    def new_block(cls: Any, element_ty: Any, shape: Any) -> Any:
        return made.get(key_of(element_ty, shape)) or object.__new__(cls)

    def init_block(self: Any, element_ty: Any, shape: Any) -> None:
        if "numel" not in vars(self):
            make(self, element_ty, shape)
            made[key_of(element_ty, shape)] = self

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        known = vars(type).get("description")
        if known is None:
            describe(self, handle, type)
            type.description = self.numel, self.dtype, self.shape
        else:
            self.handle, self.type = handle, type
            self.numel, self.dtype, self.shape = known

    block.__new__, block.__init__, tensor.__init__ = new_block, init_block, init_tensor
    interpreter._get_np_dtype = of_numpy


def _pass_over_equal_types() -> None:
    """A value that has the type that is wanted is the result."""
    semantic = type(interpreter.interpreter_semantic)
    broadcast: Callable[..., Any] = semantic.broadcast_impl_value
    cast: Callable[..., Any] = semantic.cast

    def broadcast_others(self: Any, left: Any, right: Any) -> Any:
        return (left, right) if left.type is right.type else broadcast(self, left, right)

    def cast_others(self: Any, value: Any, wanted: Any, *rest: Any, **named: Any) -> Any:
        return value if value.dtype is wanted.scalar else cast(self, value, wanted, *rest, **named)

    semantic.broadcast_impl_value, semantic.cast = broadcast_others, cast_others

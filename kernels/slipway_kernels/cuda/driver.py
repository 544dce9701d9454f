"""NVIDIA's driver, as far as launching a compiled kernel takes it: libcuda by ctypes.

Triton starts a kernel in 25 µs of Python, and of C that it compiles for each signature. A step of prompts has
300 launches, and waited for the host. Here a launch is one call of the driver, and its parameters lie ready.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure, byref, c_char_p, c_int, c_uint, c_uint32, c_uint64, c_void_p
from functools import cache

from slipway_kernels.cuda.compiled import Compiled, Descriptor

LIBRARY = "libcuda.so.1"
TENSOR_MAP_BYTES = 128
MOST_MAPS = 1024
"""Of one layout: the weights of a deep model's layers, and activations."""
LARGEST_STATIC_SHARED = 48 << 10
"""Bytes of shared memory that a kernel may have without being allowed more."""

# The driver's numbers for what is asked of it, as cuda.h has them.
_PREFER_SHARED = 1
_MAX_DYNAMIC_SHARED = 8
_DEVICE_POINTER = 3
_NOT_INTERLEAVED = 0
_L2_PROMOTION_128_BYTES = 2
_ZEROS_OUT_OF_BOUNDS = 0
_HOST_TYPES = {8: 10, 9: 8, 10: 9}
"""Where a type's number in a descriptor on the device differs from CUtensorMapDataType's: f32 with flushed
denormals, f64 and bf16."""


class LaunchConfig(Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("num_attributes", c_uint),
    )


class DriverError(RuntimeError):
    """The driver refused a call, which the message names with its own words."""


class Driver:
    """The functions of libcuda. Raises OSError where there is none."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL(LIBRARY)
        self.launch = self._cuda.cuLaunchKernelEx
        self.encode = self._cuda.cuTensorMapEncodeTiled

    def check(self, status: int, what: str) -> None:
        """Raises DriverError unless the status is success."""
        if status:
            words = c_char_p()
            self._cuda.cuGetErrorString(c_int(status), byref(words))
            raise DriverError(f"{what}: {(words.value or b'unknown error').decode()} (CUDA error {status})")

    def enter(self, device: int) -> None:
        """Give this thread the device's context, where it has none: the one that torch uses."""
        context = c_void_p()
        self.check(self._cuda.cuCtxGetCurrent(byref(context)), "asking for the context")
        if context.value:
            return
        what = f"the context of device {device}"
        self.check(self._cuda.cuDevicePrimaryCtxRetain(byref(context), c_int(device)), what)
        self.check(self._cuda.cuCtxSetCurrent(context), what)

    def load(self, compiled: Compiled) -> c_void_p:
        """The function of a compiled kernel, in the context of this thread; it stays loaded."""
        module, function, what = c_void_p(), c_void_p(), f"loading {compiled.name}"
        self.check(self._cuda.cuModuleLoadData(byref(module), compiled.code), what)
        self.check(self._cuda.cuModuleGetFunction(byref(function), module, compiled.name.encode()), what)
        if compiled.shared > LARGEST_STATIC_SHARED:
            what = f"{compiled.shared} bytes of shared memory for {compiled.name}"
            self.check(self._cuda.cuFuncSetCacheConfig(function, c_int(_PREFER_SHARED)), what)
            most = c_int(_MAX_DYNAMIC_SHARED), c_int(compiled.shared)
            self.check(self._cuda.cuFuncSetAttribute(function, *most), what)
        return function

    def reaches(self, address: int) -> bool:
        """Whether kernels can read this address; of memory on the host only what is pinned."""
        found = c_uint64()
        asked = byref(found), c_int(_DEVICE_POINTER), c_uint64(address)
        return bool(self._cuda.cuPointerGetAttribute(*asked) == 0)


@cache
def driver() -> Driver:
    """The one of this process. Raises OSError where there is none."""
    return Driver()


class TensorMaps:
    """The CUtensorMaps of tensors of one layout, kept by address: to encode one takes as long as a launch."""

    def __init__(self, wanted: Descriptor, shape: Sequence[int], strides: Sequence[int]) -> None:
        """shape, strides: of the tensor, in numbers, outermost first; the innermost are adjacent."""
        rank = len(wanted.block)
        self._known: dict[int, tuple[int, object]] = {}
        sizes = (c_uint64 * rank)(*reversed(shape))
        bytes_between = (c_uint64 * rank)(*(one * wanted.elem_size for one in reversed(strides[:-1])))
        block = (c_uint32 * rank)(*reversed(wanted.block))
        every = (c_uint32 * rank)(*(1,) * rank)
        kind = _HOST_TYPES.get(wanted.elem_type, wanted.elem_type)
        self._encode = driver().encode
        self._before = c_int(kind), c_uint(rank)
        self._behind = (
            *(sizes, bytes_between, block, every),
            *(c_int(_NOT_INTERLEAVED), c_int(wanted.swizzle)),
            *(c_int(_L2_PROMOTION_128_BYTES), c_int(_ZEROS_OUT_OF_BOUNDS)),
        )

    def at(self, address: int) -> int:
        """Where the map lies of the tensor at this address.

        Raises DriverError for what TMA does not take: an address or a stride that is no multiple of 16.
        """
        known = self._known.get(address)
        if known is not None:
            return known[0]
        if len(self._known) == MOST_MAPS:
            self._known.clear()
        memory = ctypes.create_string_buffer(2 * TENSOR_MAP_BYTES)
        place = -(-ctypes.addressof(memory) // TENSOR_MAP_BYTES) * TENSOR_MAP_BYTES
        status = self._encode(c_void_p(place), *self._before, c_void_p(address), *self._behind)
        driver().check(status, f"a tensor descriptor at {address:#x}")
        self._known[address] = place, memory
        return place

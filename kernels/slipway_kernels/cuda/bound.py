"""A launch with everything laid out but the addresses of its tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_float, c_int8, c_int32, c_int64, c_uint64, c_void_p
from math import prod
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from slipway_kernels.cuda.compiled import WARP, Compiled, find
from slipway_kernels.cuda.driver import LaunchConfig, TensorMaps, driver
from slipway_kernels.cuda.specialization import Specialization

_SCALARS = {"i32": c_int32, "i64": c_int64, "u1": c_int8, "fp32": c_float}
_loaded: dict[tuple[int, str], tuple[Compiled, c_void_p]] = {}
"""By device and `Specialization.key`: kernels stay where they are."""


class Bound:
    """One launch, which may be repeated on other tensors of the same layout.

    tensors  those that it was bound with, in the order in which `run` takes addresses
    Not for two threads at once: the parameters lie in one place.
    """

    def __init__(
        self, s: Specialization, grid: tuple[int, ...], given: Mapping[str, Any], device: torch.device
    ) -> None:
        """device: that the tensors are on."""
        compiled, self._function = _load(s, device.index or 0)
        self.tensors: list[Tensor] = []
        self._maps: list[tuple[int, int, TensorMaps]] = []
        """Of each descriptor: its place among the parameters and its tensor's among the addresses."""
        self._kept: list[object] = []
        self._parameters: list[int] = []
        """Addresses of the parameters; of a tensor's, where it will lie among `_addresses`."""
        descriptors = iter(compiled.descriptors)
        pointers: list[tuple[int, int]] = []
        for parameter in s.kernel.params:
            kind, value = s.types[parameter.name], given.get(parameter.name, parameter.default)
            if kind == "constexpr":
                continue
            if kind.startswith("*"):
                pointers.append((len(self._parameters), len(self.tensors)))
                self._parameters.append(0)
                self.tensors.append(value)
            elif isinstance(value, TensorDescriptor):
                maps = TensorMaps(next(descriptors), value.shape, value.strides)
                self._maps.append((len(self._parameters), len(self.tensors), maps))
                self._parameters.append(0)
                self.tensors.append(value.base)
                for size in value.shape:
                    self._scalar(c_int32(size))
                for stride in value.strides:
                    self._scalar(c_int64(stride))
            else:
                self._scalar(_SCALARS[kind](value))
        self._addresses = (c_uint64 * len(self.tensors))()
        first = ctypes.addressof(self._addresses)
        for place, number in pointers:
            self._parameters[place] = first + 8 * number
        self._device, self._scratch, self._scratch_at = device, prod(grid) * compiled.scratch, c_uint64(0)
        self._scalar(self._scratch_at)
        self._scalar(c_uint64(0))  # memory to profile
        self._config = LaunchConfig((*grid, 1, 1)[:3], (WARP * compiled.num_warps, 1, 1), compiled.shared)
        self._places = (c_void_p * len(self._parameters))(*self._parameters)
        self._call = byref(self._config), self._function, self._places, None
        self._launch, self._stream = driver().launch, 0
        self.name = compiled.name

    def _scalar(self, value: Any) -> None:
        self._kept.append(value)
        self._parameters.append(ctypes.addressof(value))

    def run(self, addresses: list[int], stream: int) -> None:
        """Start it on a stream. Raises DriverError where the driver refuses."""
        self._addresses[:] = addresses  # type: ignore[assignment]  # numbers will do
        for place, number, maps in self._maps:
            self._places[place] = maps.at(addresses[number])
        if stream != self._stream:
            self._config.stream = self._stream = stream
        if self._scratch:  # torch reuses it on this stream alone, and so only behind the kernel
            memory = torch.empty(self._scratch, dtype=torch.uint8, device=self._device)
            self._scratch_at.value = memory.data_ptr()
        status = self._launch(*self._call)
        if status:
            driver().check(status, f"starting {self.name}")


def _load(s: Specialization, device: int) -> tuple[Compiled, c_void_p]:
    key = device, s.key
    if key not in _loaded:
        compiled = find(s)
        driver().enter(device)
        _loaded[key] = compiled, driver().load(compiled)
    return _loaded[key]

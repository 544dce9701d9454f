"""Schemes of matrices that lie on an accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from slipway.load.arrays import Array, DType, Floats, Ints
from slipway.load.dummy import DEVIATION
from slipway.load.quantized.form import Form, GroupedForm, ScaledForm
from slipway.load.quantized.tensors import Quantized
from slipway.load.torch_arrays import tensor, torch_type
from slipway.schemes.scheme import NewScheme
from slipway.worker.device.forms import kept, kept_of_experts
from slipway.worker.device.products import DeviceScheme, Gate, Move, Operand, Rows
from slipway.worker.device.quantized import QuantizedTensors, as_tensors
from slipway.worker.device.ranks import Alone, Ranks
from slipway.worker.device.transfer import Transfer
from slipway_kernels.cuda.launch import arch_of, device_in_use
from slipway_kernels.embedding import embed
from slipway_kernels.linear_bf16 import linear_bf16
from slipway_kernels.linear_w4a16 import Packed, Workspace, linear_w4a16, pack
from slipway_kernels.linear_w4a16 import rows as packed_rows
from slipway_kernels.linear_w8a8 import linear_w8a8
from slipway_kernels.moe import Arrangement, Scaled, moe_linear, stack_experts

CPU = torch.device("cpu")


def keeps(form: Form, dtype: DType) -> bool:
    """As `forms.kept`, of the device in use."""
    return kept(form, dtype, device_arch)


def device_arch() -> int:
    """Compute capability, times ten, of the device in use."""
    return arch_of(device_in_use())


class DeviceSchemes:
    """The schemes of one model on a device.

    on_host    layers, ascending, whose matrices are gathered in host memory, from which they are moved once
               they are read
    workspace  of products, shared with others; by default one of its own
    ranks      with whom the matrices are shared; None: nobody
    """

    def __init__(
        self,
        dtype: DType,
        transfer: Transfer,
        on_host: Sequence[int] = (),
        workspace: Workspace | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.dtype = dtype
        self.ranks: Ranks = ranks or Alone()
        self._kind = torch_type(dtype)
        self.gates_alternate = False
        self._transfer = transfer
        self._dense: NewScheme = partial(DeviceDense, self._kind, transfer)
        self._made: dict[Form, NewScheme] = {}
        self._workspace = workspace or Workspace(transfer.device)
        self.device = self._workspace.device
        self.on_host = on_host
        self._host = DeviceSchemes(dtype, Transfer(CPU), workspace=self._workspace) if on_host else self

    def placed(self, bias: Floats) -> Tensor:
        """Beside the matrices' results, in their type."""
        return tensor(bias).to(self.device, self._kind)

    def drawn(self, shape: tuple[int, ...], seed: int) -> Tensor:
        """Drawn on the device, where billions take seconds."""
        random = torch.Generator(self.device).manual_seed(seed)
        empty = torch.empty(shape, dtype=self._kind, device=self.device)
        return empty.normal_(0.0, DEVIATION, generator=random)

    def in_layer(self, number: int) -> DeviceSchemes:
        return self._host if number in self.on_host else self

    def of(self, form: Form | None, *, row: int = 0, expert: bool = False) -> NewScheme:
        """Experts' products are grouped. What begins within a block of rows that share a scale is not fused
        with its neighbour above."""
        if form is None or not self._keeps(form, row, expert=expert):
            return self._dense
        make: NewScheme
        if isinstance(form, ScaledForm):
            make = partial(DeviceScaled, form, self._kind, self._transfer)
        else:
            make = partial(DeviceGrouped, form, self._kind, self._transfer, self._workspace)
        return self._made.setdefault(form, make) if row % form.steps[0] == 0 else make

    def _keeps(self, form: Form, row: int, *, expert: bool) -> bool:
        if expert:
            return kept_of_experts(form, self.dtype, row, device_arch)
        return keeps(form, self.dtype)


class DeviceDense(DeviceScheme):
    """Numbers of one type, multiplied by cuBLAS, or by our kernel where that was measured to be faster."""

    weight: Tensor  # [n, k]
    operand = None

    def __init__(self, dtype: torch.dtype, transfer: Transfer) -> None:
        self._dtype = dtype
        self._transfer = transfer

    def create(self, shape: tuple[int, int]) -> None:
        self.weight = torch.zeros(shape, dtype=self._dtype, device=self._transfer.device)

    def load(self, rows: Ints, matrix: Array | Tensor | Quantized) -> None:
        given = as_tensors(matrix)
        weights = given if isinstance(given, Tensor) else given.dequantized()
        self._transfer.place(self.weight, tensor(rows), weights)

    def apply(self, x: Rows, bias: Tensor | None = None) -> Tensor:
        if self._dtype is torch.float32:
            return linear(x.plain, self.weight, bias)
        rows, weight = x.plain, self.weight
        out = torch.empty(rows.shape[0], weight.shape[0], dtype=self._dtype, device=rows.device)
        return linear_bf16(rows, weight, out, bias=bias)

    def rows(self, ids: Tensor) -> Tensor:
        out = torch.empty(len(ids), self.weight.shape[1], dtype=self._dtype, device=self.weight.device)
        return embed(self.weight, ids, out)

    def stored(self, ids: Tensor) -> Tensor | None:
        return self.weight[ids.to(self.weight.device)]

    def move(self, to: Move) -> None:
        self.weight = to(self.weight)

    def stacked(self, experts: Sequence[Self]) -> Self:
        stack = copy(self)
        stack.weight = torch.stack([_released(one, "weight") for one in experts])
        return stack

    def apply_experts(self, x: Rows, order: Arrangement, out: Tensor, activation: Gate = "") -> Tensor:
        return moe_linear(x.plain, self.weight, order, out, activation=activation)


class DeviceScaled(DeviceScheme):
    """fp8 or int8 numbers, multiplied by activations that are quantized to the same type row by row.

    A scale that the checkpoint has for all activations is not used: each token's own loses less.
    """

    values: Tensor  # [n, k]
    scales: Tensor  # [n], or [n / 128, k / 128], fp32

    def __init__(self, form: ScaledForm, dtype: torch.dtype, transfer: Transfer) -> None:
        self._form = form
        self._dtype = dtype
        self._transfer = transfer
        self.operand: Operand = torch_type(form.values), form.block[1] if form.block else 0

    def create(self, shape: tuple[int, int]) -> None:
        n, k = shape
        device = self._transfer.device
        self.values = torch.zeros(shape, dtype=torch_type(self._form.values), device=device)
        high, wide = self._form.block or (1, k)
        blocks = (-(-n // high), -(-k // wide)) if self._form.block else (n,)
        self.scales = torch.ones(blocks, device=device)

    def load(self, rows: Ints, matrix: Array | Tensor | Quantized) -> None:
        given, where = as_tensors(matrix), tensor(rows)
        assert isinstance(given, QuantizedTensors)
        self._transfer.place(self.values.view(torch.uint8), where, given.numbers.view(torch.uint8))
        scales = given.scales
        if self._form.block is None:
            self.scales[where.long()] = scales.reshape(-1).expand(len(rows)).to(self.scales.device)
            return
        high = self._form.block[0]
        first = int(rows[0])
        if first % high:
            raise ValueError(
                f"rows from {first} on begin within a block of {high} rows that share a scale: load them "
                "apart."
            )
        self.scales[first // high : first // high + len(scales)] = scales.to(self.scales.device)

    def apply(self, x: Rows, bias: Tensor | None = None) -> Tensor:
        rows, values = x.quantized(self.operand), self.values
        m, n = rows.values.shape[0], values.shape[0]
        out = torch.empty(m, n, dtype=self._dtype, device=values.device)
        return linear_w8a8(rows.values, rows.scales, values, self.scales, out, bias=bias)

    def rows(self, ids: Tensor) -> Tensor:
        chosen = ids.clamp(min=0).long()
        values = self.values[chosen].float()
        if self._form.block is None:
            values *= self.scales[chosen, None]
        else:
            high, wide = self._form.block
            values *= self.scales[chosen // high].repeat_interleave(wide, 1)[:, : values.shape[1]]
        return (values * (ids >= 0)[:, None]).to(self._dtype)

    def move(self, to: Move) -> None:
        self.values, self.scales = to(self.values), to(self.scales)

    def stacked(self, experts: Sequence[Self]) -> Self:
        stack = copy(self)
        values = torch.stack([_released(one, "values").view(torch.uint8) for one in experts])
        stack.values = values.view(torch_type(self._form.values))
        stack.scales = torch.stack([_released(one, "scales") for one in experts])
        return stack

    def apply_experts(self, x: Rows, order: Arrangement, out: Tensor, activation: Gate = "") -> Tensor:
        rows, matrices = x.quantized(self.operand), Scaled(self.values, self.scales)
        return moe_linear(rows.values, matrices, order, out, activation=activation, x_scale=rows.scales)


class DeviceGrouped(DeviceScheme):
    """Small integers with a scale for each group of columns, which become numbers in registers."""

    packed: Packed
    operand = None

    def __init__(
        self, form: GroupedForm, dtype: torch.dtype, transfer: Transfer, workspace: Workspace
    ) -> None:
        self._form = form
        self._dtype = dtype
        self._home = transfer.device
        self._device = workspace.device
        self._workspace = workspace
        self._order: Tensor | None = None
        self._missing = 0

    def create(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        self._missing = shape[0]

    def load(self, rows: Ints, matrix: Array | Tensor | Quantized) -> None:
        """Once all rows are there they are packed on the device, so that few matrices wait at a time."""
        given = as_tensors(matrix)
        assert isinstance(given, QuantizedTensors)
        if self._missing == self._shape[0]:
            self._begin(CPU)
        where = tensor(rows).long()
        self._codes[where] = given.numbers.cpu()
        self._scales[where] = given.scales.cpu()
        if self._minimums is not None and given.minimums is not None:
            self._minimums[where] = given.minimums.cpu()
        self._order = given.order
        self._missing -= len(rows)
        if not self._missing:
            self._pack()

    def finish(self) -> None:
        if self._missing == self._shape[0]:
            self._begin(self._device)
        if self._missing:
            self._pack()

    def apply(self, x: Rows, bias: Tensor | None = None) -> Tensor:
        rows = x.plain
        out = torch.empty(rows.shape[0], self.packed.n, dtype=self._dtype, device=rows.device)
        return linear_w4a16(rows, self.packed, out, workspace=self._workspace, bias=bias)

    def rows(self, ids: Tensor) -> Tensor:
        out = torch.zeros(len(ids), self.packed.k, dtype=self._dtype, device=ids.device)
        return packed_rows(self.packed, ids, out)

    def move(self, to: Move) -> None:
        held = self.packed
        order = None if held.order is None else to(held.order)
        words, params, mask = to(held.words), to(held.params), to(held.mask)
        self.packed = replace(held, words=words, params=params, mask=mask, order=order)

    def stacked(self, experts: Sequence[Self]) -> Self:
        stack = copy(self)
        stack.packed = stack_experts([_released(one, "packed") for one in experts])
        return stack

    def apply_experts(self, x: Rows, order: Arrangement, out: Tensor, activation: Gate = "") -> Tensor:
        return moe_linear(x.plain, self.packed, order, out, activation=activation)

    def _begin(self, device: torch.device) -> None:
        """Make room for the codes, where the first of them comes: not for those of all matrices at once."""
        n, k = self._shape
        groups = -(-k // self._form.group)
        codes = torch.uint8 if self._form.bits == 4 else torch.int8
        self._codes = torch.zeros(n, k, dtype=codes, device=device)
        self._scales = torch.zeros(n, groups, device=device)
        self._minimums = torch.zeros(n, groups, device=device) if self._form.minimums else None

    def _pack(self) -> None:
        minimums = None if self._minimums is None else self._minimums.to(self._device)
        order = None if self._order is None else self._order.to(self._device)
        self.packed = pack(
            self._codes.to(self._device),
            self._scales.to(self._device),
            minimums,
            order,
            bits=self._form.bits,
            dtype=self._dtype,
        )
        self.move(lambda part: part.to(self._home))
        self._missing = 0
        del self._codes, self._scales, self._minimums


def _released(scheme: object, name: str) -> Any:
    """What a scheme holds, and then holds no more."""
    held = getattr(scheme, name)
    delattr(scheme, name)
    return held

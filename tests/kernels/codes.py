"""Matrices of small integers, made by rounding to the nearest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipway.load.torch_arrays import array
from slipway_kernels.cpu import PackedCodes


@dataclass(frozen=True)
class Form:
    bits: int
    group: int
    minimums: bool
    wide: bool = False
    """Scales in fp32."""


@dataclass(frozen=True)
class Codes:
    """w = scale · code + minimum; what `PackedCodes.load_rows` takes."""

    form: Form
    codes: Tensor
    scales: Tensor
    minimums: Tensor | None

    @classmethod
    def of(cls, weight: Tensor, form: Form) -> Codes:
        """weight [n, k], each group on the finest grid that holds it."""
        n, k = weight.shape
        kind = torch.float32 if form.wide else torch.float16
        padded = torch.nn.functional.pad(weight.float(), (0, -k % min(form.group, k)))
        groups = padded.view(n, -1, min(form.group, k))
        highest = 15 if form.bits == 4 else 127
        lowest = {(4, True): 0, (4, False): -8}.get((form.bits, form.minimums), -127)
        if form.minimums:
            low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
            scale = ((high - low) / (highest - lowest)).clamp(min=1e-4).to(kind)
            minimum = (low - lowest * scale.float()).to(kind)
        else:
            highest = 7 if form.bits == 4 else highest
            scale = (groups.abs().amax(-1, keepdim=True) / highest).clamp(min=1e-4).to(kind)
            minimum = torch.zeros_like(scale)
        codes = ((groups - minimum.float()) / scale.float()).round().clamp(lowest, highest)
        if form.bits == 4 and not form.minimums:
            codes += 8
        stored = codes.view(n, -1)[:, :k].to(torch.uint8 if form.bits == 4 else torch.int8)
        return cls(form, stored, scale[..., 0], minimum[..., 0] if form.minimums else None)

    def weight(self) -> Tensor:
        """[n, k] in fp32"""
        k = self.codes.shape[1]
        codes = self.codes.float() - (8 if self.form.bits == 4 and not self.form.minimums else 0)
        result = codes * self.scales.float().repeat_interleave(self.form.group, dim=1)[:, :k]
        if self.minimums is not None:
            result = result + self.minimums.float().repeat_interleave(self.form.group, dim=1)[:, :k]
        return result

    def empty(self) -> PackedCodes:
        form = self.form
        return PackedCodes(
            *self.codes.shape, form.bits, form.group, minimums=form.minimums, wide_scales=form.wide
        )

    def packed(self) -> PackedCodes:
        result = self.empty()
        minimums = None if self.minimums is None else array(self.minimums)
        result.load_rows(array(self.codes), array(self.scales), minimums)
        return result

"""The words that the kernels read: codes, scales and zeros of a quantized matrix, shuffled once at load."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipway_kernels.cuda.lasting import lasting

WORDS = 16
"""Words of 32 bits that a row has in a block: 128 columns of 4 bits, 64 of 8."""

MASKS = {4: 0x000F000F, 8: 0x00FF00FF}


@lasting
@dataclass(frozen=True, slots=True, weakref_slot=True)
class Packed:
    """A matrix [n, k] of small integers.

    words      [blocks, n, 16]  int32   of block b, bits p·BITS to (p + 1)·BITS of half h of word w hold
                                        column b·512 / BITS + 32·p + 2·w + h: the two numbers that one shift
                                        and one mask bring out of a word are neighbours, as tensor cores
                                        want them
    params     [groups, n]      int32   lower half: the scale, in `dtype`; upper half: the shift where
                                        `shifted`, else the minimum
    mask       [1]              int32   one code in each half of a word
    group      columns of a scale, 0 where a row has one
    shifted    w = scale · (code - zero), kept as shift = -(zero + offset), which is exact where zeros are
               integers; otherwise w = scale · code + minimum
    symmetric  every zero is in the middle of the codes
    order      [k]  int32  original column of each stored one, or None
    """

    words: Tensor
    params: Tensor
    mask: Tensor
    n: int
    k: int
    bits: int
    group: int
    shifted: bool
    symmetric: bool
    dtype: torch.dtype
    order: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.k

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads of it."""
        return self.words.nbytes + self.params.nbytes + (0 if self.order is None else self.order.nbytes)

    def constants(self) -> dict[str, object]:
        """What a kernel that reads it is compiled for."""
        return {"BITS": self.bits, "GROUP": self.group, "SHIFTED": self.shifted}


def offset(bits: int, dtype: torch.dtype) -> int:
    """What a kernel finds added to a code: see `kernel_unpack.numbers`. Eight bits are stored plus 128."""
    return 1024 if bits == 4 and dtype == torch.float16 else 128


def pack(
    codes: Tensor,
    scales: Tensor,
    minimums: Tensor | None = None,
    order: Tensor | None = None,
    *,
    bits: int = 4,
    dtype: torch.dtype = torch.bfloat16,
) -> Packed:
    """Shuffle a matrix w = scale · code + minimum for the kernels.

    codes     [n, k]          uint8, 0 to 15; or int8, -128 to 127, where bits is 8
    scales    [n, k / group]  group is 32, 64, any multiple of 128, or k
    minimums  as scales, or None: 4-bit codes then mean code - 8
    order     [k]  original column of each stored one, or None
    dtype     of the activations and so of the scales: bf16 or fp16
    Where every minimum is the scale times an integer, the scale alone is rounded. Raises ValueError for
    other shapes.
    """
    n, k = codes.shape
    group = _group(codes, scales, minimums, bits)
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"weights for activations in {dtype}: the kernels multiply bf16 and fp16.")
    scales = scales.to(torch.float32).t()  # [groups, n]
    symmetric = minimums is None
    zeros = torch.full_like(scales, 8 if bits == 4 else 0)
    second, shifted = zeros, True
    if minimums is not None:
        second = minimums.to(torch.float32).t()
        zeros, shifted = _zeros(scales, second, dtype, bits)
    if shifted:
        second = -(zeros + offset(bits, dtype))
    params = torch.stack((scales, second), dim=-1).to(dtype).view(torch.int32).squeeze(-1)
    width = WORDS * 32 // bits
    blocks = -(-k // width)
    if 0 < group < width:
        params = torch.nn.functional.pad(params, (0, 0, 0, blocks * width // group - len(params)))
    return Packed(
        words=_words(codes, bits, blocks),
        params=params.contiguous(),
        mask=torch.tensor([MASKS[bits]], dtype=torch.int32, device=codes.device),
        n=n,
        k=k,
        bits=bits,
        group=group,
        shifted=shifted,
        symmetric=symmetric,
        dtype=dtype,
        order=None if order is None else order.to(torch.int32),
    )


def unpack(packed: Packed) -> tuple[Tensor, Tensor, Tensor | None]:
    """What was packed → codes [n, k], scales [n, groups] in fp32, minimums, or None where it is symmetric."""
    n, k, bits = packed.n, packed.k, packed.bits
    shifts = torch.arange(0, 16, bits, device=packed.words.device, dtype=torch.int32)
    halves = packed.words.view(torch.int16).view(*packed.words.shape, 1, 2).to(torch.int32)
    codes = (halves >> shifts[:, None]) & ((1 << bits) - 1)  # [blocks, n, WORDS, pairs, 2]
    codes = codes.permute(1, 0, 3, 2, 4).reshape(n, -1)[:, :k].to(torch.uint8)
    if bits == 8:
        codes = (codes ^ 128).view(torch.int8)
    groups = -(-k // packed.group) if packed.group else 1
    pairs = packed.params[:groups].t().unsqueeze(-1).contiguous().view(packed.dtype).float()
    scales, second = pairs.unbind(-1)  # [n, groups]
    if packed.symmetric:
        return codes, scales, None
    if packed.shifted:
        second = (second + offset(bits, packed.dtype)) * scales
    return codes, scales, second


def _group(codes: Tensor, scales: Tensor, minimums: Tensor | None, bits: int) -> int:
    """Columns of a scale, 0 where a row has one."""
    n, k = codes.shape
    expected = torch.uint8 if bits == 4 else torch.int8
    if bits not in MASKS or codes.dtype != expected:
        raise ValueError(
            f"codes of {bits} bits in {codes.dtype}: 4 bits come in torch.uint8, 8 bits in torch.int8."
        )
    if minimums is not None and minimums.shape != scales.shape:
        raise ValueError(
            f"minimums are {list(minimums.shape)}, scales {list(scales.shape)}: they must be equal."
        )
    groups = scales.shape[1] if scales.ndim == 2 else 0
    if scales.shape[0] != n or not groups or k % groups:
        raise ValueError(
            f"scales are {list(scales.shape)} for codes of {[n, k]}: each row has one scale for a group of "
            "columns, and groups of one size."
        )
    group = k // groups
    if groups > 1 and group not in (32, 64) and group % 128:
        raise ValueError(
            f"groups of {group} columns: the kernels take 32, 64, multiples of 128 and whole rows."
        )
    return group if groups > 1 else 0


def _zeros(scales: Tensor, minimums: Tensor, dtype: torch.dtype, bits: int) -> tuple[Tensor, bool]:
    """The codes that stand for 0, and whether all of them are integers that the shift holds exactly."""
    zeros = torch.where(minimums == 0, 0.0, -minimums / scales)
    nearest = zeros.round()
    shift = nearest + offset(bits, dtype)
    exact = ((zeros - nearest).abs() < 1e-4) & (shift.to(dtype).float() == shift)
    return nearest, exact.is_meta or bool(exact.all())  # meta tensors have no values to look at


def _words(codes: Tensor, bits: int, blocks: int) -> Tensor:
    """[n, k] → [blocks, n, WORDS] int32"""
    n, k = codes.shape
    pairs = 16 // bits
    if bits == 8:
        codes = codes.view(torch.uint8) ^ 128
    codes = torch.nn.functional.pad(codes, (0, blocks * pairs * 2 * WORDS - k))
    codes = codes.view(n, blocks, pairs, WORDS, 2)
    words = torch.zeros(n, blocks, WORDS, dtype=torch.int32, device=codes.device)
    for pair in range(pairs):
        for half in range(2):
            words |= codes[:, :, pair, :, half].to(torch.int32) << (16 * half + bits * pair)
    return words.transpose(0, 1).contiguous()

"""Embedding's definition."""

from __future__ import annotations

from torch import Tensor


def embed(table: Tensor, ids: Tensor, scale: float = 1.0) -> Tensor:
    """Rows of the table, in fp32, times the scale.   table [vocab, k], ids [rows]"""
    return table[ids].float() * scale


def softcap(logits: Tensor, cap: float) -> Tensor:
    """cap · tanh(logits / cap), in fp32 (Bello et al. 2016)."""
    return cap * (logits.float() / cap).tanh()

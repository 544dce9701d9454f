"""Rows of an embedding, and the cap of logits."""

from typing import TYPE_CHECKING

from slipway_kernels.exports import exports

if TYPE_CHECKING:
    from slipway_kernels.embedding.op import embed, softcap

__all__ = ["embed", "softcap"]

__getattr__ = exports(__name__, op=__all__)

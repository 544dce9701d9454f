"""An adapter's own rows of tokens and its rotation, as the operations of a program read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipway_kernels.cpu.binding import ExtensionStruct, Floats, Ints, address, floats
from slipway_kernels.cpu.weights import Packed


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Rows of some tokens.

    tokens  [n]
    rows    [n, hidden]
    bias    [n], of the head, or None
    """

    tokens: Ints
    rows: Floats
    bias: Floats | None = None


class Extension:
    """Tokens that an adapter adds, rows that it has for tokens, and its rotation. Made in any thread."""

    def __init__(
        self,
        vocab: int,
        added: int,
        dtype: str,
        embedding: OwnRows | None = None,
        head: OwnRows | None = None,
        rotation: int = 0,
        *,
        first: bool = True,
    ) -> None:
        """What requests with an adapter have.

        vocab      tokens of the model; those that are added follow them
        dtype      of the program: the head multiplies in it
        embedding  rows as they enter the first layer; each token that is added has one
        head       rows that make logits; of those that are added, a token without one cannot be drawn
        rotation   0 is the model's, others count those of `Program.rope_and_store`
        first      of ranks, which has the rows of added tokens, where the program embeds
        Raises ValueError where a token is none, or an added one has no row.
        """
        self.vocab, self.added, self.rotation = vocab, added, rotation
        self.struct = ExtensionStruct(added=added, rotation=rotation)
        self._kept: list[object] = []
        for own in (embedding, head):
            if (
                own is not None
                and len(own.tokens)
                and not 0 <= own.tokens.min() <= own.tokens.max() < vocab + added
            ):
                raise ValueError(f"An adapter has rows of tokens that are not among {vocab + added}.")
        row_of = np.full(vocab + added, -1, np.int32)
        if embedding is not None:
            row_of[embedding.tokens] = np.arange(len(embedding.tokens), dtype=np.int32)
            self.struct.rows = self._keep(floats(embedding.rows))
        if first and (row_of[vocab:] < 0).any():
            raise ValueError("An adapter adds tokens for which it has no row of the embedding.")
        self.struct.row_of = self._keep(row_of)
        if head is not None:
            self._add_head(head, dtype)

    def _add_head(self, head: OwnRows, dtype: str) -> None:
        count, hidden = head.rows.shape
        packed = Packed(count, hidden, dtype)
        packed.load_rows(floats(head.rows))
        self._kept.append(packed)
        self.struct.head = packed.struct
        self.struct.tokens = self._keep(np.ascontiguousarray(head.tokens, np.int32))
        if head.bias is not None:
            padded = np.zeros(-(-len(head.bias) // 32) * 32, np.float32)
            padded[: len(head.bias)] = head.bias
            self.struct.bias = self._keep(padded)

    def _keep(self, array: Floats | Ints) -> int | None:
        self._kept.append(array)
        return address(array)

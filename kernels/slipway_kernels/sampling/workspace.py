"""What sampling on the device reads beside logits and records, what it writes, and its scratch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipway_kernels.cuda.lasting import lasting
from slipway_kernels.cuda.tiles import Tile
from slipway_kernels.sampling.limits import ROWS_AT_ONCE
from slipway_kernels.sampling.record import Features

BLOCK = 64
"""Tokens that share a noted maximum."""

NOTES = 8
"""Values of x above which the mass of a tile is noted."""

# Few rows are cut finer, so that they meet enough multiprocessors. Both give the same bits.
PASS_TILES = (
    Tile(80, {"TILE": 1024}, num_warps=4, when={"rows": 8}, fuses=False),
    Tile(80, {"TILE": 2048}, num_warps=8, fuses=False),
)


@dataclass(frozen=True, slots=True)
class History:
    """What is known before each row's draw. Where a slot has several, each but the first is behind drafts.

    tokens      [num_slots, max_len]  int32  prompt, then output, then drafts
    lengths     [rows]                int32  of these before the draw: the position of the token that is drawn
    prompt_len  [num_slots]           int32
    """

    tokens: Tensor
    lengths: Tensor
    prompt_len: Tensor

    def __getitem__(self, rows: slice) -> History:
        return History(self.tokens, self.lengths[rows], self.prompt_len)


@dataclass(frozen=True, slots=True)
class Masks:
    """Which tokens may be drawn, by row.

    words   [rows, ⌈vocab / 32⌉]  int32  token t in bit t % 32 of word t // 32
    masked  [rows]                int32  0: the row has no mask, and its words mean nothing
    """

    words: Tensor
    masked: Tensor

    def __getitem__(self, rows: slice) -> Masks:
        return Masks(self.words[rows], self.masked[rows])


@dataclass(frozen=True, slots=True)
class Draws:
    """What comes out, by row. Rows of slot -1 keep what they held; so do log-probabilities not asked for.

    token         [rows]           int32  -1 where the row failed
    failed        [rows]           int32  1 where a row held a NaN, or nothing above -inf to draw from
    logprob       [rows]           fp32   of the model: before edits, temperature and filters
    rank          [rows]           int32  1 = most likely
    top_ids       [rows, max_top]  int32  best first; -1 after as many as the row asked for
    top_logprobs  [rows, max_top]  fp32
    """

    token: Tensor
    failed: Tensor
    logprob: Tensor
    rank: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    @classmethod
    def empty(cls, rows: int, max_top: int, device: torch.device) -> Draws:
        words = torch.full((3, rows), -1, dtype=torch.int32, device=device)
        return cls(
            words[0],
            words[1],
            torch.zeros(rows, dtype=torch.float32, device=device),
            words[2],
            torch.full((rows, max_top), -1, dtype=torch.int32, device=device),
            torch.zeros(rows, max_top, dtype=torch.float32, device=device),
        )

    def __getitem__(self, rows: slice) -> Draws:
        return Draws(
            *(self.token[rows], self.failed[rows], self.logprob[rows]),
            *(self.rank[rows], self.top_ids[rows], self.top_logprobs[rows]),
        )


@lasting
@dataclass(frozen=True, slots=True, weakref_slot=True)
class Workspace:
    """Scratch of one batch, which may serve the next. Allocated by `workspace`.

    rows      that it holds at once; more of them come in turns
    edited    [rows, vocab]         fp32, first the counts of penalties
    keys, ids [rows, vocab]         int32, the candidates
    all others are notes of a block of 64 tokens, of a tile, or of a row
    """

    rows: int
    vocab: int
    edited: Tensor | None
    keys: Tensor | None
    ids: Tensor | None
    touched: Tensor
    blocks: Tensor
    raw_blocks: Tensor
    tiles: Tensor
    raw_tiles: Tensor
    masses: Tensor
    raw_masses: Tensor
    weighed: Tensor
    above: Tensor
    scores: Tensor
    winners: Tensor
    before: Tensor
    floors: Tensor
    floors_x: Tensor
    counts: Tensor


def workspace(rows: int, vocab: int, features: Features, device: torch.device) -> Workspace:
    """Scratch for batches of about `rows` that ask for no more than `features`.

    With edits 4 and with filters 8 bytes for each token of the vocabulary and each of 128 rows: 200 MB for
    both at 128 k tokens; without them a few megabytes.
    """
    if features.edits or features.filters:
        rows = min(rows, ROWS_AT_ONCE)
    tiles = -(-vocab // min(tile.constants["TILE"] for tile in PASS_TILES))
    blocks = -(-vocab // max(tile.constants["TILE"] for tile in PASS_TILES))
    blocks *= max(tile.constants["TILE"] for tile in PASS_TILES) // BLOCK
    stride = -(-vocab // 16) * 16

    def array(width: int, dtype: torch.dtype) -> Tensor:
        return torch.empty((rows, width), dtype=dtype, device=device)

    whole, notes = torch.int32, torch.int64
    own_blocks, own_tiles = array(blocks, whole), array(tiles, whole)
    return Workspace(
        rows=rows,
        vocab=vocab,
        edited=array(stride, torch.float32) if features.edits else None,
        keys=array(stride, whole) if features.filters else None,
        ids=array(stride, whole) if features.filters else None,
        touched=array(1, whole),
        blocks=own_blocks,
        raw_blocks=array(blocks, whole) if features.edits else own_blocks,
        tiles=own_tiles,
        raw_tiles=array(tiles, whole) if features.edits else own_tiles,
        masses=array(tiles, notes),
        raw_masses=array(tiles, notes),
        weighed=array(tiles, notes),
        above=array(tiles * NOTES, torch.float32),
        scores=array(tiles, torch.float64),
        winners=array(tiles, whole),
        before=array(tiles, whole),
        floors=array(1, notes),
        floors_x=array(1, torch.float32),
        counts=array(1, whole),
    )

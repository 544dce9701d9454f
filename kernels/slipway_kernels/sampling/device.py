"""Sampling on the device: from rows of logits to tokens, without a sort and without the host.

Launches for a batch: 2 where every row is greedy, 3 with temperature, 5 with filters; 2 more for penalties,
none for other edits; 3 more for log-probabilities, or 2 where rows are random. Given tokens take 4. Rows
beyond what the workspace holds at once, 128 with edits or filters, take as many again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipway_kernels.cuda.launch import arch_of, launch
from slipway_kernels.cuda.prepared import prepared
from slipway_kernels.cuda.rows import row_stride
from slipway_kernels.cuda.tiles import Tile, pick
from slipway_kernels.sampling.edits import clear_kernel, count_kernel
from slipway_kernels.sampling.kernel import (
    bound_kernel,
    finish_kernel,
    gather_kernel,
    measure_kernel,
    scan_kernel,
)
from slipway_kernels.sampling.limits import LARGEST_VOCAB
from slipway_kernels.sampling.record import Acceptance, Features, RecordLayout
from slipway_kernels.sampling.reports import rank_kernel, report_kernel
from slipway_kernels.sampling.workspace import (
    BLOCK,
    PASS_TILES,
    Draws,
    History,
    Masks,
    Workspace,
    workspace,
)

__all__ = ["Draws", "History", "Masks", "Workspace", "report", "sample", "workspace"]

# A few rounds over thousands of numbers: fewer threads wait for each other sooner.
BOUND_TILES = (Tile(80, {"CHUNK": 512, "PIVOTS": 8}, num_warps=8, fuses=False),)
FINISH_TILES = (Tile(80, {"CHUNK": 512, "PIVOTS": 16}, num_warps=16, fuses=False),)
COUNT_TILES = (Tile(80, {"TILE": 1024}, num_warps=4),)
LISTS_SPILL = "8 to 16 bytes across the loops over a record's lists, which most rows skip"
NO_DRAFT_STANDS = Acceptance(0.0, 0.0)
REPORT_TILES = (Tile(80, {"BLOCKS": LARGEST_VOCAB // BLOCK}, num_warps=16, fuses=False),)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Logits rows of one turn, and how they are cut into tiles."""

    logits: Tensor
    slots: Tensor
    records: Tensor | None
    space: Workspace
    tile: Tile

    @property
    def count(self) -> int:
        return self.logits.shape[0]

    @property
    def vocab(self) -> int:
        return self.logits.shape[1]

    @property
    def tile_size(self) -> int:
        return self.tile.constants["TILE"]

    @property
    def num_tiles(self) -> int:
        return -(-self.vocab // self.tile_size)

    @property
    def num_blocks(self) -> int:
        return self.num_tiles * self.tile_size // BLOCK

    @property
    def tiles(self) -> tuple[int, int]:
        """The grid of a pass over every row."""
        return self.num_tiles, self.count

    @property
    def record_arguments(self) -> dict[str, object]:
        """Which record is a row's."""
        return {
            "slots_ptr": self.slots,
            "records_ptr": self.records,
            "records_stride": row_stride(self.records),
        }

    @property
    def logits_arguments(self) -> dict[str, object]:
        """The model's logits."""
        return {"logits_ptr": self.logits, "logits_stride": self.logits.stride(0)}

    @property
    def row_arguments(self) -> dict[str, object]:
        """The logits to draw from: the model's, or the edited ones of the rows that are touched."""
        return {
            **self.logits_arguments,
            "edited_ptr": self.space.edited,
            "edited_stride": row_stride(self.space.edited),
            "touched_ptr": self.space.touched,
        }


@prepared
def sample(
    logits: Tensor,
    row_slots: Tensor,
    records: Tensor,
    layout: RecordLayout,
    history: History,
    space: Workspace,
    out: Draws,
    features: Features,
    masks: Masks | None = None,
    acceptance: Acceptance | None = None,
) -> None:
    """Draw the token after each row's history: reference.sample_row, token for token.

    logits     [rows, vocab]         fp32, bf16 or fp16; neighbours in a row are adjacent. The layout's
                                     vocabulary may be larger: tokens that rows lack are not drawn
    row_slots  [rows]                int32, -1 for padding
    records    [num_slots, words]    int32, written as `layout.encode` says
    features   what the rows ask for, together
    masks      read where that is `masked`
    acceptance  where it is given, a row may take the draft that lies behind its history: where the row behind
               it is of the same slot
    Nothing waits for the host, so that the call can be captured in a graph. A row's result does not depend
    on the others, nor on the features that it does not use. Raises ValueError where shapes disagree.
    """
    _check(logits, row_slots, space, out, features)
    rows, vocab = logits.shape
    if vocab > layout.vocab or records.shape[1] != layout.words or records.stride(1) != 1:
        raise ValueError(
            f"logits are {list(logits.shape)} and records {list(records.shape)}: this layout has "
            f"{layout.vocab} tokens and records of {layout.words} adjacent words."
        )
    if not features.masked:
        masks = None
    elif not features.edits or masks is None or not _fits(masks.words, rows, vocab):
        raise ValueError(
            f"the masks are {None if masks is None else list(masks.words.shape)}: they need features with "
            f"edits, and at least {-(-vocab // 32)} words for each of {rows} rows."
        )
    tile = pick(PASS_TILES, arch_of(logits.device), rows=rows)
    if not features.edits:
        space = replace(space, edited=None, raw_blocks=space.blocks, raw_tiles=space.tiles)
    for start in range(0, rows, space.rows):
        chunk = slice(start, start + space.rows)
        part = _Rows(logits[chunk], row_slots[chunk], records, space, tile)
        known, drawn = history[chunk], out[chunk]
        if features.penalties:
            _count(part, known)
        _scan(part, known, None if masks is None else masks[chunk], penalties=features.penalties)
        if features.random or features.max_top >= 0:
            _measure(part, known, features, judges=acceptance is not None)
        if features.filters:
            _gather(part)
        _finish(part, known, drawn, features, acceptance, rows - start)
        if features.max_top >= 0:
            _report(part, drawn.token, drawn)


@prepared
def report(logits: Tensor, given: Tensor, space: Workspace, out: Draws) -> None:
    """Log-probability and rank of a given token of each row, and as many of the most likely as `out` is wide.

    logits  [rows, vocab]  as in `sample`
    given   [rows]         int32, -1 for padding
    Writes all of `out` but its tokens. `failed` is 1, and nothing else written, where a row holds a NaN or
    nothing above -inf. Raises ValueError where shapes disagree.
    """
    features = Features(max_top=out.top_ids.shape[1])
    _check(logits, given, space, out, features)
    tile = pick(PASS_TILES, arch_of(logits.device), rows=logits.shape[0])
    space = replace(space, edited=None, raw_blocks=space.blocks, raw_tiles=space.tiles)
    for start in range(0, logits.shape[0], space.rows):
        chunk = slice(start, start + space.rows)
        part = _Rows(logits[chunk], given[chunk], None, space, tile)
        _scan(part, None, None, penalties=False)
        _measure(part, None, features, judges=False)
        _report(part, given[chunk], out[chunk])


def _check(logits: Tensor, slots: Tensor, space: Workspace, out: Draws, features: Features) -> None:
    rows, vocab = logits.shape
    if vocab > LARGEST_VOCAB or logits.stride(1) != 1 or slots.shape != (rows,):
        raise ValueError(
            f"logits are {list(logits.shape)} by strides of {logits.stride()} for {list(slots.shape)} slots: "
            f"rows have at most {LARGEST_VOCAB} adjacent logits, and one slot each."
        )
    lacks = (features.edits and space.edited is None) or (features.filters and space.keys is None)
    if space.vocab < vocab or lacks:
        raise ValueError(
            f"the workspace is for {space.vocab} tokens, and the rows have {vocab} and ask for {features}: "
            "allocate it for this vocabulary and all features."
        )
    top = out.top_ids.shape
    if out.token.shape != (rows,) or top != out.top_logprobs.shape or top[1] < features.max_top:
        raise ValueError(
            f"the outputs hold {list(out.token.shape)} tokens and {list(top)} alternatives: the batch has "
            f"{rows} rows that ask for up to {max(features.max_top, 0)}."
        )


def _fits(words: Tensor, rows: int, vocab: int) -> bool:
    """Whether these are masks of such rows."""
    return len(words) == rows and 32 * words.shape[1] >= vocab


def _count(part: _Rows, history: History) -> None:
    edited = part.space.edited
    assert edited is not None
    counts = edited.view(torch.int32)
    tile = pick(COUNT_TILES, arch_of(counts.device))
    longest = history.tokens.shape[1]
    launch(
        clear_kernel,
        (-(-part.vocab // tile.constants["TILE"]), part.count),
        tile=tile,
        counts_ptr=counts,
        counts_stride=counts.stride(0),
        vocab=part.vocab,
        **part.record_arguments,
    )
    launch(
        count_kernel,
        (-(-longest // tile.constants["TILE"]), part.count),
        tile=tile,
        counts_ptr=counts,
        counts_stride=counts.stride(0),
        tokens_ptr=history.tokens,
        tokens_stride=history.tokens.stride(0),
        lengths_ptr=history.lengths,
        prompt_len_ptr=history.prompt_len,
        vocab=part.vocab,
        **part.record_arguments,
    )


def _scan(part: _Rows, history: History | None, masks: Masks | None, *, penalties: bool) -> None:
    space = part.space
    edited = space.edited
    launch(
        scan_kernel,
        part.tiles,
        tile=part.tile if edited is None else replace(part.tile, spills=LISTS_SPILL),
        tokens_ptr=None if history is None else history.tokens,
        tokens_stride=0 if history is None else history.tokens.stride(0),
        lengths_ptr=None if history is None else history.lengths,
        prompt_len_ptr=None if history is None else history.prompt_len,
        masks_ptr=None if masks is None else masks.words,
        masks_stride=0 if masks is None else masks.words.stride(0),
        masked_ptr=None if masks is None else masks.masked,
        counts_ptr=edited.view(torch.int32) if penalties and edited is not None else None,
        raw_blocks_ptr=space.raw_blocks,
        raw_tiles_ptr=space.raw_tiles,
        blocks_ptr=space.blocks,
        tiles_ptr=space.tiles,
        vocab=part.vocab,
        num_tiles=part.num_tiles,
        LIST=128,
        **part.record_arguments,
        **part.row_arguments,
    )


def _measure(part: _Rows, history: History | None, features: Features, *, judges: bool) -> None:
    space = part.space
    launch(
        measure_kernel,
        part.tiles,
        tile=part.tile,
        lengths_ptr=None if history is None else history.lengths,
        raw_tiles_ptr=space.raw_tiles,
        tiles_ptr=space.tiles,
        raw_masses_ptr=space.raw_masses,
        masses_ptr=space.masses,
        weighed_ptr=space.weighed if judges else None,
        above_ptr=space.above,
        scores_ptr=space.scores,
        winners_ptr=space.winners,
        vocab=part.vocab,
        num_tiles=part.num_tiles,
        RANDOM=features.random,
        FILTERS=features.filters,
        REPORTS=features.max_top >= 0,
        **part.row_arguments,
        **part.record_arguments,
    )


def _gather(part: _Rows) -> None:
    space = part.space
    assert space.keys is not None
    assert space.ids is not None
    launch(
        bound_kernel,
        (part.count,),
        tile=pick(BOUND_TILES, arch_of(space.counts.device)),
        blocks_ptr=space.blocks,
        tiles_ptr=space.tiles,
        masses_ptr=space.masses,
        above_ptr=space.above,
        floors_ptr=space.floors,
        floors_x_ptr=space.floors_x,
        counts_ptr=space.counts,
        vocab=part.vocab,
        num_blocks=part.num_blocks,
        num_tiles=part.num_tiles,
        **part.record_arguments,
    )
    launch(
        gather_kernel,
        part.tiles,
        tile=part.tile,
        tiles_ptr=space.tiles,
        floors_ptr=space.floors,
        floors_x_ptr=space.floors_x,
        counts_ptr=space.counts,
        keys_ptr=space.keys,
        ids_ptr=space.ids,
        candidates_stride=space.keys.stride(0),
        vocab=part.vocab,
        num_tiles=part.num_tiles,
        **part.row_arguments,
        **part.record_arguments,
    )


def _finish(
    part: _Rows,
    history: History,
    out: Draws,
    features: Features,
    acceptance: Acceptance | None,
    rows: int,
) -> None:
    """rows: from the turn's first on"""
    space = part.space
    tokens = None if acceptance is None else history.tokens
    launch(
        finish_kernel,
        (part.count,),
        tile=pick(FINISH_TILES, arch_of(out.token.device)),
        lengths_ptr=history.lengths,
        raw_tiles_ptr=space.raw_tiles,
        tiles_ptr=space.tiles,
        masses_ptr=space.masses,
        scores_ptr=space.scores,
        winners_ptr=space.winners,
        counts_ptr=space.counts,
        keys_ptr=space.keys,
        ids_ptr=space.ids,
        candidates_stride=row_stride(space.keys),
        token_ptr=out.token,
        failed_ptr=out.failed,
        vocab=part.vocab,
        num_tiles=part.num_tiles,
        tile_size=part.tile_size,
        RANDOM=features.random,
        FILTERS=features.filters,
        tokens_ptr=tokens,
        tokens_stride=row_stride(tokens),
        weighed_ptr=None if acceptance is None else space.weighed,
        num_rows=rows,
        **(acceptance or NO_DRAFT_STANDS).rounded,
        **part.row_arguments,
        **part.record_arguments,
    )


def _report(part: _Rows, token: Tensor, out: Draws) -> None:
    space = part.space
    launch(
        rank_kernel,
        part.tiles,
        tile=part.tile,
        token_ptr=token,
        raw_tiles_ptr=space.raw_tiles,
        before_ptr=space.before,
        vocab=part.vocab,
        num_tiles=part.num_tiles,
        **part.logits_arguments,
        **part.record_arguments,
    )
    launch(
        report_kernel,
        (part.count,),
        tile=pick(REPORT_TILES, arch_of(token.device)),
        token_ptr=token,
        raw_blocks_ptr=space.raw_blocks,
        raw_tiles_ptr=space.raw_tiles,
        raw_masses_ptr=space.raw_masses,
        before_ptr=space.before,
        failed_ptr=out.failed,
        logprob_ptr=out.logprob,
        rank_ptr=out.rank,
        top_ids_ptr=out.top_ids,
        top_logprobs_ptr=out.top_logprobs,
        max_top=out.top_ids.shape[1],
        vocab=part.vocab,
        num_blocks=part.num_blocks,
        num_tiles=part.num_tiles,
        **part.logits_arguments,
        **part.record_arguments,
    )

"""What the masks that transformers makes let a row see, found by evaluating them once, at load.

transformers asks a function of ours for each mask of a step. While a model is probed, that evaluates the
mask; in steps it gives a tensor that nobody reads, as the kernels know by then what a row sees.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

DENSE = 4096
"""Positions from 0 on of which every pair is evaluated; beyond, those round powers of two and the window."""

HEADS = 64
"""That are compared with the first one, in some rows."""

MaskFunction = Callable[[Any, Any, Tensor, Tensor], Tensor]
"""Request, head, row and key → whether the row sees the key; all broadcast."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a row sees of the positions up to its own: all, or

    window  the last so many, its own included
    chunk   those of its own stretch of so many
    """

    window: int = 0
    chunk: int = 0


class Unknown(ValueError):
    """A mask that the kernels cannot follow. The text follows the name of a layer."""


_probing: ContextVar[int] = ContextVar("probing", default=0)
"""The longest context that is asked for; 0 in steps."""


def mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: MaskFunction,
    device: torch.device,
    local_size: int | None = None,
    **others: Any,
) -> Tensor:
    """What stands where transformers makes masks: [batch, 1, rows, keys] that nobody reads, but `seen_by`."""
    made = torch.ones((), dtype=torch.bool, device=device).expand(batch_size, 1, q_length, kv_length)
    if longest := _probing.get():
        try:
            made.seen = recognized(mask_function, longest, local_size)  # type: ignore[attr-defined]
        except Unknown as error:
            made.seen = error  # type: ignore[attr-defined]
    return made


def seen_by(given: Any) -> Seen:
    """What a mask shows that a layer got while its model was probed; None shows all. Raises Unknown."""
    if given is None:
        return Seen()
    seen = getattr(given, "seen", Unknown("changes its mask, or brings one of its own"))
    if isinstance(seen, Unknown):
        raise seen
    assert isinstance(seen, Seen)
    return seen


@contextmanager
def one_request() -> Iterator[None]:
    """Within, no mask looks for several requests in the positions of a step: that waits for a device, and
    shapes alone do not say."""
    find = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = find


@contextmanager
def probing(longest: int) -> Iterator[None]:
    """Within, masks are evaluated up to this length."""
    token = _probing.set(longest)
    try:
        with one_request():
            yield
    finally:
        _probing.reset(token)


def recognized(function: MaskFunction, longest: int, local_size: int | None = None) -> Seen:
    """Raises Unknown for what is neither causal nor a causal window or stretch."""
    at = _places(longest, local_size)  # [places], ascending
    rows, keys = at[:, None], at[None]
    shown = _evaluated(_on_host(function), rows, keys)
    causal = keys <= rows
    if torch.equal(shown, causal):
        return Seen()
    if (shown & ~causal).any():
        raise Unknown("attends to later tokens too")
    blind = at[~shown[:, 0]]  # rows that do not see the first position
    size = local_size or int(blind[0]) if len(blind) else 0
    if size and torch.equal(shown, causal & (keys > rows - size)):
        return Seen(window=size)
    if size and torch.equal(shown, causal & (keys // size == rows // size)):
        return Seen(chunk=size)
    raise Unknown("sees a choice of earlier tokens that is neither a window nor a chunk")


def _places(longest: int, local_size: int | None) -> Tensor:
    edges = {0, longest - 1} | {2**power for power in range(longest.bit_length())}
    edges |= {local_size * times for times in (1, 2, 3)} if local_size else set()
    far = {place + beside for place in edges for beside in (-1, 0, 1) if DENSE <= place + beside < longest}
    return torch.tensor([*range(min(longest, DENSE)), *sorted(far)], device="cpu")


def _evaluated(function: MaskFunction, rows: Tensor, keys: Tensor) -> Tensor:
    """[rows, keys] of each head alike; all masks of transformers are made of operations on indices."""
    zero = torch.zeros((), dtype=torch.long, device="cpu")
    heads = torch.arange(HEADS, device="cpu")[:, None, None]
    some = slice(max(0, min(len(rows), DENSE) - 8), DENSE)  # the last of which every key is looked at
    try:
        shown = function(zero, zero, rows, keys).expand(len(rows), keys.shape[1])
        others = function(zero, heads, rows[some], keys).expand(HEADS, len(rows[some]), keys.shape[1])
    except Exception as error:
        raise Unknown(f"has a mask that cannot be evaluated ({error})") from error
    if (others != shown[some]).any():
        raise Unknown("has masks that differ by head")
    return shown


def _on_host(given: Any) -> Any:
    """A mask function of a model without numbers, with those that it made of none: no request is padded."""
    match given:
        case Tensor() if given.is_meta:
            return torch.zeros(given.shape, dtype=given.dtype, device="cpu")
        case tuple():
            return tuple(map(_on_host, given))
        case partial():
            return partial(_on_host(given.func), *map(_on_host, given.args), **given.keywords)
        case types.FunctionType() if given.__closure__:
            cells = tuple(types.CellType(_on_host(cell.cell_contents)) for cell in given.__closure__)
            return types.FunctionType(
                given.__code__, given.__globals__, given.__name__, given.__defaults__, cells
            )
    return given

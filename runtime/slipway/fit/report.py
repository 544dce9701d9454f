"""An estimate as a table for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from slipway.exits import MAX_BYTES
from slipway.fit.estimate import Estimate, RankEstimate
from slipway.fit.instead import Instead
from slipway.fit.short import gib

Answer: TypeAlias = tuple[Estimate, Sequence[Instead]]
"""Of one device, with what would fit."""

PARTS = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "state": "state",
    "slots": "request slots",
    "activations": "largest step",
    "graphs": "CUDA graphs",
    "runtime": "runtime",
}
"""Parts of `RankEstimate`, and what people call them."""


def as_json(found: Estimate, instead: Sequence[Instead] = ()) -> dict[str, Any]:
    """Sizes in bytes. `devices` has one part for each rank of an engine."""
    short = found.short
    return {
        "fits": found.fits,
        "architecture": found.needs.architecture,
        "device": {"name": found.device.name, "memory": found.device.memory, "count": found.devices},
        "engines": found.needs.engines,
        "ranks": [_rank(rank) for rank in found.ranks],
        "frontend": found.needs.frontend,
        "total": found.total,
        "at_rest": found.at_rest if found.needs.kind == "cpu" else None,
        "kv_cache_tokens": found.kv_tokens,
        "serves_model_len": found.serves_len,
        "max_model_len": found.max_model_len,
        "max_num_seqs": found.max_num_seqs,
        "short": None
        if short is None
        else {"part": short.part, "message": short.message, "hint": short.hint},
        "instead": [_change(one) for one in instead],
        "notes": list(found.needs.notes),
    }


def _change(one: Instead) -> dict[str, int | str]:
    return {**one.arguments, **({"device": one.device} if one.device else {})}


def verdict(answers: Sequence[Answer]) -> bytes:
    """The answers in brief, for whoever reads how a container ended: those where it fits, and as many others
    as have room there."""
    kept = sorted((_brief(*answer) for answer in answers), key=lambda one: not one["fits"])
    while len(text := json.dumps({"fit": kept}).encode("ascii")) > MAX_BYTES:
        kept.pop()
    return text


def _brief(found: Estimate, instead: Sequence[Instead]) -> dict[str, Any]:
    brief: dict[str, Any] = {"device": found.device.name, "memory": found.device.memory, "fits": found.fits}
    if found.short is not None:
        brief |= {"short": found.short.message, "instead": [_change(one) for one in instead]}
    return brief


def _rank(rank: RankEstimate) -> dict[str, Any]:
    return {part: getattr(rank, part) for part in PARTS} | {
        "total": rank.total,
        "kv_cache_bytes_per_token": rank.kv_token,
    }


def as_table(found: Estimate, instead: Sequence[Instead] = ()) -> str:
    """What the JSON has, in lines for people."""
    return "\n".join(_lines(found, instead)) + "\n"


def _lines(found: Estimate, instead: Sequence[Instead]) -> Iterator[str]:
    needs, ranks = found.needs, found.ranks
    yield f"{needs.architecture} on {_place(found)}"
    yield ""
    columns = ["", *(f"rank {number}" for number in range(len(ranks)))] if len(ranks) > 1 else ["", ""]
    rows = [columns] if len(ranks) > 1 else []
    rows += [[name, *(gib(getattr(rank, part)) for rank in ranks)] for part, name in PARTS.items()]
    rows.append(["in all", *(gib(rank.total) for rank in ranks)])
    width = max(len(row[0]) for row in rows)
    for name, *sizes in rows:
        if any(size != gib(0) for size in sizes):
            yield f"  {name:<{width}}  " + "  ".join(f"{size:>10}" for size in sizes)
    yield ""
    yield from _totals(found)
    yield from _verdict(found)
    if instead:
        yield f"It would fit {', or '.join(one.words for one in instead)}."
    yield from (f"note: {note}" for note in needs.notes)


def _place(found: Estimate) -> str:
    if found.needs.kind == "cpu":
        return f"{found.device.name} with {gib(found.device.memory)}"
    return f"{found.devices} × {found.device.name} with {gib(found.device.memory)} each"


def _totals(found: Estimate) -> Iterator[str]:
    needs = found.needs
    if needs.kind == "cpu":
        yield f"The server takes {gib(found.total)} of memory in full, {gib(found.at_rest)} at rest."
    elif needs.processes > 1:
        yield f"{needs.processes} devices take {gib(found.total)} together."
    if found.ranks[0].kv_cache:
        each = found.ranks[0].kv_token / 1024
        yield f"A token takes {each:.4g} KiB of KV cache, which holds {found.kv_tokens} tokens."


def _verdict(found: Estimate) -> Iterator[str]:
    if found.short is not None:
        yield f"It does not fit: {found.short.message}"
        yield found.short.hint
    elif found.serves_len < found.needs.max_model_len:
        made_for = found.needs.max_model_len
        yield f"It fits with a context of {found.serves_len}, of the {made_for} that it was made for."
    else:
        yield "It fits."
    if found.max_model_len:
        several = f"{found.max_num_seqs} requests of {found.serves_len} tokens are computed at the same time."
        one = f"one request of {found.serves_len} tokens is computed at a time."
        together = several if found.max_num_seqs > 1 else one
        yield f"The largest --max-model-len is {found.max_model_len}; {together}"

"""Whole outputs, for answers that are not streamed."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipway.api.generate import Run
from slipway.engine.messages import TokenLogprobs


@dataclass(slots=True)
class Whole:
    """One finished output."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    offsets: list[int] = field(default_factory=list)

    @property
    def cumulative_logprob(self) -> float:
        return sum(one.logprob for one in self.logprobs)


async def gather(run: Run) -> list[Whole]:
    """All outputs of a run, by their number. Raises ApiError where the engine fails."""
    texts: list[list[str]] = [[] for _ in run.outputs]
    wholes = [Whole() for _ in run.outputs]
    async for piece in run.pieces():
        whole = wholes[piece.number]
        texts[piece.number].append(piece.text)
        whole.token_ids += piece.token_ids
        whole.logprobs += piece.logprobs or ()
        whole.offsets += piece.offsets
        whole.finish_reason = piece.finish_reason
        whole.stop_reason = piece.stop_reason
    for whole, parts in zip(wholes, texts, strict=True):
        whole.text = "".join(parts)
    return wholes

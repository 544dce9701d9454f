"""What requests were answered, and when: rates, and whether two answers are the same but for rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipway.engine.messages import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Said:
    """One token of an answer, and when it came: seconds since all requests were sent."""

    token: int
    logprobs: TokenLogprobs | None
    at: float = field(compare=False)


def decode_rate(answers: Sequence[Sequence[Said]]) -> float:
    """Tokens a second of all requests together, while none has yet to begin and none has ended.

    Raises ValueError where that was never so.
    """
    begun = max(answer[0].at for answer in answers)
    ended = min(answer[-1].at for answer in answers)
    if begun >= ended:
        raise ValueError(
            f"Of {len(answers)} requests the first ended {begun - ended:.3f} s before the last began: let "
            "each be of more tokens than the prompts take steps."
        )
    counted = sum(begun < said.at <= ended for answer in answers for said in answer)
    return counted / (ended - begun)


def throughput(answers: Sequence[Sequence[Said]]) -> float:
    """Tokens a second from the moment at which all requests were sent."""
    return sum(map(len, answers)) / max(answer[-1].at for answer in answers)


def unlike(ours: Sequence[Said], theirs: Sequence[Said]) -> str:
    """Why two answers are not the same but for rounding, or "".

    From their first difference on they are not compared. There, each side's token must be among the other's
    best.
    """
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one.token == other.token:
            continue
        fits = one.token in _top(other) and other.token in _top(one)
        return "" if fits else f"{one.token} for {other.token} at token {place}"
    return "" if len(ours) == len(theirs) else f"{len(ours)} tokens for {len(theirs)}"


def _top(said: Said) -> Mapping[int, float]:
    """Log-probabilities of the most likely tokens, best first."""
    return dict(said.logprobs.top) if said.logprobs else {}

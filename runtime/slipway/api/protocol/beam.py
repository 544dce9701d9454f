"""The fields by which a request asks for its likeliest outputs instead of drawn ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from slipway.api.errors import ApiError
from slipway.api.protocol.base import Body, or_say

EarlyStopping = bool | Literal["never"]

_DRAWING: Mapping[str, tuple[object, ...]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "typical_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "min_tokens": (0,),
    "stop": ([],),
    "logits_processors": ([],),
    "prompt_logprobs": (),
    "thinking_token_budget": (),
}
"""Fields that say how tokens are drawn or what else is reported, and the values that say nothing."""


@dataclass(frozen=True, slots=True)
class Beams:
    """How a search goes."""

    width: int
    """Beams that run; at least as many as outputs are wanted."""
    length_penalty: float
    """A finished beam's score is its log-probability over its length to this power."""
    early_stopping: EarlyStopping
    """True: over when `width` beams have finished. False: when none that runs could beat the worst of them if
    it ended now. "never": when none could with the best length."""
    num_tops: int
    """The likeliest tokens to know of each beam: at least `width` that may run on, and all that end it."""


class BeamFields(Body):
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    early_stopping: Annotated[
        EarlyStopping | None, or_say('early_stopping should be true, false or "never".')
    ] = None

    def check_beams(self) -> None:
        """Raises ApiError for what beam search does not have, and for what only it has."""
        if not self.use_beam_search:
            for name, nothing in (("length_penalty", 1.0), ("early_stopping", False)):
                if getattr(self, name) not in (None, nothing):
                    raise _unfit(name, getattr(self, name), "has a meaning only with use_beam_search: true")
            return
        for name, nothing_said in _DRAWING.items():
            value: Any = getattr(self, name, None)
            if value is not None and value not in nothing_said:
                raise _unfit(name, value, "beam search takes the likeliest outputs and draws none")


def _unfit(name: str, value: object, why: str) -> ApiError:
    return ApiError(f"{name} is {value!r}, and {why}; leave it out.", param=name, code="invalid_value")

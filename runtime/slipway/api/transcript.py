"""From the tokens of one output to its text: detokenized, cut at stop strings, counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipway.engine.messages import Delta, TokenLogprobs
from slipway.engine.params import SamplingParams
from slipway.text.detokenizer import Detokenizer
from slipway.text.stops import StopStrings
from slipway.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TranscriptRules:
    """How a request wants its tokens as text."""

    tokenizer: Tokenizer | None
    """None where the server has none: texts stay empty and only token ids are given."""
    stops: tuple[str, ...] = ()
    keep_stop: bool = False
    """The stop string, or the token that stops, is part of the text."""
    skip_special_tokens: bool = True
    kept_ids: frozenset[int] = frozenset()
    """Special tokens that are not skipped."""
    spaces_between_special_tokens: bool = True
    own_stop_ids: frozenset[int] = frozenset()
    """Stop tokens that the client named and the model does not have of its own: they are told as
    `stop_reason`."""
    offsets: bool = False
    """Pieces say where their tokens begin in the text."""


@dataclass(slots=True)
class Piece:
    """News of one output, exactly as much as the client is to see."""

    number: int
    """Which of the request's outputs."""
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    offsets: list[int] = field(default_factory=list)
    """Where in the output's text each token begins, as `Detokenizer.offset` has it; empty where nobody asks.
    A token of a stop string may begin behind the end."""


def joined(earlier: Piece, later: Piece) -> Piece:
    """Both of one output, in this order."""
    logprobs = None
    if earlier.logprobs is not None or later.logprobs is not None:
        logprobs = [*(earlier.logprobs or ()), *(later.logprobs or ())]
    return Piece(
        later.number,
        earlier.text + later.text,
        [*earlier.token_ids, *later.token_ids],
        logprobs,
        later.finish_reason,
        later.stop_reason,
        [*earlier.offsets, *later.offsets],
    )


class Transcript:
    """Follows one output. After a Piece with a `finish_reason` it takes nothing more.

    What comes out does not depend on how the engine's tokens were grouped into deltas.
    """

    __slots__ = (
        "_detokenizer",
        "_keep_stop",
        "_number",
        "_offsets",
        "_own_stop_ids",
        "_quiet",
        "_stops",
        "num_tokens",
    )

    def __init__(
        self, number: int, rules: TranscriptRules, params: SamplingParams, prompt_ids: list[int]
    ) -> None:
        self.num_tokens = 0
        self._number = number
        self._own_stop_ids = rules.own_stop_ids
        self._keep_stop = rules.keep_stop
        self._offsets = rules.offsets
        self._quiet = params.min_tokens
        """Stop strings within this many tokens do not count."""
        self._detokenizer = None
        self._stops = None
        if rules.tokenizer is not None:
            self._detokenizer = rules.tokenizer.stream(
                skip_special_tokens=rules.skip_special_tokens,
                kept_ids=rules.kept_ids,
                spaces_between_special_tokens=rules.spaces_between_special_tokens,
                prompt_ids=prompt_ids,
            )
            if rules.stops:
                self._stops = StopStrings(rules.stops, rules.keep_stop)

    def take(self, delta: Delta) -> Piece:
        piece = Piece(
            self._number,
            "",
            delta.token_ids,
            delta.logprobs,
            delta.finish_reason,
        )
        if delta.stop_token_id in self._own_stop_ids:
            piece.stop_reason = delta.stop_token_id
        silent = delta.stop_token_id is not None and not self._keep_stop
        spoken = delta.token_ids[:-1] if silent else delta.token_ids
        detokenizer, stops = self._detokenizer, self._stops
        if detokenizer is not None and stops is not None:
            self._search(spoken, piece, detokenizer, stops)
        elif detokenizer is not None:
            piece.text = self._push(spoken, piece, detokenizer)
            if delta.finish_reason is not None:
                piece.text += detokenizer.finish()
        if self._offsets:  # one that stops the output is silent
            end = 0 if detokenizer is None else detokenizer.end
            piece.offsets += [end] * (len(piece.token_ids) - len(piece.offsets))
        self.num_tokens += len(piece.token_ids)
        return piece

    def _search(
        self, token_ids: list[int], piece: Piece, detokenizer: Detokenizer, stops: StopStrings
    ) -> None:
        """Token by token, so that a stop string ends the output at the token that completes it."""
        for position, token_id in enumerate(token_ids):
            text = self._push([token_id], piece, detokenizer)
            if self.num_tokens + position < self._quiet:
                piece.text += text
            elif _stopped(stops, text, piece):
                _cut(piece, position + 1)
                return
        if piece.finish_reason is not None and not _stopped(stops, detokenizer.finish(), piece):
            piece.text += stops.finish()

    def _push(self, token_ids: list[int], piece: Piece, detokenizer: Detokenizer) -> str:
        if not self._offsets:
            return detokenizer.push(token_ids)
        text = ""
        for token_id in token_ids:
            piece.offsets.append(detokenizer.offset(token_id))
            text += detokenizer.push((token_id,))
        return text


def _stopped(stops: StopStrings, text: str, piece: Piece) -> bool:
    """Adds what may go out of `text` to the piece; True where a stop string ends it."""
    emitted, matched = stops.push(text)
    piece.text += emitted
    if matched is None:
        return False
    piece.finish_reason = "stop"
    piece.stop_reason = matched
    return True


def _cut(piece: Piece, num_tokens: int) -> None:
    piece.token_ids = piece.token_ids[:num_tokens]
    if piece.logprobs is not None:
        piece.logprobs = piece.logprobs[:num_tokens]

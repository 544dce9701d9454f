"""A slot's record: how its tokens are drawn, as 32-bit words that the device's kernels read.

A record is one row of an int32 tensor [num_slots, layout.words]: a header of scalars, then bounded lists.
The header says where each list begins, so that a kernel needs no more than the row. Floats are kept by their
bits.

    0         24       32         *_AT in the header say where each list begins
    [ scalars | unused | bias ids | bias values | stop ids | bad offsets | bad ids | allowed, a bit a token ]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int32]
Part = tuple[int, Words]
"""Words of a record, and the offset at which they begin."""

HEADER = 32


class Word(IntEnum):
    """Offsets of the header's scalars."""

    INVERSE_TEMPERATURE = 0
    """fp32; 0 takes the most likely token."""
    TOP_P = 1
    MIN_P = 2
    TYPICAL_P = 3
    PRESENCE = 4
    FREQUENCY = 5
    REPETITION = 6
    TOP_K = 7
    """0 keeps the whole vocabulary."""
    MIN_TOKENS = 8
    SEED_LOW = 9
    SEED_HIGH = 10
    NUM_LOGPROBS = 11
    """-1 reports nothing."""
    NUM_BIAS = 12
    NUM_STOP = 13
    """0, too, where there is no minimum length."""
    NUM_BAD = 14
    LONGEST_BAD = 15
    ALLOWED_AT = 16
    """0 allows every token; else where a bitmask begins, token t in bit t % 32 of word t // 32."""
    BIAS_IDS_AT = 17
    BIAS_VALUES_AT = 18
    STOP_AT = 19
    BAD_OFFSETS_AT = 20
    """Begins with 0; word i of the bad words ends before its token offsets[i + 1]."""
    BAD_IDS_AT = 21
    PENALIZED = 22
    """1 where a penalty changes a logit that has been seen."""
    FILTERED = 23
    """1 where top-k, top-p, min-p or typical leave tokens out."""


class Params(Protocol):
    """What a record holds of a request's sampling parameters; slipway.engine.params has them."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def typical_p(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def num_logprobs(self) -> int: ...
    @property
    def logit_bias(self) -> tuple[tuple[int, float], ...]: ...
    @property
    def allowed_token_ids(self) -> tuple[int, ...]: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...
    @property
    def bad_words(self) -> tuple[tuple[int, ...], ...]: ...


@dataclass(frozen=True, slots=True)
class Features:
    """What the requests of a batch ask for together: which kernels must run.

    A row that asks for less gets the same token from kernels that it does not need. max_top is the largest
    number of alternatives; -1 reports no log-probability. `masked`, which needs `edits`: rows have masks.
    """

    edits: bool = False
    penalties: bool = False
    random: bool = False
    filters: bool = False
    max_top: int = -1
    masked: bool = False

    def __or__(self, other: Features) -> Features:
        return Features(
            self.edits or other.edits,
            self.penalties or other.penalties,
            self.random or other.random,
            self.filters or other.filters,
            max(self.max_top, other.max_top),
            self.masked or other.masked,
        )

    @classmethod
    def of(cls, params: Params, vocab: int) -> Features:
        """Of one request. A mask is no parameter: whoever passes one adds `MASKED`."""
        repeats = params.presence_penalty, params.frequency_penalty, params.repetition_penalty
        penalties = repeats != (0, 0, 1)
        lists = params.logit_bias, params.allowed_token_ids, params.bad_words
        random = params.temperature > 0
        shares = params.top_p < 1 or params.min_p > 0 or params.typical_p < 1
        return cls(
            edits=penalties or any(lists) or bool(params.min_tokens > 0 and params.stop_token_ids),
            penalties=penalties,
            random=random,
            filters=random and (shares or 0 < params.top_k < vocab),
            max_top=params.num_logprobs,
        )


MASKED = Features(edits=True, masked=True)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The constants of typical acceptance, by which a draft may stand for the drawn token."""

    threshold: float
    alpha: float

    @property
    def rounded(self) -> dict[str, float]:
        """As every device holds them: fp32."""
        return {"threshold": float(np.float32(self.threshold)), "alpha": float(np.float32(self.alpha))}


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """How long the lists of a record may be. The defaults hold what the API admits, where a bad word has four
    tokens in the mean and a model at most 64 end-of-text tokens."""

    vocab: int
    max_bias: int = 4096
    max_stop: int = 1088
    max_bad_words: int = 2048
    max_bad_tokens: int = 8192

    @property
    def words(self) -> int:
        """Of one record; a multiple of 16 bytes."""
        return -(-(self._allowed_at + -(-self.vocab // 32)) // 4) * 4

    @property
    def _bias_values_at(self) -> int:
        return HEADER + self.max_bias

    @property
    def _stop_at(self) -> int:
        return self._bias_values_at + self.max_bias

    @property
    def _bad_offsets_at(self) -> int:
        return self._stop_at + self.max_stop

    @property
    def _bad_ids_at(self) -> int:
        return self._bad_offsets_at + self.max_bad_words + 1

    @property
    def _allowed_at(self) -> int:
        return self._bad_ids_at + self.max_bad_tokens

    def encode(self, params: Params) -> list[Part]:
        """The words to write into a slot's record: the header first, then the lists that are used.

        Tokens that the vocabulary does not have are left out; a token biased twice gets the sum. Raises
        ValueError where a list is longer than the layout holds.
        """
        bias: dict[int, np.float32] = {}
        for token, value in params.logit_bias:
            if 0 <= token < self.vocab:
                bias[token] = bias.get(token, np.float32(0)) + np.float32(value)
        stop = self._known(params.stop_token_ids) if params.min_tokens > 0 else []
        bad = [word for word in params.bad_words if word and 0 <= word[-1] < self.vocab]
        ids = [token for word in bad for token in word]
        self._check("logit_bias", len(bias), self.max_bias)
        self._check("stop_token_ids", len(stop), self.max_stop)
        self._check("bad_words", len(bad), self.max_bad_words)
        self._check("tokens of bad_words", len(ids), self.max_bad_tokens)

        header = self._header(params, len(bias), len(stop), bad)
        parts: list[Part] = [(0, header)]
        if bias:
            parts.append((HEADER, np.asarray(list(bias), np.int32)))
            parts.append((self._bias_values_at, np.asarray(list(bias.values()), np.float32).view(np.int32)))
        if stop:
            parts.append((self._stop_at, np.asarray(stop, np.int32)))
        if bad:
            offsets = np.cumsum([0, *map(len, bad)]).astype(np.int32)
            parts.append((self._bad_offsets_at, offsets))
            parts.append((self._bad_ids_at, np.asarray(ids, np.int64).astype(np.int32)))
        if params.allowed_token_ids:
            parts.append((self._allowed_at, bitmask(self._known(params.allowed_token_ids), self.vocab)))
        return parts

    def _header(self, params: Params, num_bias: int, num_stop: int, bad: Sequence[tuple[int, ...]]) -> Words:
        header = np.zeros(HEADER, np.int32)
        floats = header.view(np.float32)
        floats[Word.INVERSE_TEMPERATURE] = inverse_of(params.temperature)
        floats[Word.TOP_P] = params.top_p
        floats[Word.MIN_P] = min(params.min_p, 1.0)
        floats[Word.TYPICAL_P] = params.typical_p
        floats[Word.PRESENCE] = params.presence_penalty
        floats[Word.FREQUENCY] = params.frequency_penalty
        floats[Word.REPETITION] = params.repetition_penalty
        header[Word.TOP_K] = params.top_k if 0 < params.top_k < self.vocab else 0
        header[Word.MIN_TOKENS] = params.min_tokens
        seed = np.asarray([params.seed], np.uint64).view(np.int32)
        header[Word.SEED_LOW], header[Word.SEED_HIGH] = seed
        header[Word.NUM_LOGPROBS] = params.num_logprobs
        header[Word.NUM_BIAS] = num_bias
        header[Word.NUM_STOP] = num_stop
        header[Word.NUM_BAD] = len(bad)
        header[Word.LONGEST_BAD] = max(map(len, bad), default=0)
        header[Word.ALLOWED_AT] = self._allowed_at if params.allowed_token_ids else 0
        features = Features.of(params, self.vocab)
        header[Word.PENALIZED] = features.penalties
        header[Word.FILTERED] = features.filters
        header[Word.BIAS_IDS_AT] = HEADER
        header[Word.BIAS_VALUES_AT] = self._bias_values_at
        header[Word.STOP_AT] = self._stop_at
        header[Word.BAD_OFFSETS_AT] = self._bad_offsets_at
        header[Word.BAD_IDS_AT] = self._bad_ids_at
        return header

    def _known(self, tokens: Iterable[int]) -> list[int]:
        return [token for token in tokens if 0 <= token < self.vocab]

    @staticmethod
    def _check(name: str, count: int, most: int) -> None:
        if count > most:
            raise ValueError(f"{name} has {count} entries, and a record holds {most}: give fewer.")


def inverse_of(temperature: float) -> np.float32:
    """What logits are multiplied by; 0 for temperature 0."""
    if temperature == 0:
        return np.float32(0)
    with np.errstate(over="ignore", divide="ignore"):
        return min(np.float32(1) / np.float32(temperature), np.finfo(np.float32).max)


def bitmask(tokens: Sequence[int], vocab: int) -> Words:
    """[ceil(vocab / 32)]: token t in bit t % 32 of word t // 32, as grammars give it, too."""
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)

"""Matchers: which tokens of a vocabulary a grammar allows next. Imports llguidance, which takes 0.1 s."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from slipway.text.errors import GrammarError
from slipway.text.grammar_reasons import NO_TEXT, translated
from slipway.text.tokenizer import Tokenizer

T = TypeVar("T")

LIMITS = LLParserLimits(max_lexer_states=20_000, verbose_errors=False)
"""llguidance's own but for the states of a lexer, of up to 2 KiB each, which grow while it matches."""
SLOW = 0.25
"""Seconds of a processor that one mask may take: all that runs waits for it."""
SLOW_STEP = 1.0
"""Seconds that those of one step may take, whose number the engine chooses by the time of those before."""
TOO_SLOW = "it takes too long to follow; say it more simply"
CACHED_BYTES = 256 << 10, 512
"""What a compiled grammar counts for: so much, and so much a character of it; measured 0.2 MB at 600."""


class GrammarCompiler:
    """Compiles grammars over a model's vocabulary, and keeps those that were used last.

    Not for two threads at once.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, cache_bytes: int) -> None:
        """vocab_size  logits of the model, which may be more than the tokenizer has tokens.

        Takes 0.1 to 1 s. Raises GrammarError where the tokenizer cannot write texts so.
        """
        if not tokenizer.eos_token_ids:
            raise GrammarError("the model's tokenizer has no end-of-sequence token, which a text's end needs")
        tokens = _Tokens(tokenizer, vocab_size)
        if not tokens("a b"):
            raise GrammarError("the texts of the model's tokens depend on their neighbours")
        self._trie = LLTokenizer(TokenizerWrapper(tokens), eos_token=list(tokenizer.eos_token_ids))
        tokens.trie = self._trie
        self._num_words = -(-vocab_size // 32)
        self._ends = frozenset(tokenizer.eos_token_ids)
        self._cache: OrderedDict[str, LLMatcher] = OrderedDict()
        self._cache_bytes = cache_bytes

    def matcher(self, grammar: str, ends: Iterable[int] = ()) -> GrammarMatcher:
        """A matcher at the start of a grammar.

        ends  tokens that end the output beside the model's own
        Raises GrammarError where the grammar is malformed, is too large or has no text.
        """
        compiled = self._cache.pop(grammar, None) or self._compiled(grammar)
        self._cache[grammar] = compiled
        while len(self._cache) > 1 and sum(map(_cached_bytes, self._cache)) > self._cache_bytes:
            self._cache.popitem(last=False)
        return GrammarMatcher(compiled.deep_copy(), self._num_words, frozenset(ends) - self._ends)

    def _compiled(self, grammar: str) -> LLMatcher:
        compiled = LLMatcher(self._trie, grammar, log_level=0, limits=LIMITS)
        if compiled.is_error():
            raise GrammarError(translated(compiled.get_error()))
        GrammarMatcher(compiled, self._num_words, frozenset()).masks(())  # builds what copies share
        return compiled


class GrammarMatcher:
    """Where one output stands in its grammar."""

    def __init__(self, matcher: LLMatcher, num_words: int, ends: frozenset[int]) -> None:
        self._matcher = matcher
        self._num_words = num_words
        self._ends = ends
        self._forced: list[int] = []
        """Of those that were asked for last, the ones that have not been drawn since."""

    def advance(self, tokens: Sequence[int]) -> int | None:
        """These tokens have been drawn. The number of them with which the text is complete, so that nothing
        can follow; None while something can. Raises GrammarError for one that was not allowed."""
        drawn = len(tokens)
        self._forced = self._forced[drawn:] if self._forced[:drawn] == list(tokens) else []
        for count, token in enumerate(tokens, 1):
            if token in self._ends:
                return count
            if not self._matcher.consume_token(token):
                raise GrammarError(translated(self._matcher.get_error()))
            if self._matcher.is_stopped():
                return count
        return None

    def forced(self) -> list[int]:
        """The tokens to come about which the grammar leaves no choice."""
        if not self._forced:  # to find them takes time for each, and they stay the same
            self._forced = _quickly(self._matcher.compute_ff_tokens)
        return self._forced

    def masks(self, drafts: Sequence[int]) -> NDArray[np.uint32]:
        """[1 + len(drafts), ⌈vocab / 32⌉]: bits of the tokens that may come next, then after each draft.

        Behind a draft that is not allowed, or that completes the text, everything is.
        Raises GrammarError where nothing may come, and where it takes too long.
        """
        begun = time.thread_time()
        rows = np.empty((1 + len(drafts), self._num_words), np.uint32)
        place, row_bytes = rows.ctypes.data, 4 * self._num_words
        taken = 0
        for number, row in enumerate(rows):
            self._fill(row, place + number * row_bytes)
            if time.thread_time() - begun > SLOW_STEP:
                raise GrammarError(TOO_SLOW)
            if number == len(drafts) or not _allows(row, drafts[number]) or drafts[number] in self._ends:
                break
            self._matcher.consume_token(drafts[number])
            taken += 1
            if self._matcher.is_stopped():
                break
        rows[number + 1 :] = 0xFFFFFFFF
        if taken:
            self._matcher.rollback(taken)
        return rows

    def _fill(self, row: NDArray[np.uint32], place: int) -> None:
        """place  the row's address"""
        _quickly(self._matcher.unsafe_compute_mask_ptr, place, row.nbytes)
        if self._ends and self._matcher.is_accepting():
            for token in self._ends:
                row[token // 32] |= np.uint32(1 << token % 32)
        if self._matcher.is_error():
            raise GrammarError(translated(self._matcher.get_error()))
        if not row.any():
            raise GrammarError(NO_TEXT)


def _quickly(ask: Callable[..., T], *arguments: int) -> T:
    """What is asked, which changes nothing. Raises GrammarError where it takes too long."""
    begun = time.perf_counter()
    answer = ask(*arguments)
    if time.perf_counter() - begun > SLOW:  # or others had the processor: ask once more, by its own time
        begun = time.thread_time()
        ask(*arguments)
        if time.thread_time() - begun > SLOW:
            raise GrammarError(TOO_SLOW)
    return answer


def _allows(row: NDArray[np.uint32], token: int) -> bool:
    return bool(row[token // 32] >> np.uint32(token % 32) & 1)


def _cached_bytes(grammar: str) -> int:
    at_least, each = CACHED_BYTES
    return at_least + each * len(grammar)


class _Tokens:
    """A vocabulary as llguidance asks for it."""

    trie: LLTokenizer | None = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        known = range(min(vocab_size, tokenizer.vocab_size))
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in known]
        self.tokens += [b""] * (vocab_size - len(self.tokens))
        special = {token_id for token_id in tokenizer.special_ids if token_id < vocab_size}
        self.special_token_ids = sorted(special)
        self._special = special
        self._tokenizer = tokenizer
        texts = sorted({re.escape(tokenizer.token_text(token_id)) for token_id in special}, key=len)
        self._special_text = re.compile("|".join(reversed(texts)) or "(?!)")
        self._prefix = "" if self._bytes(self._encode("a")) == b"a" else "\x02"
        """Some tokenizers put a space in front of a text: they meet this instead."""

    def __call__(self, text: str) -> list[int]:
        """Its tokens as the model knows them, in the middle of a text and none of them special."""
        cuts = [match.start() + 1 for match in self._special_text.finditer(text)]
        ids = []
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            ids += self._plain(text[start:end])
        return ids

    def _plain(self, text: str) -> list[int]:
        ids = self._encode(self._prefix + text)
        wanted = text.encode()
        while self._prefix and ids and len(self._bytes(ids)) > len(wanted):
            ids = ids[1:]
        if self._bytes(ids) == wanted and self._special.isdisjoint(ids):
            return ids
        ids = [] if self.trie is None else self.trie.greedy_tokenize(text)
        return ids if self._bytes(ids) == wanted else []

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._tokenizer.token_bytes, ids))

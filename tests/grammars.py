"""Grammars over bytes: each is a token."""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer

from slipway.text.errors import GrammarError
from slipway.text.grammar_reasons import translated

BYTES = LLTokenizer("byte")


def compiled(grammar: str) -> LLMatcher:
    """Raises GrammarError with the reason."""
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    if matcher.is_error():
        raise GrammarError(translated(matcher.get_error()))
    return matcher


def accepts(matcher: LLMatcher, text: str) -> bool:
    matcher = matcher.deep_copy()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

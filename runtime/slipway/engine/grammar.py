"""Requests whose tokens a grammar bounds: each has a matcher, which is asked for masks before a draw."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from slipway.engine.config import EngineConfig
from slipway.engine.grants import Grant, Step
from slipway.engine.matcher import Matcher
from slipway.engine.messages import AddRequest
from slipway.engine.plan import Masks
from slipway.engine.reasoning import ReasoningFirst
from slipway.engine.request import Request

if TYPE_CHECKING:
    from slipway.text.matcher import GrammarCompiler


MakeMatcher = Callable[[AddRequest], Matcher]
"""Of a request; raises where its grammar cannot be read."""


def no_grammar(message: AddRequest) -> Matcher:
    raise ValueError("this engine reads no grammars")


class ModelMatchers:
    """Makes matchers over the model's own vocabulary; its tokenizer is read for the first of them."""

    def __init__(self, config: EngineConfig, vocab_size: int) -> None:
        self._config = config
        self._vocab_size = vocab_size

    def __call__(self, message: AddRequest) -> Matcher:
        ends = message.params.stop_token_ids
        matcher = self._compiler.matcher(message.grammar, ends) if message.grammar else None
        if message.reasoning is not None:
            return ReasoningFirst(message.reasoning, matcher, -(-self._vocab_size // 32))
        assert matcher is not None
        return matcher

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        from slipway.text.matcher import GrammarCompiler
        from slipway.text.open import load_for

        tokenizer = load_for(self._config)
        return GrammarCompiler(tokenizer, self._vocab_size, self._config.grammar_cache_bytes)


class Grammars:
    """The matchers of live requests, with the drafts that their slots verify next.

    False where no live request has one: then it is asked nothing more. Matchers are made on a thread of their
    own; `wake` is called from there for each that is ready.
    """

    def __init__(self, make: MakeMatcher, wake: Callable[[], None] = lambda: None) -> None:
        self.make = make
        self._wake = wake
        self._thread: ThreadPoolExecutor | None = None
        self._making: dict[Request, Future[Matcher]] = {}
        self._matchers: dict[Request, Matcher] = {}
        self._drafts: dict[Request, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._matchers)

    @property
    def num_waiting(self) -> int:
        """Requests whose matchers are being made."""
        return len(self._making)

    @property
    def has_prepared(self) -> bool:
        """`prepared` has news, of which `wake` has told before or tells now."""
        return any(future.done() for future in self._making.values())

    def prepare(self, request: Request, message: AddRequest) -> None:
        """Begin to make the matcher of a request, which is not scheduled before it is there."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        future = self._thread.submit(self.make, message)
        self._making[request] = future
        future.add_done_callback(lambda _: self._wake())

    def prepared(self) -> Iterator[tuple[Request, Exception | None]]:
        """Requests whose matchers have been made since, or could not be."""
        for request, future in [(request, one) for request, one in self._making.items() if one.done()]:
            del self._making[request]
            error = future.exception()
            if error is None:
                self._matchers[request] = future.result()
            elif not isinstance(error, Exception):
                raise error
            yield request, error

    def end(self, request: Request) -> bool:
        """Forget a request; whether its matcher was still being made, so that nobody else knows of it."""
        self._matchers.pop(request, None)
        self._drafts.pop(request, None)
        making = self._making.pop(request, None)
        if making is not None:
            making.cancel()
        return making is not None

    def advance(
        self, request: Request, tokens: list[int], drafts: list[int], *, forced: bool = True
    ) -> int | None:
        """A step has drawn these tokens of a request with a matcher, and left these drafts. The number of
        tokens that complete its text; None while it goes on.

        forced  steps verify the tokens that grammars force: else nobody asks for them
        """
        matcher = self._matchers[request]
        complete = matcher.advance(tokens)
        if complete is None:
            request.forced = matcher.forced() if forced else []
            self._drafts[request] = drafts
        return complete

    def masked(self, step: Step) -> dict[int, tuple[Request, Grant]]:
        """Those that draw within masks, by index."""
        grants = enumerate(step.items())
        return {index: one for index, one in grants if one[1].draws and one[0] in self._matchers}

    def masks(
        self, grants: dict[int, tuple[Request, Grant]]
    ) -> tuple[Masks, list[tuple[Request, Exception]]]:
        """Of these grants; and the requests whose matchers failed, which draw without one as they end."""
        masks: Masks = {}
        failed: list[tuple[Request, Exception]] = []
        for index, (request, grant) in grants.items():
            matcher = self._matchers.get(request)
            if matcher is None:  # it has ended since
                continue
            try:
                drafts = grant.forced or self._drafts.get(request, [])[: grant.num_drafts]
                begun = time.thread_time()  # and not what others have of the processor
                found = matcher.masks(drafts)
                took = (time.thread_time() - begun) / len(found)
                request.mask_seconds = max(took, request.mask_seconds / 4)  # one that was quick tells little
                missing = grant.num_drafts - len(drafts)
                masks[index] = np.pad(found, ((0, missing), (0, 0)), mode="edge") if missing else found
            except Exception as error:
                failed.append((request, error))
        return masks, failed

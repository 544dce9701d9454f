"""Grammars are compiled here before the engine sees them, so that one at fault is answered 400."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

from slipway.api.errors import ApiError
from slipway.api.model import ServedModel
from slipway.api.structured import Grammar, unfit
from slipway.text.errors import GrammarError

if TYPE_CHECKING:
    from slipway.text.matcher import GrammarCompiler

DEADLINE = 10.0
"""Seconds; llguidance's own limits end what is too large long before that."""
KNOWN = 4096
"""Grammars that are remembered as good, by digest."""


class GrammarChecks:
    """Compiles on one thread, lets go of the interpreter's lock there, and remembers what was good."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def check(self, grammar: Grammar) -> None:
        """Raises ApiError where no output can be held to it: 400 with the reason, 503 where too many wait."""
        digest = hashlib.sha256(grammar.text.encode()).digest()
        if digest in self._known:
            self._known.move_to_end(digest)
            return
        compiled = self._thread.submit(self._compile, grammar.text)
        compiling = asyncio.wrap_future(compiled)
        compiling.add_done_callback(_see)
        done, _ = await asyncio.wait([compiling], timeout=DEADLINE)
        if not done:
            raise _late(compiled, grammar.param)
        if isinstance(error := compiled.exception(), GrammarError):
            raise unfit(grammar.param, error)
        compiled.result()  # raises what nobody expected
        self._known[digest] = None
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: str) -> None:
        self._compiler.matcher(grammar)

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        from slipway.text.matcher import GrammarCompiler

        return GrammarCompiler(self._model.tokenizer, self._model.vocab_size, cache_bytes=0)


def _see(compiling: asyncio.Future[None]) -> None:
    """Ask for what it raised, which asyncio logs where nobody does: after the deadline nobody would."""
    if not compiling.cancelled():
        compiling.exception()


def _late(compiled: Future[None], param: str) -> ApiError:
    if compiled.cancel():
        message = "Too many requests with new grammars wait to be compiled; try again."
        return ApiError(message, status=503, code="overloaded", headers={"Retry-After": "5"})
    message = f"{param} takes longer than {DEADLINE:g} s to compile; say it more simply."
    return ApiError(message, param=param, code="invalid_value")

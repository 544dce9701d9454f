"""Grammars are compiled here before the engine sees them, so that one at fault is answered 400."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING

from slipway.api.errors import ApiError
from slipway.api.model import ServedModel
from slipway.api.structured import Grammar, unfit
from slipway.text.errors import GrammarError

if TYPE_CHECKING:
    from slipway.text.matcher import GrammarCompiler

DEADLINE = 10.0
"""Seconds that a request waits for its grammar."""
COMPILING = 5.0
"""Seconds of them in which a grammar is compiled; llguidance's own limits end most of them before that."""
MAX_HELD = 3
"""Threads that grammars hold for longer. llguidance cannot be interrupted."""
KNOWN = 4096
"""Grammars that are remembered as good, by digest."""


class GrammarChecks:
    """Compiles on one thread, lets go of the interpreter's lock there, and remembers what was good.

    A thread that a grammar holds for too long is left to it, and another one takes its place. The end of the
    process waits for none of them.
    """

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._tasks: SimpleQueue[tuple[Future[None], str] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._held = 0
        self._of_thread = threading.local()
        """The compiler, which is not for two threads."""
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def check(self, grammar: Grammar) -> None:
        """Raises ApiError where no output can be held to it: 400 with the reason, 503 where too many wait."""
        digest = hashlib.sha256(grammar.text.encode()).digest()
        if digest in self._known:
            self._known.move_to_end(digest)
            return
        compiled: Future[None] = Future()
        self._tasks.put((compiled, grammar.text))
        if not self._threads:
            self._start_thread()
        compiling = asyncio.wrap_future(compiled)
        compiling.add_done_callback(_see)
        done, _ = await asyncio.wait([compiling], timeout=DEADLINE)
        if not done:
            raise _late(compiled, grammar.param)
        if isinstance(compiled.exception(), TimeoutError):
            raise _slow(grammar.param)
        if isinstance(error := compiled.exception(), GrammarError):
            raise unfit(grammar.param, error)
        compiled.result()  # raises what nobody expected
        self._known[digest] = None
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    def close(self) -> None:
        self._tasks.put(None)

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="grammar", daemon=True).start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            compiled, text = task
            if not compiled.set_running_or_notify_cancel():
                continue
            watch = threading.Timer(COMPILING, self._give_up, (compiled,))
            watch.daemon = True
            watch.start()
            raised: BaseException | None = None
            try:
                self._compile(text)
            except BaseException as error:  # the request is told
                raised = error
            watch.cancel()
            with self._lock:
                if compiled.done():  # given up, and this thread replaced
                    self._held -= 1
                    return
                if raised is None:
                    compiled.set_result(None)
                else:
                    compiled.set_exception(raised)

    def _give_up(self, compiled: Future[None]) -> None:
        """Let another thread take the place of the one that compiles this, unless too many are held."""
        with self._lock:
            if compiled.done() or self._held == MAX_HELD:
                return
            self._held += 1
            compiled.set_exception(TimeoutError())
        self._start_thread()

    def _compile(self, grammar: str) -> None:
        compiler: GrammarCompiler | None = getattr(self._of_thread, "compiler", None)
        if compiler is None:
            from slipway.text.matcher import GrammarCompiler

            compiler = GrammarCompiler(self._model.tokenizer, self._model.vocab_size, cache_bytes=0)
            self._of_thread.compiler = compiler
        compiler.matcher(grammar)


def _see(compiling: asyncio.Future[None]) -> None:
    """Ask for what it raised, which asyncio logs where nobody does: after the deadline nobody would."""
    if not compiling.cancelled():
        compiling.exception()


def _late(compiled: Future[None], param: str) -> ApiError:
    if compiled.cancel():
        message = "Too many requests with new grammars wait to be compiled; try again."
        return ApiError(message, status=503, code="overloaded", headers={"Retry-After": "5"})
    return _slow(param)


def _slow(param: str) -> ApiError:
    message = f"{param} takes longer than {COMPILING:g} s to compile; say it more simply."
    return ApiError(message, param=param, code="invalid_value")

"""What the log says of requests: a line of each once it has ended, and prompts where that is asked for."""

from __future__ import annotations

import logging
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from slipway.api.errors import one_line
from slipway.api.generate import Order, Run
from slipway.engine.params import SamplingParams

MEMBERS = 16
"""Of each list in the parameters of a request."""

logger = logging.getLogger("slipway.api.requests")


class RequestLog:
    """Lines of one API process."""

    def __init__(self, prompts: bool, limit: int | None, *, outputs: bool = False) -> None:
        """`prompts` and `outputs` are logged, of each the first `limit` characters."""
        self._prompts = prompts
        self._outputs = outputs
        self._limit = limit

    @property
    def has_prompts_whole(self) -> bool:
        """What users write is in the log, all of it."""
        return self._prompts and self._limit is None and logger.isEnabledFor(logging.INFO)

    def begun(self, order: Order) -> None:
        """What was asked for, where prompts are logged; at the level DEBUG the tokens, too."""
        if not self._prompts or not logger.isEnabledFor(logging.INFO):
            return
        for index, prompt in enumerate(order.prompts):
            shown = prompt.token_ids if self._limit is None else prompt.token_ids[: self._limit]
            tokenizer = order.rules.tokenizer
            text = tokenizer.decode(shown, skip_special_tokens=False) if tokenizer else None
            logger.info(
                "request %s: prompt %r, %s",
                order.request_id,
                text if text is None else text[: self._limit],
                self._how(order) if index == 0 else "as the first",
            )
            logger.debug("request %s: tokens %s", order.request_id, shown)

    def follow(self, run: Run) -> None:
        """Have it keep its texts, where outputs are logged."""
        if self._outputs and run.order.pooling is None and logger.isEnabledFor(logging.INFO):
            run.texts = [[] for _ in range(len(run.order.prompts) * run.order.n)]

    def ended(self, run: Run) -> None:
        """The request's line, behind its outputs where these are logged. Of one that did not fit the refusal
        has said it."""
        for number, parts in enumerate(run.texts or ()):
            logger.info(
                "request %s: output %d %r", run.order.request_id, number, "".join(parts)[: self._limit]
            )
        unfit = not run.error and any(output.finish_reason == "error" for output in run.outputs)
        if not unfit and logger.isEnabledFor(logging.INFO):
            logger.info("request %s: %s", run.order.request_id, ", ".join(_told(run)))

    def _how(self, order: Order) -> str:
        """What a request's prompts have in common; the seed is the first one's."""
        if order.pooling is not None:
            return str(order.pooling)
        held = f", held to {order.grammar.text[: self._limit]}" if order.grammar else ""
        return f"n {order.n}, {self._shown(order.prompts[0].params)}{held}"

    def _shown(self, params: SamplingParams) -> str:
        """Parameters with the beginnings of their lists."""
        beginnings = reprlib.Repr()
        beginnings.maxtuple = MEMBERS if self._limit is None else min(self._limit, MEMBERS)
        values = msgspec.structs.asdict(params).items()
        return f"SamplingParams({', '.join(f'{name}={beginnings.repr(value)}' for name, value in values)})"


class Unsaid(logging.Filter):
    """Of the HTTP server's lines those of requests that have no line of their own here."""

    def __init__(self, paths: Iterable[str], root_path: str) -> None:
        """`paths` are answered by orders, also below `root_path`."""
        super().__init__()
        self._paths = frozenset(paths)
        self._root_path = root_path

    @classmethod
    def apply(cls, paths: Iterable[str], root_path: str) -> None:
        """In this process, in place of one of before."""
        access = logging.getLogger("uvicorn.access")
        access.filters = [one for one in access.filters if not isinstance(one, cls)]
        access.addFilter(cls(paths, root_path))

    def filter(self, record: logging.LogRecord) -> bool:
        match record.args:
            case (_, _, str(path), _, int(status)):
                asked = path.partition("?")[0]
                ours = asked in self._paths or asked.removeprefix(self._root_path) in self._paths
                return status < 400 and not ours
        return True


def _told(run: Run) -> Iterator[str]:
    """Model, tokens, times, and how it ended."""
    cached = f" ({run.num_cached_tokens} cached)" if run.num_cached_tokens else ""
    yield f"{run.model}, {run.order.prompt_tokens} tokens in{cached}"
    if run.order.pooling is None:
        yield f"{run.num_tokens} out"
    if run.first_news is not None:
        yield f"the first after {run.first_news - run.arrival:.3f} s"
        took = run.last_end - run.first_news
        if run.num_tokens > len(run.outputs) and took > 0:
            yield f"{(run.num_tokens - len(run.outputs)) / took:.1f} tokens/s"
    else:
        yield f"{run.last_end - run.arrival:.3f} s"
    reasons = Counter(output.finish_reason for output in run.outputs)
    several = len(run.outputs) > 1
    yield " and ".join(f"{count} {reason}" if several else reason for reason, count in reasons.items())
    if run.error:
        yield one_line(run.error)

"""A request inside the engine."""

from __future__ import annotations

from array import array

from slipway.engine.messages import AddRequest, RequestTiming, TokenLogprobs
from slipway.engine.params import SamplingParams


class Request:
    """One prompt, its sampling parameters and its output so far: all that the host knows of it.

    Two counters of positions. `granted` are computed once every step under way has run, at most: it decides
    pages and budget. `committed` are computed by steps that have been collected: it decides what the prefix
    index learns, what leaves a window and what is swapped. They differ by the steps under way, and a step
    that verifies drafts may turn out to have computed fewer than it was granted.

    Invariants: `committed <= granted <= max_computed`; `committed < len(tokens)`; with no step under way
    the two are equal.
    """

    __slots__ = (
        "adapter",
        "arrival",
        "block_keys",
        "capacity",
        "client_id",
        "committed",
        "ended",
        "first_token_time",
        "granted",
        "id",
        "identity",
        "masked",
        "max_computed",
        "next_trim",
        "num_cached",
        "num_drawing",
        "num_overtaken",
        "num_preemptions",
        "num_promised",
        "num_prompt",
        "num_registered",
        "num_steps",
        "params",
        "priority",
        "prompt_logprobs",
        "quiet_until",
        "scheduled_time",
        "sequence",
        "slot",
        "stop_tokens",
        "tables",
        "tokens",
    )

    def __init__(self, client_id: int, message: AddRequest, sequence: int) -> None:
        self.client_id = client_id
        self.id = message.request_id
        self.tokens = array("i", message.prompt_token_ids)  # prompt, then output
        self.num_prompt = len(self.tokens)
        self.params: SamplingParams = message.params
        self.stop_tokens = frozenset(self.params.stop_token_ids)
        self.priority = message.priority
        self.adapter = -1
        """Index of its adapter; -1: the model alone."""
        identity = (
            f"{len(message.adapter)} {message.adapter}{message.cache_salt}"  # no two pairs make one text
        )
        self.identity = identity.encode("utf-8", "surrogatepass")
        """What beside its tokens decides whose blocks it may share: the root of its block keys."""
        self.masked = bool(message.grammar)
        """A grammar bounds what it may draw."""
        self.sequence = sequence
        """Order of arrival, which settles every tie."""
        self.granted = 0
        self.committed = 0
        self.max_computed = self.num_prompt + self.params.max_tokens - 1
        """Positions that are ever computed: that of the last token that may be drawn is not."""
        self.quiet_until = 0
        """Positions committed from which on a token may be the first, the last or the end of a block."""
        self.num_steps = 0
        """Steps under way that compute some of it."""
        self.num_drawing = 0
        """Of these, the ones that draw tokens."""
        self.num_cached = 0
        """Prompt tokens that the first admission found in the prefix cache."""
        self.ended = False
        """Nothing more is told of it, whatever steps under way still make of it."""
        self.slot = -1
        self.tables: list[list[int]] = []
        """Pages of each group's blocks; -1 where a page has left the window."""
        self.capacity = 0
        """Positions that these pages reach, in every group."""
        self.next_trim = 0
        """Positions committed at which one of them leaves its window."""
        self.block_keys: list[bytes] = []
        self.num_registered = 0
        """Tokens that the prefix index knows, in whole blocks."""
        self.num_promised = 0
        """Tokens that it will know once the steps under way are collected."""
        self.num_overtaken = 0
        """Steps that admitted others while this one waited for pages."""
        self.prompt_logprobs: list[TokenLogprobs | None] = [None]
        """Of the prompt tokens so far, where asked for; nothing predicts the first."""
        self.arrival = message.arrival_time
        self.scheduled_time = 0.0
        self.first_token_time = 0.0
        self.num_preemptions = 0

    def take(self, token: int) -> bool:
        """Enter the next token, which the oldest step under way drew, unless more may follow of it."""
        if self.committed >= self.quiet_until or token in self.stop_tokens:
            return False
        self.tokens.append(token)
        self.committed += 1
        self.num_steps -= 1
        self.num_drawing -= 1
        return True

    @property
    def in_prompt(self) -> bool:
        """Prompt tokens are left to compute."""
        return self.granted < self.num_prompt

    @property
    def num_left(self) -> int:
        """Tokens still to grant. Behind steps that draw it is the next one, whatever they draw."""
        if self.num_drawing:
            return 1 if self.granted < self.max_computed else 0
        return len(self.tokens) - self.granted  # which is never past `max_computed`: it would have ended

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.params.num_prompt_logprobs >= 0 and len(self.prompt_logprobs) < self.num_prompt

    def timing(self, now: float) -> RequestTiming:
        return RequestTiming(
            self.arrival,
            self.scheduled_time,
            self.first_token_time or now,
            now,
            self.num_preemptions,
        )

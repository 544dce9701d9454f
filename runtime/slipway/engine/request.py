"""A request inside the engine."""

from __future__ import annotations

from slipway.engine.messages import AddRequest, RequestTiming, TokenLogprobs
from slipway.engine.params import SamplingParams


class Request:
    """One prompt, its sampling parameters and its output so far.

    Invariant: `num_computed <= num_tokens`, where `num_tokens` counts the known tokens and the
    `num_in_flight` that a step already planned will draw.
    """

    __slots__ = (
        "arrival",
        "block_keys",
        "cache_salt",
        "client_id",
        "first_token_time",
        "id",
        "num_cached",
        "num_computed",
        "num_in_flight",
        "num_preemptions",
        "num_prompt",
        "num_registered",
        "params",
        "priority",
        "prompt_logprobs",
        "scheduled_time",
        "sequence",
        "slot",
        "tables",
        "tokens",
    )

    def __init__(self, client_id: int, message: AddRequest, sequence: int, num_groups: int) -> None:
        self.client_id = client_id
        self.id = message.request_id
        self.tokens = message.prompt_token_ids  # prompt, then output
        self.num_prompt = len(self.tokens)
        self.params: SamplingParams = message.params
        self.priority = message.priority
        self.cache_salt = message.cache_salt
        self.sequence = sequence
        """Order of arrival, which settles every tie."""
        self.num_computed = 0
        self.num_in_flight = 0
        self.num_cached = 0
        """Prompt tokens that the first admission found in the prefix cache."""
        self.slot = -1
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        """Pages of each group's blocks; -1 where a page has left the window."""
        self.block_keys: list[object] = []
        self.num_registered = 0
        """Blocks that the prefix index knows."""
        self.prompt_logprobs: list[TokenLogprobs | None] = [None]
        """Of the prompt tokens judged so far, where asked for; nothing predicts the first."""
        self.arrival = message.arrival_time
        self.scheduled_time = 0.0
        self.first_token_time = 0.0
        self.num_preemptions = 0

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) + self.num_in_flight

    @property
    def in_prompt(self) -> bool:
        """Prompt tokens are left to compute."""
        return self.num_computed < self.num_prompt

    @property
    def num_left(self) -> int:
        """Tokens still to compute; the last one that may be drawn never is."""
        return min(self.num_tokens, self.num_prompt + self.params.max_tokens - 1) - self.num_computed

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

"""A request inside the engine."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import InitVar, dataclass, field

from slipway.engine.guesses import Guesses
from slipway.engine.messages import NO_TOKEN, AdapterRef, AddRequest, RequestTiming, TokenLogprobs, Work
from slipway.engine.params import PoolingParams, SamplingParams
from slipway.engine.plan import NO_PLACE

FIRST_MASK_SECONDS = 0.005
"""What a mask counts for before one has been timed: that of a schema takes less."""


@dataclass(slots=True, eq=False)
class Request:
    """One prompt, its sampling parameters and its output so far: all that the host knows of it.

    Two counters of positions. `granted` are computed once every step under way has run, at most: it decides
    pages and budget. `committed` are computed by steps that have been collected: it decides what the prefix
    index learns, what leaves a window and what is swapped. They differ by the steps under way, and a step
    that verifies drafts may turn out to have computed fewer than it was granted.

    Invariants: `committed <= granted <= max_computed`; `committed < len(tokens)`; with no step under way
    the two are equal.
    """

    client_id: int
    message: InitVar[AddRequest]
    sequence: int
    """Order of arrival, which settles every tie."""
    id: str = field(init=False)
    params: SamplingParams = field(init=False)
    pooling: PoolingParams | None = field(init=False)
    """It ends when its prompt is computed; None: it generates."""
    stop_tokens: frozenset[int] = field(init=False)
    priority: int = field(init=False)
    tokens: array[int] = field(init=False)
    """Prompt, then output. A prompt adapter's virtual tokens begin the prompt, each NO_TOKEN."""
    num_virtual: int = field(init=False)
    num_prompt: int = field(init=False)
    """With virtual tokens."""
    max_computed: int = field(init=False)
    """Positions that are ever computed: that of the last token that may be drawn is not."""
    masked: bool = field(init=False)
    """A grammar bounds what it may draw."""
    mask_seconds: float = field(init=False)
    """Of a processor, that the next of its masks may take."""
    identity: bytes = field(init=False)
    """What beside its tokens decides whose blocks it may share: the root of its block keys."""
    given: bytes = field(init=False)
    """Embeddings that stand for its first tokens, for virtual ones once its adapter is there; it needs them
    again after a preemption."""
    arrival: float = field(init=False)
    counted: bool = field(init=False)
    """The metrics know of it."""
    named: AdapterRef | None = field(init=False)
    """Its adapter, of either kind; None: the model alone."""
    adapter: int = NO_PLACE
    """The place of its low-rank adapter in the worker, once that is in memory."""
    granted: int = 0
    committed: int = 0
    quiet_until: int = 0
    """Positions committed from which on a token may be the first, the last or the end of a block."""
    num_steps: int = 0
    """Steps under way that compute some of it."""
    forced: list[int] = field(default_factory=list)
    """Tokens behind those it has about which its grammar leaves no choice."""
    num_drawing: int = 0
    """Of these, the ones that draw tokens."""
    num_cached: int = 0
    """Prompt tokens that the first admission found in the prefix cache."""
    ended: bool = False
    """Nothing more is told of it, whatever steps under way still make of it."""
    slot: int = -1
    tables: list[list[int]] = field(default_factory=list)
    """Pages of each group's blocks; -1 where a page has left the window."""
    capacity: int = 0
    """Positions that these pages reach, in every group."""
    next_trim: int = 0
    """Positions committed at which one of them leaves its window."""
    block_keys: list[bytes] = field(default_factory=list)
    num_registered: int = 0
    """Tokens that the prefix index knows, in whole blocks."""
    num_promised: int = 0
    """Tokens that it will know once the steps under way are collected."""
    num_counted: int = 0
    """Prompt tokens that the metrics know as computed: those that a preemption undid stay counted."""
    num_overtaken: int = 0
    """Steps that admitted others while this one waited for pages."""
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])
    """Of the prompt tokens so far, where asked for; nothing predicts the first."""
    guesses: Guesses | None = None
    """How its drafts fare; None before there are any."""
    work: Work | None = None
    """Of the steps collected so far; None where nobody asks for times."""
    scheduled_time: float = 0.0
    first_token_time: float = 0.0
    num_preemptions: int = 0

    def __post_init__(self, message: AddRequest) -> None:
        self.id, self.params, self.priority = message.request_id, message.params, message.priority
        self.pooling = message.pooling
        self.stop_tokens = frozenset(self.params.stop_token_ids)
        self.named = message.adapter
        self.num_virtual = self.named.num_virtual if self.named else 0
        self.tokens = array("i", [NO_TOKEN] * self.num_virtual + message.prompt_token_ids)
        self.num_prompt = len(self.tokens)
        self.counted = message.counted
        self.num_counted = self.num_virtual if self.counted else self.num_prompt
        self.max_computed = self.num_prompt + self.params.max_tokens - 1
        self.masked = bool(message.grammar) or message.reasoning is not None
        self.mask_seconds = FIRST_MASK_SECONDS if self.masked else 0.0
        identity = f"{self.adapter_number} {message.cache_salt}"
        self.identity = identity.encode("utf-8", "surrogatepass")
        self.given = message.prompt_embeds
        if self.given:  # of one length, behind everything: no other identity ends so by chance
            self.identity += hashlib.sha256(self.given).digest()
        self.arrival = message.arrival_time

    @property
    def adapter_number(self) -> int:
        """What tells its adapter from all others, also of the same name; 0: it has none."""
        return self.named.number if self.named else 0

    def check_given(self, hidden_size: int) -> None:
        """Raises ValueError unless the embeddings that it came with are of its prompt and this model."""
        if not self.given:
            return
        count = self.num_prompt - self.num_virtual
        if len(self.given) != 4 * count * hidden_size:
            raise ValueError(f"{len(self.given)} bytes are not {count} embeddings of {hidden_size}")
        if self.params.num_prompt_logprobs >= 0 or any(token != NO_TOKEN for token in self.tokens):
            raise ValueError("a prompt of embeddings has neither tokens nor their log-probabilities")

    def precede(self, rows: bytes) -> None:
        """Its virtual tokens are these rows, fp32 [num_virtual, hidden]."""
        self.given = rows + self.given

    def take(self, token: int) -> bool:
        """Enter the next token, which the oldest step under way drew, unless more may follow of it."""
        if self.committed >= self.quiet_until or token in self.stop_tokens or self.masked:
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
        """Of the prompt that was sent; nothing is told of virtual tokens, nor of its first one."""
        return self.params.num_prompt_logprobs >= 0 and self.prompt_logprobs_from < self.num_prompt

    @property
    def prompt_logprobs_from(self) -> int:
        """The first position whose log-probability is still to be told."""
        return self.num_virtual + len(self.prompt_logprobs)

    def timing(self, now: float) -> RequestTiming:
        return RequestTiming(
            self.arrival,
            self.scheduled_time,
            self.first_token_time or now,
            now,
            self.num_preemptions,
        )

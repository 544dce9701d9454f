"""What the API and the engine say to each other. Tagged msgspec arrays; `wire.py` frames them.

They travel over a Unix socket, also where the engine is a thread of the API's process.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from slipway.engine.params import PoolingParams, SamplingParams

PROTOCOL_VERSION = 1
NO_TOKEN = -1
"""Stands where an embedding came without its token: no penalty counts it."""

Part = Literal["weights", "kv_cache"]
"""What of a worker can be asleep, by the names that /wake_up knows."""
PARTS: tuple[Part, ...] = ("weights", "kv_cache")


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all messages; the tag is the class name."""


class Hello(Message, frozen=True):
    """First frame of a client. The engine closes the socket where the version is not its own."""

    protocol_version: int
    client_id: int


class ReasoningBounds(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tokens between which a model reasons before it answers."""

    begin: int
    """-1: none; the output begins within the reasoning, or has none."""
    end: int
    inside: bool
    """The output begins within the reasoning."""
    budget: int = -1
    """Tokens after which it is ended; -1: any number."""
    stops: tuple[int, ...] = ()
    """Tokens of the answer that end it, too, such as those that begin a call."""


class AdapterRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An adapter, as requests name it to the engine."""

    number: int
    """Its identity, above 0: what is loaded again under the same name has another."""
    name: str
    folder: str
    num_virtual: int = 0
    """Virtual tokens that a prompt adapter puts before each prompt; 0: it is a low-rank one."""


class AddRequest(Message, frozen=True):
    """Run one prompt. `request_id` is unique among the client's live requests."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int = 0
    """Lower runs first, where the policy is `priority`."""
    cache_salt: str = ""
    """Prefix blocks are shared only among requests of one salt."""
    arrival_time: float = 0.0
    """`time.monotonic()` of the API, the clock of this machine; queue time starts here."""
    grammar: str = ""
    """What bounds its tokens, as the engine's matchers read it; empty: nothing does."""
    adapter: AdapterRef | None = None
    """Computes it with the model, or begins its prompt; read from its folder where it is not in memory. None:
    the model alone."""
    reasoning: ReasoningBounds | None = None
    """Its grammar begins behind that."""
    pooling: PoolingParams | None = None
    """Its answer is made of its prompt's final rows, and no token is drawn; None: it generates."""
    prompt_embeds: bytes = b""
    """What enters the first layer for its prompt, fp32 [len(prompt_token_ids), hidden]; the token ids are all
    NO_TOKEN then. Empty: the model embeds the tokens."""
    counted: bool = True
    """The metrics know of it; else it asks whether steps are computed, and is nobody's."""


class AbortRequests(Message, frozen=True):
    """The client wants nothing more of these requests; unknown ids are ignored."""

    request_ids: list[str]


class Call(Message, frozen=True):
    """An administrative question: `reset_prefix_cache` with numbers of adapters, or none for all prefixes,
    `check`, `start_profile`, `stop_profile`, `sleep` with a level, `wake_up` with parts.

    Answered by one Reply of that id.
    """

    call_id: int
    method: str
    arguments: list[str] = []


class LoadAdapter(Message, frozen=True):
    """Read an adapter before a request asks for it. Answered by one Reply: "ok", or what is wrong with it."""

    call_id: int
    adapter: AdapterRef


class UnloadAdapter(Message, frozen=True):
    """No request will name this adapter again; those that run with it go on to their end. Answered "ok"."""

    call_id: int
    number: int


class Memory(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a model takes of the memory that it is given, in bytes: estimated before its weights are read.

    Where processors compute it is the host's memory; else that of the first rank's device.
    """

    capacity: int
    estimated: int
    """In full: with every page and the largest step in use."""
    at_rest: int
    """Of a host, before the first request; of a device all is taken ahead, so that it is `estimated`."""
    kv_tokens: int
    """Tokens that the pages hold."""
    max_model_len: int
    """The largest `--max-model-len` that fits; 0: none does."""
    short: str = ""
    """Which part is too large, as `fit.short.Part` names them; empty where the model fits."""
    taken: int = 0
    """Of a device, when the engine began to serve, by whoever uses it; 0 on hosts, and before."""


class Loading(Message, frozen=True):
    """Progress before the engine serves. `phase` is download, load or warmup; units are bytes or steps."""

    phase: str
    done: int
    total: int
    memory: Memory | None = None
    """None: not known yet, or not at all."""


class Pools(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an engine answers that pools."""

    task: str
    """`embed`, `classify` or `reward`."""
    dimensions: int
    """Numbers of a vector, or scores."""
    by_token: bool = False
    """There is a vector for each token, or some of them, and not one for all."""
    labels: list[str] = []
    """Of scores, in their order."""
    cuts: list[int] | None = None
    """Dimensions that may be asked for; empty: any number. None: the model was not trained for fewer."""


class Ready(Message, frozen=True):
    """The engine serves. What only the model could tell.

    Said again when it falls asleep or wakes.
    """

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    dtype: str
    architecture: str
    startup_seconds: dict[str, float]
    """Seconds per phase, in order."""
    warnings: list[str] = []
    """What the model made the engine decide otherwise than asked, in sentences."""
    asleep: tuple[Part, ...] = ()
    """What has given its memory back; requests are refused while anything has."""
    pools: Pools | None = None
    """None: it generates."""
    hidden_size: int = 0
    """Numbers in the embedding of a token, where prompts may be embeddings; 0 where they may not."""
    max_stretched_len: int = 0
    """Of requests whose adapters stretch the context: at least `max_model_len`."""
    memory: Memory | None = None
    """None: nobody knows how much such a model needs."""


class Failed(Message, frozen=True):
    """The engine cannot go on. `slipway.exits` knows the codes."""

    code: int
    reason: str
    message: str
    hint: str = ""
    argument: str = ""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities at one position, of the model itself: before temperature and penalties."""

    logprob: float
    """Of the token that stands there."""
    rank: int
    """1 for the most likely token."""
    top: list[tuple[int, float]]
    """The most likely tokens, best first."""


class Work(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Seconds of all steps so far that one request took part in."""

    scheduling: float
    forward: float
    """Of the model alone; on CPU the draw is part of it."""
    execution: float
    """From the launch of a step, or the end of the one before where that is later, to its tokens."""

    def __add__(self, other: Work) -> Work:
        return Work(
            self.scheduling + other.scheduling,
            self.forward + other.forward,
            self.execution + other.execution,
        )


class Pooled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a request's rows were pooled to."""

    values: bytes
    """[rows, columns]  little-endian fp32"""
    columns: int


class Delta(msgspec.Struct, array_like=True, gc=False):
    """News of one request after a step."""

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None
    """`stop`, `length`, `abort` or `error`; None while it goes on."""
    stop_token_id: int | None = None
    """The token that stopped it, which is the last of `token_ids`."""
    logprobs: list[TokenLogprobs] | None = None
    """One for each of `token_ids`, where asked for."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """With the Delta that ends the prompt: one for each prompt token, None for the first. Virtual tokens are
    none of them."""
    num_cached_tokens: int = 0
    """Prompt tokens that a prefix hit spared, virtual ones not counted; set in the first Delta."""
    error: str = ""
    """What failed, where `finish_reason` is `error`."""
    unfit: bool = False
    """The fault is the request's own."""
    timing: RequestTiming | None = None
    """With the first Delta and the last: where a stop string ends a request, the API has but the first."""
    work: Work | None = None
    """With each Delta, where the engine was told to time its steps."""
    pooled: Pooled | None = None
    """The answer of a request that pools, with its only Delta."""


class RequestTiming(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Seconds on `time.monotonic()`, for the histograms."""

    arrival: float
    scheduled: float
    first_token: float
    last_token: float
    num_preemptions: int


class Speculated(msgspec.Struct, array_like=True, gc=False):
    """What became of proposed drafts. Those that a grammar forces are not among them."""

    drafts: int = 0
    """Times that a request's drafts were verified."""
    proposed: int = 0
    """Tokens of these drafts."""
    accepted: int = 0
    emitted: int = 0
    """Tokens that came of it: the accepted ones, and each time the one behind them."""

    def add(self, proposed: int, accepted: int, emitted: int, drafts: int = 1) -> None:
        self.drafts += drafts
        self.proposed += proposed
        self.accepted += accepted
        self.emitted += emitted


class Stats(msgspec.Struct, array_like=True, gc=False):
    """State of the core after a step; what is counted goes to one client alone, since the last Stats."""

    num_running: int
    num_waiting: int
    cache_usage: float
    """Pages in use over pages, 0 to 1."""
    step: int
    """Steps since start: the heartbeat."""
    num_step_tokens: list[int] = []
    """Tokens computed by each step since the last Stats."""
    step_seconds: list[float] = []
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    preemptions: int = 0
    num_swapped: int = 0
    """Preempted requests whose pages host memory keeps."""
    swap_usage: float = 0.0
    """Pages of the swap space in use over pages, 0 to 1."""
    num_deferred: int = 0
    """Waiting requests that something under way holds up; the others wait for slots, tokens or pages."""
    prompt_tokens: int = 0
    """Prompt tokens that are computed now, or were found in the prefix cache, and were not before."""
    generation_tokens: int = 0
    speculated: Speculated | None = None
    """None where no draft was verified."""
    running_adapters: list[str] = []
    """Names of the adapters of running requests, sorted."""
    waiting_adapters: list[str] = []


class StepDone(Message, frozen=True):
    """One frame per step and client; empty of deltas it is a heartbeat."""

    deltas: list[Delta]
    stats: Stats


class Reply(Message, frozen=True):
    call_id: int
    result: str


FromClient = Hello | AddRequest | AbortRequests | Call | LoadAdapter | UnloadAdapter
FromEngine = Loading | Ready | Failed | StepDone | Reply

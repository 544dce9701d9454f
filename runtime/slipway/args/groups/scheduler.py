"""Arguments of the scheduler."""

from __future__ import annotations

from slipway.args.declare import Disposition, HumanInt, arg, group
from slipway.args.groups.features import MULTIMODAL


@group("SchedulerConfig")
class Scheduler:
    """What runs in a step."""

    cuda_graph_sizes: list[int] = arg(
        [512],
        synonyms=("cudagraph_capture_sizes", "max_cudagraph_capture_size"),
        minimum=1,
        maximum=65536,
        cuda_only=True,
    )
    """Batch sizes for which CUDA graphs are captured.

    One value n stands for 1, 2, 4, then 8, 16, 24 and so on up to n; several are taken as they are.
    """

    disable_chunked_mm_input: bool = arg(False, negatable=True, unbuilt=MULTIMODAL)
    """Never split an image over two steps."""

    disable_hybrid_kv_cache_manager: bool = arg(False, negatable=True)
    """Keep as many tokens for sliding-window layers as for the others; they see no more of them.

    Then all layers of one shape share one block table, and pages that have left a window stay until the
    request ends, so that fewer requests fit.
    """

    enable_chunked_prefill: bool = arg(True, negatable=True, tri_state=True, optional_value=True)
    """Compute a long prompt in several steps, as much as each has room for.

    Off, a prompt waits for a step that takes the whole of it.
    """

    long_prefill_token_threshold: int = arg(0, minimum=0, unit="tokens")
    """Most tokens of a prompt in a step; the step goes on to other requests. Longer prompts count as long.

    0 is no bound, but 4 % of the context length with --max-num-partial-prefills above 1.
    """

    max_long_partial_prefills: int = arg(1, minimum=1)
    """Long prompts that may be partly computed at once; below --max-num-partial-prefills, short ones
    overtake them."""

    max_num_batched_tokens: HumanInt = arg(2048, minimum=1, unit="tokens")
    """Most tokens of a step. More gives throughput, fewer let running requests wait less.

    If not given, it is 8192 on a device with 70 GiB or more, with at most 2048 tokens of prompts in a step
    while other requests wait for their next token. On CPU it is 256: products reach their full rate there.
    With chunked prefill off, what is not given is at least the longest prompt and one token of every other
    request, and what is given and smaller than the longest prompt is refused.
    """

    max_num_partial_prefills: int = arg(1, minimum=1)
    """Prompts that may be partly computed at once. 1 bounds nothing: a step has as many as fit."""

    max_num_seqs: int = arg(1024, minimum=1)
    """Most requests of a step."""

    multi_step_stream_outputs: bool = arg(
        True,
        negatable=True,
        optional_value=True,
        disposition=Disposition.WARN,
        reason="every step streams its tokens",
    )
    """Old switch to stream after each of several steps."""

    num_lookahead_slots: int = arg(
        0,
        minimum=0,
        disposition=Disposition.WARN,
        reason="it follows from --speculative-config",
    )
    """Old number of tokens for which speculation reserves room."""

    num_scheduler_steps: int = arg(
        1,
        minimum=1,
        disposition=Disposition.WARN,
        reason="every step is scheduled on its own; on CUDA they overlap without it",
    )
    """Old number of steps for each decision of the scheduler."""

    preemption_mode: str | None = arg(
        "recompute", choices=("recompute", "swap"), words={"none": None}, cuda_only=True
    )
    """What becomes of a request whose blocks are needed: computed again later, or kept in host memory."""

    scheduler_cls: str | None = arg(
        security_sensitive=True,
        refused={"*": "Slipway has one scheduler. Leave the argument out."},
        words={"vllm.core.scheduler.scheduler": "vllm.core.scheduler.Scheduler"},
    )
    """Class of the scheduler: only the documented name of the built-in one is accepted."""

    scheduler_delay_factor: float = arg(0.0, minimum=0)
    """Wait this many times the last prompt's latency before the next prompt starts."""

    scheduling_policy: str = arg("fcfs", choices=("fcfs", "priority"))
    """Order of waiting requests: of arrival, or by priority (lower first) and then arrival."""

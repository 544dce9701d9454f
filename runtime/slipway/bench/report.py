"""A measured server as a table to read and as a JSON result, both laid out as vLLM's are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipway.bench.measure import Outcome, percentile_name
from slipway.bench.printable import printable

WIDTH = 50
TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
ROWS = (
    ("completed", "Successful requests:"),
    ("failed", "Failed requests:"),
    ("max_concurrency", "Maximum request concurrency:"),
    ("request_rate", "Request rate configured (RPS):"),
    ("duration", "Benchmark duration (s):"),
    ("total_input_tokens", "Total input tokens:"),
    ("total_output_tokens", "Total generated tokens:"),
    ("request_throughput", "Request throughput (req/s):"),
    ("request_goodput", "Request goodput (req/s):"),
    ("output_throughput", "Output token throughput (tok/s):"),
    ("max_output_tokens_per_s", "Peak output token throughput (tok/s):"),
    ("max_concurrent_requests", "Peak concurrent requests:"),
    ("total_token_throughput", "Total token throughput (tok/s):"),
)
"""Key of the result → how the table names it. What was not asked for has no row."""


def table(result: Mapping[str, Any], metrics: Sequence[str], shares: Sequence[float]) -> str:
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}"]
    lines += [_row(name, result[key]) for key, name in ROWS if result[key] not in (None, "inf")]
    for metric in metrics:
        lines.append(f"{TITLES[metric]:-^{WIDTH}}")
        for name in ("mean", "median", *map(percentile_name, shares)):
            value = result[f"{name}_{metric}_ms"]
            lines.append(_row(f"{name.capitalize()} {metric.upper()} (ms):", value))
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def _row(name: str, value: float | None) -> str:
    shown = "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{name:<40} {shown:<10}".rstrip()


def remarks(outcomes: Sequence[Outcome]) -> list[str]:
    """What a reader of the figures must know, in sentences."""
    failed = [one for one in outcomes if not one.succeeded]
    uncounted = sum(not one.counted for one in outcomes)
    said = []
    if failed:
        first = printable(failed[0].error)
        said.append(f"{len(failed)} of {len(outcomes)} requests failed. The first: {first}")
    if uncounted:
        said.append(
            f"The server told no usage of {uncounted} requests: each chunk of an answer is counted as one "
            "output token, and a prompt of text as none."
        )
    return said


def detailed(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    """What each request met, in the order in which they ended; seconds."""
    return {
        "input_lens": [one.input_tokens for one in outcomes],
        "output_lens": [one.output_tokens for one in outcomes],
        "ttfts": [one.ttft or 0.0 for one in outcomes],
        "itls": [one.gaps for one in outcomes],
        "start_times": [one.started for one in outcomes],
        "generated_texts": ["".join(one.text) for one in outcomes],
        "errors": [one.error for one in outcomes],
    }


def file_name(result: Mapping[str, Any]) -> str:
    """`openai-infqps-concurrency8-Llama-3.2-1B-20260131-120000.json`"""
    at_once = result["max_concurrency"]
    parts = [
        result["label"],
        f"{result['request_rate']}qps",
        *([] if at_once is None else [f"concurrency{at_once}"]),
        printable(result["model_id"]).rstrip("/").rpartition("/")[2],
        result["date"],
    ]
    return "-".join(parts) + ".json"

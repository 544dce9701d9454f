"""The Grafana dashboard, made from the declared metrics: every one that is implemented has its panel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slipway.metrics.promql import DECLARED, mean, quantile, rate, series

WINDOW = "$__rate_interval"
"""Grafana's: at least four scrape intervals."""
OF_NAMESPACE = 'namespace=~"$namespace"'
PICKED = f'{OF_NAMESPACE}, model_name=~"$model"'
UNITS = {
    "seconds": "s",
    "ratio": "percentunit",
    "milliseconds": "ms",
    "Unix time": "dateTimeAsIso",
    "bytes": "bytes",
}
"""Declared unit → Grafana's; a count of anything else is `short`."""
SHARES = (0.5, 0.9, 0.99)
PANELS_IN_A_LINE = 3
WIDTH, HEIGHT = 24 // PANELS_IN_A_LINE, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: queries by the legend of their lines."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str
    about: str


def _state(title: str, *names: str, by: str = "pod") -> Panel:
    """The values of gauges, one line per pod."""
    queries = tuple((_legend(name, names, by), series(name, PICKED)) for name in names)
    return Panel(title, queries, _unit(names[0]), _about(names))


def _info(title: str, name: str, legend: str, matchers: str = PICKED) -> Panel:
    """What the labels of an information say, for each pod."""
    return Panel(title, ((f"{{{{pod}}}}: {legend}", series(name, matchers)),), _unit(name), _about((name,)))


def _rates(title: str, *names: str, by: str = "model_name", matchers: str = PICKED) -> Panel:
    """Counters per second, summed over pods."""
    queries = tuple(
        (_legend(name, names, by), f"sum by ({by}) ({rate(name, WINDOW, matchers)})") for name in names
    )
    return Panel(title, queries, "cps", f"{_about(names)} Per second.")


def _spread(title: str, name: str, matchers: str = PICKED) -> Panel:
    """Quantiles and mean of a histogram, over all pods that are picked."""
    quantiles = ((f"p{share * 100:g}", quantile(share, name, WINDOW, "", matchers)) for share in SHARES)
    queries = (*quantiles, ("mean", mean(name, WINDOW, "", matchers)))
    return Panel(title, queries, _unit(name), _about((name,)))


def _ratio(title: str, part: str, whole: str) -> Panel:
    part_of, all_of = (f"sum by (model_name) ({rate(name, WINDOW, PICKED)})" for name in (part, whole))
    return Panel(title, (("{{model_name}}", f"{part_of} / {all_of}"),), "percentunit", _about((part, whole)))


def _legend(name: str, names: tuple[str, ...], by: str) -> str:
    label = f"{{{{{by}}}}}"
    return label if len(names) == 1 else f"{_short(name)} {label}"


def _short(name: str) -> str:
    return name.partition(":")[2].removesuffix("_total").replace("_", " ")


def _unit(name: str) -> str:
    return UNITS.get(DECLARED[name].unit, "short")


def _about(names: tuple[str, ...]) -> str:
    return " ".join(DECLARED[name].summary for name in names)


def _of_operator(title: str, name: str, legend: str) -> Panel:
    return Panel(title, ((legend, series(name)),), _unit(name), _about((name,)))


ROWS: dict[str, tuple[Panel, ...]] = {
    "Load": (
        _state("Requests", "vllm:num_requests_running", "vllm:num_requests_waiting"),
        _state("Why requests wait", "vllm:num_requests_waiting_by_reason", by="reason"),
        _rates("Ended requests", "vllm:request_success_total", by="finished_reason"),
        _rates("Failed requests", "slipway_request_failures_total"),
        _rates("Tokens", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
        _state("KV cache in use", "vllm:gpu_cache_usage_perc"),
        _rates("Preemptions", "vllm:num_preemptions_total"),
        _ratio(
            "Prefix cache hits", "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"
        ),
    ),
    "Waiting time of users": (
        _spread("Time to first token", "vllm:time_to_first_token_seconds"),
        _spread("Time between tokens", "vllm:time_per_output_token_seconds"),
        _spread("Mean time between tokens of an answer", "vllm:request_time_per_output_token_seconds"),
        _spread("Time of a request", "vllm:e2e_request_latency_seconds"),
        _spread("Time in the queue", "vllm:request_queue_time_seconds"),
        _spread("Time in prefill", "vllm:request_prefill_time_seconds"),
        _spread("Time in decode", "vllm:request_decode_time_seconds"),
        _spread("Time in steps", "vllm:request_inference_time_seconds"),
    ),
    "What is asked for": (
        _spread("Prompt tokens", "vllm:request_prompt_tokens"),
        _spread("Prompt tokens not in the prefix cache", "vllm:request_prefill_kv_computed_tokens"),
        _spread("Generated tokens", "vllm:request_generation_tokens"),
        _spread("Most tokens an answer could get", "vllm:request_max_num_generation_tokens"),
        _spread("max_tokens", "vllm:request_params_max_tokens"),
        _spread("n", "vllm:request_params_n"),
    ),
    "Engine": (
        _spread("Time of a step", "slipway_step_seconds"),
        _spread("Tokens of a step", "vllm:iteration_tokens_total"),
        _state("Time of the last start", "slipway_startup_seconds", by="phase"),
        _state("Memory by the estimate", "slipway_memory_estimated_bytes", by="when"),
        _state("Memory taken at the start", "slipway_memory_measured_bytes"),
        _info("KV cache", "vllm:cache_config_info", "{{num_gpu_blocks}} blocks of {{block_size}} tokens"),
        _info(
            "LoRA adapters of requests",
            "vllm:lora_requests_info",
            "running {{running_lora_adapters}}, waiting {{waiting_lora_adapters}}",
            OF_NAMESPACE,
        ),
        _rates(
            "Drafts",
            "vllm:spec_decode_num_draft_tokens_total",
            "vllm:spec_decode_num_accepted_tokens_total",
            "vllm:spec_decode_num_emitted_tokens_total",
        ),
        _state(
            "Drafts since the start",
            "vllm:spec_decode_draft_acceptance_rate",
            "vllm:spec_decode_efficiency",
        ),
    ),
    "Operator": (
        _of_operator("InferenceServices", "slipway_operator_resources", "{{pod}}"),
        _of_operator(
            "Not ready", "slipway_operator_unready", "{{resource_namespace}}/{{resource}}: {{reason}}"
        ),
        _of_operator("Holder of the Lease", "slipway_operator_active", "{{pod}}"),
        _of_operator("Children", "slipway_operator_children", "{{kind}}"),
        _rates("Reconciliations", "slipway_operator_reconciles_total", by="outcome", matchers=""),
        _spread("Time of a reconciliation", "slipway_operator_reconcile_seconds", matchers=""),
        _of_operator("Queue", "slipway_operator_queue_depth", "{{pod}}"),
        _of_operator("Oldest in the queue", "slipway_operator_queue_oldest_seconds", "{{pod}}"),
        _of_operator("Silence of a watch", "slipway_operator_watch_silence_seconds", "{{pod}}"),
        _rates("Calls of the API server", "slipway_operator_api_calls_total", by="status", matchers=""),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it; its data source is chosen at the top of the page."""
    return {
        "uid": "slipway",
        "title": "Slipway",
        "tags": ["slipway"],
        "editable": True,
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_placed()),
    }


def dashboard_file() -> str:
    """The file helm/slipway/files/dashboard.json."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


def queries() -> list[str]:
    """Every query of the panels, with Grafana's variables."""
    return [query for panels in ROWS.values() for panel in panels for _, query in panel.queries]


def _variables() -> Iterator[dict[str, Any]]:
    running = series("vllm:num_requests_running")
    picked = series("vllm:num_requests_running", OF_NAMESPACE)
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    yield _variable("namespace", "Namespace", f"label_values({running}, namespace)")
    yield _variable("model", "Model", f"label_values({picked}, model_name)")


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # Matches series without the label too, such as those of a server outside a cluster.
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _placed() -> Iterator[dict[str, Any]]:
    """Rows one below the other, their panels from left to right."""
    number = top = 0
    for title, panels in ROWS.items():
        number += 1
        grid = {"x": 0, "y": top, "w": 24, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": grid, "panels": []}
        top += 1
        for index, panel in enumerate(panels):
            line, column = divmod(index, PANELS_IN_A_LINE)
            grid = {"x": column * WIDTH, "y": top + line * HEIGHT, "w": WIDTH, "h": HEIGHT}
            yield _graph(panel, number + index + 1, grid)
        number += len(panels)
        top += -(-len(panels) // PANELS_IN_A_LINE) * HEIGHT


def _graph(panel: Panel, number: int, grid: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": query, "legendFormat": legend}
        for index, (legend, query) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": grid,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": targets,
    }

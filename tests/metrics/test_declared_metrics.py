"""The declared metrics, and what the server exposes of them, as Prometheus parses it."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from slipway.engine.messages import RequestTiming, Speculated, Stats
from slipway.metrics import METRICS, one_two_five, parse_version
from slipway.metrics.declared import CACHE_LABELS
from slipway.metrics.manual import manual
from slipway.metrics.registry import ServerMetrics

MANUAL = Path(__file__).parents[2] / "docs/reference/metrics.md"
HIDDEN = {metric.name for metric in METRICS if metric.deprecated_in}


def families(server: ServerMetrics) -> dict[str, Family]:
    return {f.name: f for f in text_string_to_metric_families(server.exposition().decode())}


def value(server: ServerMetrics, name: str, **labels: str) -> float:
    wanted = {"model_name": "demo", "engine": "0", **labels}
    (found,) = [
        sample.value
        for family in families(server).values()
        for sample in family.samples
        if sample.name == name and sample.labels == wanted
    ]
    return found


@pytest.fixture
def server() -> ServerMetrics:
    return ServerMetrics("demo", 2048, None)


@pytest.fixture
def revealing() -> ServerMetrics:
    return ServerMetrics("demo", 2048, "0.8")


def test_every_documented_metric_is_declared_once():
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert sum(not metric.own for metric in METRICS) == 43
    assert len(HIDDEN) == 7


def test_exposed_types_and_names_are_the_declared_ones(revealing):
    exposed = families(revealing)
    for metric in METRICS:
        # The parser takes `_total` off a counter's family, and only off a counter's.
        name = metric.name.removesuffix("_total") if metric.type == "counter" else metric.name
        assert exposed[name].type == metric.type, metric.name
        assert exposed[name].documentation == metric.summary
    assert len(exposed) == len(METRICS)


def test_no_series_of_creation_times_and_no_doubled_total(revealing):
    text = revealing.exposition().decode()
    assert "_created" not in text
    assert "_total_total" not in text


def test_histograms_have_the_declared_buckets_and_end_in_infinity(revealing):
    exposed = families(revealing)
    for metric in METRICS:
        if metric.type != "histogram":
            continue
        bounds = [
            float(sample.labels["le"])
            for sample in exposed[metric.name].samples
            if sample.name.endswith("_bucket")
        ]
        assert bounds == [*metric.buckets_for(2048), math.inf], metric.name


def test_the_histogram_that_ends_in_total_keeps_its_name(server):
    server.of[0].record_step(Stats(1, 0, 0.1, 1, num_step_tokens=[7, 9]))
    assert value(server, "vllm:iteration_tokens_total_sum") == 16
    assert value(server, "vllm:iteration_tokens_total_count") == 2
    assert value(server, "vllm:iteration_tokens_total_bucket", le="8.0") == 1


@pytest.mark.parametrize(
    ("largest", "series"),
    [
        (1, [1]),
        (2, [1, 2]),
        (99, [1, 2, 5, 10, 20, 50]),
        (100, [1, 2, 5, 10, 20, 50, 100]),
        (2048, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]),
        (0, [1]),
    ],
)
def test_token_buckets_are_the_1_2_5_series_up_to_the_longest_request(largest, series):
    assert list(one_two_five(largest)) == series


def test_deprecated_metrics_are_hidden(server):
    assert not HIDDEN & set(families(server))


@pytest.mark.parametrize("version", ["0.8", "0.9", "0.8.5"])
def test_deprecated_metrics_show_for_the_release_that_deprecated_or_hid_them(version):
    assert set(families(ServerMetrics("demo", 64, version))) >= HIDDEN


@pytest.mark.parametrize("version", ["0.7", "0.10", "1.0"])
def test_another_release_reveals_nothing(version):
    assert not HIDDEN & set(families(ServerMetrics("demo", 64, version)))


@pytest.mark.parametrize("text", ["8", "new", "0.8-rc1", ""])
def test_what_is_no_version_is_refused(text):
    with pytest.raises(ValueError, match="is not a version"):
        parse_version(text)


def test_rates_of_drafts_have_a_series_from_the_first_draft_on(server):
    rates = ("vllm:spec_decode_draft_acceptance_rate", "vllm:spec_decode_efficiency")
    server.of[0].record_step(Stats(1, 0, 0.0, 1))
    for name in rates:
        assert not families(server)[name].samples
    assert value(server, "vllm:spec_decode_num_draft_tokens_total") == 0
    server.of[0].record_step(Stats(1, 0, 0.0, 2, speculated=Speculated(1, 4, 4, 5)))
    server.of[0].record_step(Stats(1, 0, 0.0, 3, speculated=Speculated(1, 4, 0, 1)))
    assert value(server, "vllm:spec_decode_num_draft_tokens_total") == 8
    assert value(server, "vllm:spec_decode_num_accepted_tokens_total") == 4
    assert value(server, "vllm:spec_decode_num_emitted_tokens_total") == 6
    assert [value(server, name) for name in rates] == [4 / 8, 6 / 10]


def test_a_step_sets_the_state_and_adds_its_counts(server):
    stats = Stats(3, 5, 0.25, 9, [4], [0.01], prefix_queries=10, prefix_hits=4, preemptions=2, num_deferred=2)
    server.of[0].record_step(stats)
    server.of[0].record_step(stats)
    assert value(server, "vllm:num_requests_running") == 3
    assert value(server, "vllm:num_requests_waiting") == 5
    assert value(server, "vllm:num_requests_waiting_by_reason", reason="deferred") == 2
    assert value(server, "vllm:num_requests_waiting_by_reason", reason="capacity") == 3
    assert value(server, "vllm:gpu_cache_usage_perc") == 0.25
    assert value(server, "vllm:gpu_prefix_cache_queries_total") == 20
    assert value(server, "vllm:gpu_prefix_cache_hits_total") == 8
    assert value(server, "vllm:num_preemptions_total") == 4
    assert value(server, "slipway_step_seconds_count") == 2


def test_tokens_are_counted_with_the_step_that_computed_them(server):
    for _ in range(2):
        server.of[0].record_step(Stats(1, 0, 0.1, 1, prompt_tokens=7, generation_tokens=2))
    assert value(server, "vllm:prompt_tokens_total") == 14
    assert value(server, "vllm:generation_tokens_total") == 4


def test_what_has_two_names_shows_the_same_under_both(server):
    server.of[0].record_step(Stats(1, 0, 0.25, 1, prefix_queries=10, prefix_hits=4))
    server.of[0].record_inter_token(0.2)
    twins = {metric for metric in METRICS if metric.same_as}
    assert len(twins) == 4
    exposed = families(server)
    for twin in twins:
        one, other = (
            [
                (sample.name.removeprefix(name), sample.labels, sample.value)
                for sample in exposed[name].samples
            ]
            for name in (twin.name, twin.same_as)
        )
        assert one == other
        assert any(number for _, _, number in one)


def test_the_set_up_of_the_cache_is_told_in_labels(server):
    settings = dict.fromkeys(CACHE_LABELS, None) | {"block_size": 16, "enable_prefix_caching": True}
    server.of[0].record_cache(settings)
    told = dict.fromkeys(CACHE_LABELS, "None") | {"block_size": "16", "enable_prefix_caching": "True"}
    assert value(server, "vllm:cache_config_info", **told) == 1


def test_n_is_a_fact_of_the_request_and_not_of_each_answer(server):
    server.of[0].record_request(3)
    for _ in range(3):
        server.of[0].record_finished(None, 5, 0, 1, 16, "stop")
    assert value(server, "vllm:request_params_n_sum") == 3
    assert value(server, "vllm:request_params_n_count") == 1


def test_the_older_forms_hold_the_same_facts(revealing):
    revealing.of[0].record_step(Stats(0, 0, 0.0, 1, [4], [0.25], prefix_queries=10, prefix_hits=4))
    revealing.of[0].record_finished(RequestTiming(1.0, 3.0, 4.0, 8.0, 0), 1, 0, 1, 1, "stop")
    assert value(revealing, "vllm:gpu_prefix_cache_hit_rate") == 0.4
    assert value(revealing, "vllm:model_forward_time_milliseconds_sum") == 250
    assert value(revealing, "vllm:model_execute_time_milliseconds_sum") == 250
    assert value(revealing, "vllm:time_in_queue_requests_sum") == 2


def test_what_waits_in_host_memory_is_shown(revealing):
    revealing.of[0].record_step(Stats(1, 2, 0.9, 4, num_swapped=2, swap_usage=0.5))
    assert value(revealing, "vllm:num_requests_swapped") == 2
    assert value(revealing, "vllm:cpu_cache_usage_perc") == 0.5


def test_a_finished_request_fills_its_histograms(server):
    server.of[0].record_finished(RequestTiming(1.0, 3.0, 4.0, 8.0, 0), 100, 48, 21, 64, "length")
    sums = {
        "vllm:e2e_request_latency_seconds": 7,
        "vllm:request_queue_time_seconds": 2,
        "vllm:request_inference_time_seconds": 5,
        "vllm:request_prefill_time_seconds": 1,
        "vllm:request_decode_time_seconds": 4,
        "vllm:request_prompt_tokens": 100,
        "vllm:request_prefill_kv_computed_tokens": 52,
        "vllm:request_generation_tokens": 21,
        "vllm:request_time_per_output_token_seconds": 0.2,
        "vllm:request_max_num_generation_tokens": 64,
        "vllm:request_params_max_tokens": 64,
    }
    for name, expected in sums.items():
        assert value(server, f"{name}_sum") == expected, name
        assert value(server, f"{name}_count") == 1, name
    assert value(server, "vllm:request_success_total", finished_reason="length") == 1
    assert value(server, "vllm:request_success_total", finished_reason="stop") == 0


def test_an_error_counts_as_a_failure_and_not_as_a_success(server):
    server.of[0].record_finished(None, 5, 0, 0, 16, "error")
    assert value(server, "slipway_request_failures_total") == 1
    for reason in ("stop", "length", "abort"):
        assert value(server, "vllm:request_success_total", finished_reason=reason) == 0
    assert value(server, "vllm:e2e_request_latency_seconds_count") == 0


def test_a_request_aborted_while_it_waited_has_no_running_time(server):
    server.of[0].record_finished(RequestTiming(5.0, 0.0, 0.0, 0.0, 0), 5, 0, 0, 16, "abort")
    assert value(server, "vllm:request_inference_time_seconds_count") == 0
    assert value(server, "vllm:request_success_total", finished_reason="abort") == 1


def test_tokens_and_start_up_are_timed(server):
    server.of[0].record_first_token(0.03)
    server.of[0].record_inter_token(0.2)
    server.of[0].record_startup({"load": 1.5, "warmup": 0.5})
    assert value(server, "vllm:time_to_first_token_seconds_bucket", le="0.04") == 1
    assert value(server, "vllm:time_per_output_token_seconds_sum") == 0.2
    assert value(server, "slipway_startup_seconds", phase="load") == 1.5


def adapter_series(server: ServerMetrics) -> dict[tuple[str, str, str], float]:
    (family,) = [one for one in families(server).values() if one.name == "vllm:lora_requests_info"]
    labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
    return {tuple(s.labels[name] for name in labels): s.value for s in family.samples}  # type: ignore[misc]


def test_adapters_of_requests_are_one_series_that_tells_when_it_changed(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("slipway.metrics.adapters.time.time", lambda: now[0])
    server = ServerMetrics("demo", 16, max_loras=2)
    assert adapter_series(server) == {("2", "", ""): 100}
    for now[0] in (101.0, 102.0):
        server.of[0].record_step(Stats(0, 0, 0.0, 1, running_adapters=["a", "b"], waiting_adapters=["c"]))
        assert adapter_series(server) == {("2", "a,b", "c"): 101}
    server.of[0].record_step(Stats(0, 0, 0.0, 1))
    assert adapter_series(server) == {("2", "", ""): 102}


def test_adapters_of_all_engines_are_one_series():
    server = ServerMetrics("demo", 16, max_loras=2, ranks=[0, 1])
    server.of[0].record_step(Stats(0, 0, 0.0, 1, running_adapters=["a", "c"]))
    server.of[1].record_step(Stats(0, 0, 0.0, 1, running_adapters=["a", "b"], waiting_adapters=["d"]))
    assert set(adapter_series(server)) == {("2", "a,b,c", "d")}


def test_each_engine_has_series_of_its_own():
    server = ServerMetrics("demo", 2048, ranks=[2, 3])
    server.of[2].record_step(Stats(3, 0, 0.5, 1, prompt_tokens=5))
    server.of[3].record_step(Stats(4, 0, 0.25, 1, prompt_tokens=7))
    server.of[3].record_finished(None, 5, 0, 1, 16, "stop")
    for engine, running, prompts, ended in (("2", 3, 5, 0), ("3", 4, 7, 1)):
        assert value(server, "vllm:num_requests_running", engine=engine) == running
        assert value(server, "vllm:prompt_tokens_total", engine=engine) == prompts
        assert value(server, "vllm:request_success_total", engine=engine, finished_reason="stop") == ended
        assert value(server, "vllm:request_prompt_tokens_count", engine=engine) == ended


def test_a_server_without_adapters_has_no_series_of_them(server):
    server.of[0].record_step(Stats(0, 0, 0.0, 1))
    assert adapter_series(server) == {}


def test_every_metric_is_counted():
    assert [m.name for m in METRICS if m.status == "not built yet" and not m.deprecated_in] == []


def test_two_servers_in_one_process_do_not_share_counts(server):
    ServerMetrics("demo", 16).of[0].record_step(Stats(0, 0, 0.0, 1, prompt_tokens=5))
    assert value(server, "vllm:prompt_tokens_total") == 0


def in_process_of_its_own(folder: Path, index: int, code: str) -> subprocess.CompletedProcess[bytes]:
    """Runs it with a `server` whose metrics are shared: the sharing lasts as long as the process."""
    head = f"""
import os, signal
from slipway.engine.messages import Speculated, Stats
from slipway.metrics.registry import ServerMetrics, share
share({str(folder)!r}, {index})
server = ServerMetrics("demo", 2048, "0.8", {str(folder)!r})
"""
    return subprocess.run([sys.executable, "-c", head + code], stdout=subprocess.PIPE)


def test_what_processes_count_is_summed_and_outlives_them(tmp_path: Path, revealing: ServerMetrics):
    told = "server.of[0].record_finished(None, 5, 0, 7, 9, 'stop'); server.of[0].record_first_token(0.3)\n"
    told += "server.of[0].record_step(Stats(3, 0, 0.5, 1, prompt_tokens=5, generation_tokens=7))\n"
    states = "server.of[0].record_step(Stats({}, 0, 0.5, 1)); server.enter()\n"
    in_process_of_its_own(tmp_path, 0, told + states.format(4) + "os.kill(os.getpid(), signal.SIGKILL)")
    in_process_of_its_own(tmp_path, 0, told + states.format(2))  # in the place of the one that was killed
    printed = in_process_of_its_own(tmp_path, 1, told + "print(server.exposition().decode())").stdout
    summed = {family.name: family for family in text_string_to_metric_families(printed.decode())}
    samples = {s.name: s.value for family in summed.values() for s in family.samples if "le" not in s.labels}
    assert samples["vllm:prompt_tokens_total"] == 15
    assert samples["vllm:generation_tokens_total"] == 21
    assert samples["vllm:time_to_first_token_seconds_count"] == 3
    assert samples["vllm:num_requests_running"] == 3
    alone = families(revealing)
    assert list(summed) == list(alone)
    for name, family in alone.items():
        assert {tuple(s.labels) for s in family.samples} <= {tuple(s.labels) for s in summed[name].samples}
        assert (summed[name].type, summed[name].documentation) == (family.type, family.documentation)


def test_the_manual_is_fresh():
    assert MANUAL.read_text() == manual(), "run `make generate`"

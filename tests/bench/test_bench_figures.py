"""Arrivals and figures, against their definitions."""

from __future__ import annotations

import io
import itertools
import json
import math
import random
import statistics
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.args.schema import BENCH
from slipway.bench import measure, report, serve
from slipway.bench.arrivals import arrivals
from slipway.bench.latency import summary
from slipway.bench.measure import Outcome
from slipway.bench.plot import plot
from slipway.bench.progress import Bar
from slipway.bench.server import ServerError
from slipway.bench.throughput import Done
from slipway.bench.throughput import summary as throughput

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


def outcome(started: float, ttft: float, *gaps: float, tokens: int = 0, inputs: int = 10) -> Outcome:
    """One that succeeded, with a token a chunk unless `tokens` says otherwise."""
    return Outcome(started, ttft, ttft + sum(gaps), list(gaps), inputs, tokens or len(gaps) + 1, error="")


@given(VALUES, st.floats(0, 100))
def test_a_percentile_is_numpys(values, share):
    found = measure.percentile(sorted(values), share)
    assert found == pytest.approx(float(numpy.percentile(values, share)), rel=1e-9, abs=1e-9)


def test_percentiles_interpolate_between_the_nearest_two():
    assert [measure.percentile([1, 2, 4, 8], share) for share in (0, 25, 50, 90, 100)] == [
        *(1, 1.75, 3),
        pytest.approx(6.8),
        8,
    ]


@pytest.mark.parametrize(("rate", "burstiness"), [(4.0, 1.0), (10.0, 0.25), (0.5, 8.0)])
def test_gaps_between_arrivals_have_the_gammas_mean_and_variance(rate, burstiness):
    count = 60_000
    times = list(itertools.islice(arrivals(rate, burstiness, random.Random(1)), count + 1))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    variance = 1 / (burstiness * rate**2)
    assert times[0] == 0
    # Four standard errors of the mean, and of the variance with the gamma's excess kurtosis 6 / shape.
    assert statistics.fmean(gaps) == pytest.approx(1 / rate, abs=4 * math.sqrt(variance / count))
    error = variance * math.sqrt((2 + 6 / burstiness) / count)
    assert statistics.pvariance(gaps) == pytest.approx(variance, abs=4 * error)


def test_at_an_infinite_rate_all_arrive_at_once_and_a_seed_repeats_the_rest():
    assert list(itertools.islice(arrivals(math.inf, 1, random.Random(0)), 3)) == [0, 0, 0]
    first, again = (list(itertools.islice(arrivals(5, 0.5, random.Random(3)), 9)) for _ in range(2))
    assert first == again


def test_the_time_per_token_leaves_out_the_first():
    assert outcome(0, 0.5, 0.1, 0.3).tpot == pytest.approx(0.2)
    assert outcome(0, 0.5, 0.4, tokens=5).tpot == pytest.approx(0.1)  # of chunks with several tokens
    assert outcome(0, 0.5).tpot is None


def test_goodput_counts_requests_that_meet_every_objective():
    outcomes = [
        outcome(0, 0.25, 0.0625, 0.0625),
        outcome(0, 0.25, 0.0625, 0.063),  # its mean time per token is above
        outcome(0, 0.251, 0.01),
        outcome(0, 0.25),  # one token: no time per token
        Outcome(0, 0.1, 0.1, error="failed"),
    ]
    goals = measure.goals(["ttft:200", "tpot:62.5", "ttft:250.0"])
    assert goals == {"ttft": 0.25, "tpot": 0.0625}
    assert [measure.is_good(one, goals) for one in outcomes] == [True, False, False, True, False]
    assert measure.totals(outcomes, 4, goals)["request_goodput"] == 2 / 4
    assert measure.totals(outcomes, 4, {})["request_goodput"] is None
    assert measure.is_good(outcome(0, 1.0, 0.5), {"e2el": 1.5})


def test_totals_are_of_what_succeeded_over_the_whole_time():
    outcomes = [outcome(0, 1, 1, 1), outcome(0, 2, 1), Outcome(0, 1, 2, [1], 99, 99, error="cut")]
    assert measure.totals(outcomes, 10, {}) == {
        "duration": 10,
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 20,
        "total_output_tokens": 5,
        "request_throughput": 0.2,
        "request_goodput": None,
        "output_throughput": 0.5,
        "total_token_throughput": 2.5,
        "max_output_tokens_per_s": 2,
        "max_concurrent_requests": 2,
    }


def test_the_busiest_second_counts_from_the_start_and_spreads_tokens_over_chunks():
    assert measure.busiest_second([outcome(100.75, 0.25, 0.25, 0.25, 0.25, 1.0)]) == 3
    assert measure.busiest_second([outcome(0, 0.5, 1.0, tokens=8)]) == 4
    assert measure.busiest_second([]) == 0


def test_one_that_ends_as_another_starts_is_not_in_flight_with_it():
    assert measure.most_at_once([outcome(0, 1.0), outcome(1, 1.0), outcome(1.5, 1.0)]) == 2
    assert measure.most_at_once([]) == 0


@given(VALUES)
def test_a_distribution_is_in_milliseconds_with_the_population_deviation(values):
    ordered = sorted(value / 1000 for value in values)
    found = measure.distribution(ordered, "ttft", [50, 99.9])
    assert list(found) == ["mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p50_ttft_ms", "p99.9_ttft_ms"]
    assert found["median_ttft_ms"] == found["p50_ttft_ms"]
    assert found["mean_ttft_ms"] == pytest.approx(float(numpy.mean(values)), abs=1e-6)
    assert found["std_ttft_ms"] == pytest.approx(float(numpy.std(values)), rel=1e-6, abs=1e-6)


def test_what_was_not_measured_is_null_and_a_dash():
    nothing = measure.distribution([], "tpot", [99])
    assert set(nothing.values()) == {None}
    shown = report.table(result([outcome(0, 0.5)], "tpot"), ["tpot"], [99])
    assert "Mean TPOT (ms):                          -\n" in shown


def result(outcomes: list[Outcome], *metrics: str, **fields: object) -> dict:
    seconds = measure.seconds_of(outcomes)
    told = {"backend": "openai", "label": "openai", "model_id": "org/model", "date": "20260131-120000"}
    told |= {"max_concurrency": None, "request_rate": "inf"} | fields
    told |= measure.totals(outcomes, 2.0, {})
    for metric in metrics:
        told |= measure.distribution(seconds[metric], metric, [99])
    return told


def test_the_table_is_laid_out_as_vllms():
    outcomes = [outcome(0, 0.5, 0.5), outcome(0, 1.0, 0.5, 0.5)]
    shown = report.table(result(outcomes, "ttft", max_concurrency=4, request_rate=2.5), ["ttft"], [99])
    assert shown.splitlines() == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     2",
        "Failed requests:                         0",
        "Maximum request concurrency:             4",
        "Request rate configured (RPS):           2.50",
        "Benchmark duration (s):                  2.00",
        "Total input tokens:                      20",
        "Total generated tokens:                  5",
        "Request throughput (req/s):              1.00",
        "Output token throughput (tok/s):         2.50",
        "Peak output token throughput (tok/s):    3.00",
        "Peak concurrent requests:                2",
        "Total token throughput (tok/s):          12.50",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          750.00",
        "Median TTFT (ms):                        750.00",
        "P99 TTFT (ms):                           995.00",
        "==================================================",
    ]


def test_failures_are_told_with_the_first_reason_and_missing_usage_too():
    failed = [Outcome(0, error="The server answered 400."), Outcome(0, error="other")]
    uncounted = outcome(0, 1)
    uncounted.counted = False
    first, second = report.remarks([uncounted, *failed])
    assert first == "2 of 3 requests failed. The first: The server answered 400."
    assert second.startswith("The server told no usage of 1 requests")
    assert report.remarks([outcome(0, 1)]) == []


def test_what_a_server_says_does_not_steer_the_terminal():
    (first,) = report.remarks([Outcome(0, error="502 \x1b]0;mine\x07. \x9b2J Gone")])
    assert first.endswith("The first: 502 ]0;mine. 2J Gone")
    assert str(ServerError("\x1b[2JGone\ud83d.")) == "[2JGone."
    named = report.file_name(result([], model_id="org/\x1b[2Jmodel\0"))
    assert named == "openai-infqps-[2Jmodel-20260131-120000.json"


def test_a_half_of_a_character_is_kept_as_json_has_it(tmp_path):
    arguments = {"save_result": False, "save_detailed": True, "plot": None}
    arguments |= {"result_dir": str(tmp_path), "result_filename": "result.json"}
    load = SimpleNamespace(outcomes=[Outcome(0, text=["é", "\ud83d"])])
    serve._keep(arguments, load, {})
    kept = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert kept["generated_texts"] == ["é\ud83d"]


def test_a_run_is_labelled_with_its_backend_unless_it_has_a_name():
    load = SimpleNamespace(outcomes=[], duration=1.0)
    default = {name: argument.default for name, argument in BENCH["serve"].arguments.items()}
    default["percentile_metrics"] = ["ttft"]
    assert serve._result(default, "m", load)["label"] == "openai"
    assert serve._result(default | {"label": "mine"}, "m", load)["label"] == "mine"


def test_a_result_is_named_after_what_was_measured():
    assert report.file_name(result([])) == "openai-infqps-model-20260131-120000.json"
    named = result([], label="mine", max_concurrency=8, request_rate=2.0)
    assert report.file_name(named) == "mine-2.0qps-concurrency8-model-20260131-120000.json"


def test_details_are_json_with_an_entry_for_each_request():
    told = report.detailed([outcome(0, 0.5, 0.5), Outcome(1, error="cut")])
    assert {len(values) for values in json.loads(json.dumps(told)).values()} == {2}
    assert told["errors"] == ["", "cut"]


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_a_plot_is_one_svg_whose_curves_rise_to_their_last_value(count):
    seconds = {"ttft": [(index + 1) / 100 for index in range(count)], "itl": [0.0], "e2el": []}
    root = ElementTree.fromstring(plot("a <model> & more", seconds))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a <model> & more" in texts
    assert "Time to First Token" in texts
    assert "End-to-end Latency" not in texts
    first, _ = root.iter("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(","))) for point in first.attrib["points"].split()]
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
    assert points[-1][1] == 44  # the top of the panel: all of them
    assert "http" not in plot("", seconds).replace("http://www.w3.org/2000/svg", "")


def test_latencies_are_summed_up_under_vllms_keys():
    figures = summary([3.0, 1.0, 2.0])
    assert figures["avg_latency"] == 2
    assert figures["latencies"] == [3.0, 1.0, 2.0]
    assert list(figures["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert figures["percentiles"]["50"] == 2


def test_throughput_is_summed_up_under_vllms_keys():
    assert throughput(Done(4, 30, 10, 2.0)) == {
        "elapsed_time": 2.0,
        "num_requests": 4,
        "total_num_tokens": 40,
        "requests_per_second": 2,
        "tokens_per_second": 20,
        "total_input_tokens": 30,
        "total_output_tokens": 10,
        "output_tokens_per_second": 5,
    }


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(monkeypatch):
    for stream, shown, drawn in (
        (Terminal(), True, "\r2 of 2 requests " + "█" * 30 + "\n"),
        (Terminal(), False, ""),
        (io.StringIO(), True, ""),
    ):
        monkeypatch.setattr("sys.stderr", stream)
        with Bar(2, "requests", shown=shown) as bar:
            bar.step()
            bar.step()
        assert stream.getvalue().endswith(drawn)
        assert bool(stream.getvalue()) == bool(drawn)

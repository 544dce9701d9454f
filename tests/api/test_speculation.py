"""Speculation as a user turns it on: text that repeats itself moves the metrics, and no text changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from live_server import LiveServer, live_server

pytestmark = pytest.mark.slow

LINE = "the quick brown fox jumps over the lazy dog and runs away; "
BODY = {"model": "demo", "prompt": LINE * 6, "max_tokens": 60, "temperature": 0.0, "ignore_eos": True}
CONFIG = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}'
SERVED = ("--served-model-name", "demo", "--max-model-len", "512")


def text(server: LiveServer) -> str:
    status, answer = server.post("/v1/completions", json.dumps(BODY).encode())
    assert status == 200, answer
    return str(json.loads(answer)["choices"][0]["text"])


def test_text_that_repeats_itself_moves_the_metrics_and_stays_the_same(demo_model: Path) -> None:
    with live_server(demo_model, *SERVED) as server:
        plain = text(server)
        found = server.metrics()
        assert found["vllm:spec_decode_num_draft_tokens_total"] == 0
        assert "vllm:spec_decode_draft_acceptance_rate" not in found
        num_plain_steps = found["slipway_step_seconds_count"]
    with live_server(demo_model, *SERVED, "--speculative-config", CONFIG) as server:
        assert text(server) == plain
        found = server.metrics()
    accepted = found["vllm:spec_decode_num_accepted_tokens_total"]
    proposed = found["vllm:spec_decode_num_draft_tokens_total"]
    assert 0 < accepted <= proposed  # how many, what rows cost here says
    assert found["vllm:spec_decode_draft_acceptance_rate"] == accepted / proposed
    assert accepted < found["vllm:spec_decode_num_emitted_tokens_total"] <= 60
    assert found["vllm:generation_tokens_total"] == 60
    assert found["slipway_step_seconds_count"] == num_plain_steps - accepted
    assert 0 < found["vllm:spec_decode_efficiency"] <= 1


def test_a_draft_model_guesses_what_it_says_itself(demo_model: Path) -> None:
    config = json.dumps({"model": str(demo_model), "num_speculative_tokens": 3, "max_model_len": 512})
    with live_server(demo_model, *SERVED) as server:
        plain = text(server)
    with live_server(demo_model, *SERVED, "--speculative-config", config) as server:
        assert text(server) == plain
        found = server.metrics()
    accepted = found["vllm:spec_decode_num_accepted_tokens_total"]
    assert 0 < accepted == found["vllm:spec_decode_num_draft_tokens_total"]
    assert found["vllm:generation_tokens_total"] == 60

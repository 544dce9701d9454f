"""From `spec.engine` back to a command line."""

from __future__ import annotations

import pytest

from slipway.args import ArgumentError, resolve
from slipway.args.argv import render_argv

SPEC = {
    "maxModelLen": "16k",
    "maxNumSeqs": 8,
    "gpuMemoryUtilization": 0.5,
    "enforceEager": True,
    "enablePrefixCaching": False,
    "enableChunkedPrefill": False,
    "allowCredentials": False,
    "allowedOrigins": ["https://a.b"],
    "servedModelName": ["one", "two"],
    "middleware": ["a.b", "c.d"],
    "cudaGraphSizes": [1, 2, 8],
    "ignorePatterns": ["-x*"],
    "enableLora": True,
    "loraModules": [{"name": "a", "path": "/b"}],
    "hfOverrides": {"b": 1, "a": {"c": [1]}},
    "responseRole": "--odd",
    "seed": -5,
    "collectDetailedTraces": [],
    "multiStepStreamOutputs": False,
    "revision": None,
}


def test_a_spec_survives_the_way_to_the_command_line():
    resolved = resolve(["some/model", *render_argv(SPEC)], {})
    assert resolved["max_model_len"] == 16000
    assert resolved["max_num_seqs"] == 8
    assert resolved["gpu_memory_utilization"] == 0.5
    assert resolved["enforce_eager"] is True
    assert resolved["enable_prefix_caching"] is False
    assert resolved["enable_chunked_prefill"] is False
    assert resolved["allow_credentials"] is False
    assert resolved["allowed_origins"] == ["https://a.b"]
    assert resolved["served_model_name"] == ["one", "two"]
    assert resolved["middleware"] == ["a.b", "c.d"]
    assert resolved["cuda_graph_sizes"] == [1, 2, 8]
    assert resolved["ignore_patterns"] == ["-x*"]
    assert resolved["lora_modules"] == [{"name": "a", "path": "/b"}]
    assert resolved["hf_overrides"] == {"a": {"c": [1]}, "b": 1}
    assert resolved["response_role"] == "--odd"
    assert resolved["seed"] == -5
    assert resolved["collect_detailed_traces"] == []
    assert resolved["multi_step_stream_outputs"] is False
    assert "revision" not in resolved.given


def test_the_model_may_follow_the_flags():
    assert resolve([*render_argv(SPEC), "some/model"], {})["model"] == "some/model"


def test_the_order_is_that_of_the_schema():
    assert render_argv(dict(reversed(SPEC.items()))) == render_argv(SPEC)


def test_what_is_off_anyway_is_left_out():
    assert render_argv({"allowCredentials": False, "revision": None}) == []


def test_an_unknown_field_is_refused_with_near_matches():
    with pytest.raises(ArgumentError, match=r"no field 'maxModelLength'. Did you mean maxModelLen"):
        render_argv({"maxModelLength": 1})


@pytest.mark.parametrize("field", ["model", "host", "port", "apiKey", "hfToken", "sslKeyfile", "headless"])
def test_what_has_its_own_place_is_no_field(field):
    with pytest.raises(ArgumentError, match="has no field"):
        render_argv({field: "x"})

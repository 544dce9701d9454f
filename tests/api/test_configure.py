"""What of the arguments and the environment reaches the engine and the API."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slipway import envs
from slipway.api.configure import api_settings, balanced_outside, engine_config, local_ranks
from slipway.api.stats_log import BatchSizeLog, StatsLog, log_lines
from slipway.args import ArgumentError, resolve
from slipway.engine.config import DraftConfig, EngineConfig, TypicalAcceptance
from slipway.engine.messages import Speculated, Stats

NGRAM = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}']


TYPICAL = ["--speculative-config.acceptance_method", "typical_acceptance_sampler"]
DRAFT = ["--speculative-config.model", "d", "--speculative-config.revision", "r"]


def configured(*arguments: str, **environ: str) -> EngineConfig:
    return engine_config(resolve(["model", *arguments], environ), envs.read(environ))


@pytest.mark.parametrize(
    ("arguments", "environ", "field", "value"),
    [
        ([], {}, "kv_cache_bytes", None),
        ([], {"VLLM_CPU_KVCACHE_SPACE": "2"}, "kv_cache_bytes", 2 << 30),
        (
            ["--kv-cache-memory-bytes", "1M"],
            {"VLLM_CPU_KVCACHE_SPACE": "2"},
            "kv_cache_bytes",
            1 << 20,
        ),
        ([], {}, "max_model_len", None),
        (["--max-model-len", "auto"], {}, "max_model_len", None),
        (["--max-model-len", "-1"], {}, "max_model_len", None),
        (["--max-model-len", "2k"], {}, "max_model_len", 2000),
        ([], {}, "max_num_batched_tokens", None),
        (["--max-num-batched-tokens", "512"], {}, "max_num_batched_tokens", 512),
        (["-tp", "2", "-n", "2", "--master-port", "4000"], {}, "master_port", 4000),
        (["-tp", "2", "-n", "2", "-r", "1", "--master-addr", "h"], {}, "node_rank", 1),
        (["--cluster-key-file", "/key"], {}, "cluster_key_file", "/key"),
        (["-pp", "2"], {"VLLM_PP_LAYER_PARTITION": "3,1"}, "layer_partition", [3, 1]),
        (["-pp", "2"], {}, "layer_partition", []),
        (["--num-gpu-blocks-override", "77"], {}, "num_blocks", 77),
        (["--preemption-mode", "swap"], {}, "swap_bytes", 4 << 30),
        (["--preemption-mode", "swap", "--swap-space", "0.5"], {}, "swap_bytes", 1 << 29),
        (["--swap-space", "8"], {}, "swap_bytes", 0),
        (["--cpu-offload-gb", "1.5"], {}, "offload_bytes", 3 << 29),
        (["--prefix-caching-hash-algo", "sha256"], {}, "prefix_hash", "sha256"),
        (["--no-enable-prefix-caching"], {}, "enable_prefix_caching", False),
        (["--scheduling-policy", "priority"], {}, "scheduling_policy", "priority"),
        (["--dtype", "float32"], {}, "dtype", "float32"),
        (["-q", "fp8"], {}, "quantization", "fp8"),
        ([], {}, "num_drafts", 0),
        (NGRAM, {}, "num_drafts", 4),
        (NGRAM, {}, "prompt_lookup_min", 5),
        (NGRAM, {}, "prompt_lookup_max", 5),
        (NGRAM, {}, "max_guessing", None),
        ([*NGRAM, "--ngram-prompt-lookup-max", "7"], {}, "prompt_lookup_min", 7),
        ([*NGRAM, "--ngram-prompt-lookup-min", "2"], {}, "prompt_lookup_max", 2),
        ([*NGRAM, "--speculative-disable-by-batch-size", "8"], {}, "max_guessing", 8),
        (["--speculative-disable-by-batch-size", "8"], {}, "num_drafts", 0),
        (NGRAM, {}, "draft", None),
        (NGRAM, {}, "acceptance", None),
        ([*NGRAM, *TYPICAL], {}, "acceptance", TypicalAcceptance(threshold=0.09, alpha=0.3)),
        (
            [*NGRAM, *TYPICAL, "--typical-acceptance-sampler-posterior-alpha", "0.5"],
            {},
            "acceptance",
            TypicalAcceptance(threshold=0.09, alpha=0.5),
        ),
        (
            [
                *DRAFT,
                "--spec-decoding-acceptance-method",
                TYPICAL[1],
                "--speculative-config.posterior_threshold",
                "0.2",
            ],
            {},
            "acceptance",
            TypicalAcceptance(threshold=0.2, alpha=0.3),
        ),
        ([*DRAFT, "--num-speculative-tokens", "4"], {}, "num_drafts", 4),
        (DRAFT, {}, "num_drafts", 0),
        (
            [*DRAFT, "--speculative-max-model-len", "512", "--speculative-model-quantization", "fp8"],
            {},
            "draft",
            DraftConfig(method="draft_model", model="d", revision="r", max_model_len=512, quantization="fp8"),
        ),
        (
            ["--speculative-config", '{"method": "medusa", "model": "d", "code_revision": "c"}'],
            {},
            "draft",
            DraftConfig(method="medusa", model="d", code_revision="c"),
        ),
        (
            [*DRAFT[:2], "--speculative-draft-tensor-parallel-size", "1"],
            {},
            "draft",
            DraftConfig(method="draft_model", model="d", tensor_parallel_size=1),
        ),
        (["--enable-expert-parallel"], {}, "enable_expert_parallel", True),
        (["--disable-custom-all-reduce"], {}, "disable_custom_all_reduce", True),
        ([], {"VLLM_DISABLE_CUSTOM_ALL_REDUCE": "1"}, "disable_custom_all_reduce", True),
        (
            ["--speculative-config.method", "glm4_moe_mtp"],
            {},
            "draft",
            DraftConfig(method="mtp", model=None),
        ),
        (["--task", "embedding"], {}, "task", "embedding"),
        ([], {}, "override_pooler_config", {}),
        (["--override-pooler-config.normalize", "false"], {}, "override_pooler_config", {"normalize": False}),
        (["--cuda-graph-sizes", "4"], {}, "graph_sizes", [1, 2, 4]),
        (["-O.max_capture_size", "3"], {}, "graph_sizes", [1, 2]),
        (["-O", '{"cudagraph_capture_sizes": [7, 9]}'], {}, "graph_sizes", [7, 9]),
        (["-O.use_cudagraph", "false"], {}, "graph_sizes", []),
        (["--attention-backend", "XFORMERS"], {}, "attention_backend", "auto"),
        ([], {"VLLM_ATTENTION_BACKEND": "TORCH_SDPA"}, "attention_backend", "TORCH_SDPA"),
        (["--kv-cache-dtype", "fp8_e5m2"], {}, "kv_cache_dtype", "fp8_e5m2"),
        (["--quantization-param-path", "/s.json"], {}, "quantization_param_path", "/s.json"),
        (["--hf-overrides.a", "1"], {}, "hf_overrides", {"a": 1}),
        ([], {"HF_TOKEN": "t0ken"}, "hf_token", "t0ken"),
        ([], {"OMP_NUM_THREADS": "3"}, "threads", 3),
        ([], {"VLLM_CPU_OMP_THREADS_BIND": "2-3|5"}, "bound_cpus", [[2, 3], [5]]),
        ([], {"VLLM_CPU_OMP_THREADS_BIND": "2-3|5"}, "threads", None),
        ([], {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}, "pin_threads", False),
        ([], {"VLLM_CPU_OMP_THREADS_BIND": "auto"}, "pin_threads", True),
        ([], {"SLIPWAY_RECORD": "/tmp/r"}, "record", "/tmp/r"),
        ([], {"VLLM_SKIP_WARMUP": "1"}, "skip_warmup", True),
        (["--max-loras", "4"], {}, "max_loras", 0),
        (["--enable-lora"], {}, "max_loras", 1),
        (["--enable-lora", "--max-loras", "4"], {}, "max_loras", 4),
        (["--enable-lora", "--max-cpu-loras", "9"], {}, "max_cpu_loras", 9),
        (["--enable-lora", "--max-lora-rank", "64"], {}, "max_lora_rank", 64),
        (["--enable-lora", "--lora-dtype", "float16"], {}, "lora_dtype", "float16"),
        ([], {"SLIPWAY_PREFIX_HASH_SECRET": "ours"}, "prefix_hash_secret", "ours"),
    ],
    ids=str,
)
def test_an_argument_reaches_the_engine(
    arguments: list[str], environ: dict[str, str], field: str, value: Any
) -> None:
    assert getattr(configured(*arguments, **environ), field) == value


def test_the_api_is_told_its_names_keys_and_times() -> None:
    environ = {"VLLM_API_KEY": "k\n", "VLLM_ENGINE_ITERATION_TIMEOUT_S": "7"}
    resolved = resolve(["model", "--drain-grace", "3", "--root-path", "/a/"], environ)
    settings = api_settings(resolved, envs.read(environ))
    assert (settings.name, settings.api_keys, settings.root_path) == ("model", ("k",), "/a")
    assert (settings.drain_grace, settings.step_timeout) == (3, 7)
    assert settings.shown_arguments["api_key"] == "***"


def test_the_log_has_a_line_only_where_the_engine_worked() -> None:
    log = StatsLog()
    assert log.line() is None
    log.add(0, Stats(2, 1, 0.5, 9, [30, 12], [0.1, 0.1], prefix_queries=40, prefix_hits=10))
    line = log.line()
    assert line is not None
    assert "2 running, 1 waiting" in line
    assert "KV cache 50.0% full, prefix hits 25.0%" in line
    assert log.line() is None


def test_the_line_tells_what_became_of_drafts_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("slipway.api.stats_log.time.monotonic", lambda: now[0])
    log = StatsLog()
    for accepted in (4, 0):
        log.add(0, Stats(1, 0, 0.5, 9, [6], [0.1], speculated=Speculated(1, 5, accepted, accepted + 1)))
    now[0] += 2
    told = "drafts: 2.0 tokens/s accepted of 5.0, 40.0%, 3.00 tokens each time"
    assert (log.line() or "").endswith(told)
    log.add(0, Stats(1, 0, 0.5, 9, [1], [0.1]))
    assert "drafts" not in (log.line() or "")


def test_the_line_sums_all_engines() -> None:
    log = StatsLog()
    log.add(0, Stats(5, 1, 0.25, 9, [30]))
    log.add(0, Stats(2, 1, 0.25, 10, [1]))
    log.add(1, Stats(3, 4, 0.75, 9, [12]))
    assert "5 running, 5 waiting" in (line := log.line() or "")
    assert "KV cache 50.0% full" in line


async def test_what_came_since_the_last_line_is_logged_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    log = BatchSizeLog()
    with caplog.at_level("INFO", "slipway.api.stats"):
        logging = asyncio.create_task(log_lines(log.line, 3600))
        await asyncio.sleep(0)
        log.add(Stats(1, 0, 0.5, 9, [30], [0.2]))
        logging.cancel()
        await asyncio.wait([logging])
    assert caplog.messages == ["steps by tokens × how many (mean time): 30 × 1 (200.0 ms)"]


def test_batch_sizes_are_counted_with_the_time_that_they_took() -> None:
    log = BatchSizeLog()
    assert log.line() is None
    log.add(Stats(1, 0, 0.5, 9, [30, 1, 1], [0.2, 0.01, 0.02]))
    assert log.line() == "steps by tokens × how many (mean time): 1 × 2 (15.0 ms), 30 × 1 (200.0 ms)"
    assert log.line() is None
    log.add(Stats(1, 0, 0.5, 9, list(range(1, 30)), [0.1] * 29))
    assert "16 × 1 (100.0 ms), and other sizes" in (log.line() or "")


@pytest.mark.parametrize(("text", "seconds"), [("-1", 0.0), ("0", 0.0), ("2.5", 2.5)])
def test_batch_sizes_are_logged_at_an_interval_above_0(text: str, seconds: float) -> None:
    environ = {"VLLM_LOG_BATCHSIZE_INTERVAL": text}
    assert api_settings(resolve(["m"], environ), envs.read(environ)).batch_size_interval == seconds


@pytest.mark.parametrize(
    ("given", "ranks", "outside"),
    [
        ("", [0], False),
        ("-dp 3", [0, 1, 2], False),
        ("-dp 4 -dpl 2", [0, 1], False),
        ("-dp 4 -dpn 2", [2], True),
        ("-dp 4 -dpl 2 -dpr 2 -dph", [2, 3], True),
    ],
)
def test_a_server_has_the_engines_that_it_is_told(given: str, ranks: list[int], outside: bool) -> None:
    resolved = resolve(["model", *given.split()], {})
    assert list(local_ranks(resolved)) == ranks
    assert balanced_outside(resolved) == outside


def test_several_engines_need_processes() -> None:
    environ = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with pytest.raises(ArgumentError, match="--data-parallel-size 2 needs engines in processes"):
        resolve(["model", "-dp", "2"], environ)
    assert resolve(["model", "-dp", "2", "-dpn", "1"], environ)["data_parallel_rank"] == 1

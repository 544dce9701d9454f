"""The invariance matrix: a request's output does not depend on how or with whom it was computed.

Bit-exact, log-probabilities included, in fp32, in bf16, in every way to quantize and on several ranks and
stages, for greedy and seeded requests, by the model alone and by two adapters. Each architecture's program is
proved by steps in tests/worker/test_lower.py, each operation in tests/kernels. What has no cell here is
proved beside its feature: vectors, drafts, masks, rows and adapters of other kinds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from quantize import quantize, recipe

from adapter_runs import adapter, ref
from factory import make_model
from gguf_convert import to_gguf
from local_engine import LocalEngine, Output
from local_ranks import engine_of
from slipway.engine.config import DraftConfig
from slipway.engine.messages import AdapterRef
from slipway.engine.params import SamplingParams
from slipway.engine.replay import read_record, replay
from slipway.engine.start import Start

Request = tuple[list[int], SamplingParams, AdapterRef | None]

BASE: dict[str, object] = {
    "max_num_batched_tokens": 4096,
    "block_size": 16,
    "enable_prefix_caching": False,
    "max_model_len": 256,
    "num_blocks": 400,
}

AXES: dict[str, dict[str, object]] = {
    "chunks of 1": {"max_num_batched_tokens": 1},
    "chunks of 7": {"max_num_batched_tokens": 7},
    "chunks of 64": {"max_num_batched_tokens": 64},
    "blocks of 1": {"block_size": 1, "num_blocks": 6400},
    "blocks of 8": {"block_size": 8, "num_blocks": 800},
    "blocks of 32": {"block_size": 32},
    "blocks of 128": {"block_size": 128},
    "prefix cache cold": {"enable_prefix_caching": True},
    "prefix cache sha256": {"enable_prefix_caching": True, "prefix_hash": "sha256"},
    "forced preemption": {"num_blocks": 16, "max_num_batched_tokens": 64},
    "preemption with prefix cache": {
        "num_blocks": 16,
        "max_num_batched_tokens": 64,
        "enable_prefix_caching": True,
    },
    "windows kept whole": {"disable_hybrid_kv_cache_manager": True},
    "overlap": {"overlap": True, "max_num_batched_tokens": 64},
    "overlap with preemption": {"overlap": True, "num_blocks": 16, "max_num_batched_tokens": 64},
    "two threads": {"threads": 2},
    "three threads": {"threads": 3},
    "adapters in turn": {"max_loras": 1},
    "whole prompts": {"enable_chunked_prefill": False},
    "two partial prompts": {"max_num_batched_tokens": 32, "max_num_partial_prefills": 2},
    "drafts": {"num_drafts": 5, "prompt_lookup_min": 1},
    "drafts with overlap and preemption": {
        "num_drafts": 3,
        "prompt_lookup_min": 1,
        "overlap": True,
        "num_blocks": 16,
        "max_num_batched_tokens": 64,
    },
    "a draft model": {"num_drafts": 3, "max_num_batched_tokens": 64},
    "a draft model with overlap and preemption": {
        "num_drafts": 3,
        "overlap": True,
        "num_blocks": 16,
        "max_num_batched_tokens": 64,
    },
}

ARCHITECTURES = ["llama", "gemma3_text", "mixtral"]
OF_TRANSFORMERS = ("gemma3_text",)
"""What transformers' code runs at these sizes: without adapters and draft models."""
NATIVE_AXES = ("a draft model", "adapters in turn")
CHECKPOINTS = {"awq": 32, "gptq": 16, "gptq-asym": 32, "w4a16": 32, "w8a8": 32, "fp8": 32, "fp8-block": 32}
"""Ways to quantize a checkpoint, with the columns that share a scale where some do."""
SETTINGS: dict[str, dict[str, object]] = {
    "int4": {"quantization": "int4"},
    "int8": {"quantization": "int8"},
    "experts_int8": {"quantization": "experts_int8"},
    "fp8kv": {"quantization": "fp8", "kv_cache_dtype": "fp8"},
    "narrow-kv": {"kv_cache_dtype": "fp8"},
    "narrow-kv-float32": {"kv_cache_dtype": "fp8", "dtype": "float32"},
    "e5m2": {"kv_cache_dtype": "fp8_e5m2"},
    "int8-kv": {"kv_cache_dtype": "int8_per_token_head"},
}
"""Ways to quantize a plain one, or its KV cache."""
RANKS: dict[str, dict[str, object]] = {
    "ranks": {"tensor_parallel_size": 2},
    "float32-ranks": {"tensor_parallel_size": 2, "dtype": "float32"},
    "experts": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    "int4-experts": {"tensor_parallel_size": 2, "enable_expert_parallel": True, "quantization": "int4"},
    "int8-ranks": {"tensor_parallel_size": 2, "quantization": "int8"},
    "fp8-ranks": {"tensor_parallel_size": 2, "quantization": "fp8"},
    "stages": {"pipeline_parallel_size": 2},
    "int4-stages": {"pipeline_parallel_size": 3, "quantization": "int4"},
    "staged-ranks": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
}
"""Ways to share one: sums of ranks come in another order than on one, and in none other."""
SOME = ("v_proj", "down_proj")
"""What the second adapter changes."""
FEWER_AXES = (
    *("chunks of 7", "blocks of 8", "prefix cache cold", "forced preemption"),
    *("overlap with preemption", "three threads", "drafts", "a draft model", "adapters in turn"),
)
"""Of the ways to quantize: one of each kind. Their products alone differ from bf16's."""
RANKED = [
    *("llama ranks", "llama float32-ranks", "llama int8-ranks", "mixtral ranks", "mixtral experts"),
    *("qwen2_moe int4-experts", "qwen2_moe fp8-ranks"),
    *("llama stages", "llama int4-stages", "llama staged-ranks", "mixtral staged-ranks"),
]
QUANTIZED = [
    *(f"llama {method}" for method in CHECKPOINTS),
    *("llama int4", "llama int8", "mixtral experts_int8", "llama fp8kv", "llama e5m2"),
    *("llama narrow-kv-float32", "gemma3_text narrow-kv", "qwen2_moe narrow-kv"),
    *("llama int8-kv", "gemma3_text int8-kv"),
]
CASES = [
    *(f"{architecture} {dtype}" for architecture in ARCHITECTURES for dtype in ("float32", "bfloat16")),
    *("qwen2_moe gguf", *QUANTIZED, *RANKED),
]


@dataclass(frozen=True)
class Case:
    """A model and how it is served, with requests and what each gives alone in one chunk."""

    model: Path
    settings: dict[str, object]
    work: list[Request]
    alone: list[Output]

    def served(self, axis: str = "") -> LocalEngine:
        settings = BASE | self.settings | AXES.get(axis, {})
        if axis.startswith("a draft model"):  # itself, as it is stored
            settings["draft"] = DraftConfig(method="draft_model", model=str(self.model))
        return engine_of(self.model, **settings)


def run(engine: LocalEngine, work: list[Request]) -> list[Output]:
    """All at once; outputs in the order given."""
    names = [engine.add(prompt, params, adapter=added) for prompt, params, added in work]
    engine.finish()
    errors = [delta.error for name in names for delta in engine.hub.deltas[name] if delta.error]
    assert not errors
    return [engine.output(name) for name in names]


def packed_model(architecture: str, folder: Path) -> Path:
    """A GGUF file of four bits, with eight in the embedding and the values; widths are whole groups."""
    widths = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 96}
    others = {"token_embd": "Q8_0", "attn_v": "Q8_0", "ffn_gate_inp": "F32"}
    made = make_model(architecture, folder / "model", **widths)
    return to_gguf(made, folder / "model.gguf", "Q4_1", others=others)


def requests(vocab: int, adapters: Sequence[AdapterRef], count: int = 8) -> list[Request]:
    """Ragged prompts, some with a common beginning; greedy and seeded in turn, some by an adapter."""
    users = {3: adapters[0], 6: adapters[1], 7: adapters[0]} if adapters else {}
    rng = random.Random(5)
    common = [rng.randrange(vocab) for _ in range(40)]
    made: list[Request] = []
    for i in range(count):
        own = [rng.randrange(vocab) for _ in range(rng.randint(1, 60))]
        prompt = common + own if i % 3 == 0 else own
        if i % 2:
            params = SamplingParams(24, temperature=0.9, top_k=50, top_p=0.95, seed=i, num_logprobs=2)
        else:
            params = SamplingParams(24, temperature=0.0, num_logprobs=2)
        made.append((prompt, params, users.get(i)))
    return made


def marks(case: str, axis: str = FEWER_AXES[0]) -> tuple[pytest.MarkDecorator, ...]:
    """`make test` has two models and an axis of each kind."""
    return () if case in ("llama float32", "qwen2_moe gguf") and axis in FEWER_AXES else (pytest.mark.slow,)


@pytest.fixture(scope="module")
def cases(
    tiny_models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Case]:
    """Each is made once, whatever the order of tests. Alone its requests run on one thread."""

    @cache
    def made(name: str) -> Case:
        architecture, way = name.split()
        folder = tmp_path_factory.mktemp("case")
        settings: dict[str, object] = {"dtype": "bfloat16"}
        if way == "gguf":
            model = packed_model(architecture, folder)
        elif way in CHECKPOINTS:
            model = quantize(tiny_models(architecture), folder / way, recipe(way, group=CHECKPOINTS[way]))
        else:
            model = tiny_models(architecture)
            settings |= (SETTINGS | RANKS).get(way, {"dtype": way})
        stored = folder / "model" if way == "gguf" else tiny_models(architecture)
        adapters = []
        if architecture not in OF_TRANSFORMERS:
            adapters.append(ref(adapter(stored, folder / "all")))
            adapters.append(ref(adapter(stored, folder / "some", rank=40, modules=SOME, seed=1)))
            settings |= {"max_loras": 2, "max_lora_rank": 40}
        with engine_of(model, **(BASE | settings)) as engine:
            work = requests(engine.start.plan.route.vocab, adapters)
            return Case(model, settings, work, [run(engine, [one])[0] for one in work])

    return made


@pytest.fixture(params=[pytest.param(one, marks=marks(one)) for one in CASES])
def case(request: pytest.FixtureRequest, cases: Callable[[str], Case]) -> Case:
    return cases(request.param)


@pytest.mark.parametrize(
    ("case", "axis"),
    [
        pytest.param(case, axis, marks=marks(case, axis))
        for case in CASES
        for axis in (FEWER_AXES if case in (*QUANTIZED, *RANKED) else AXES)
        if not (case.startswith(OF_TRANSFORMERS) and axis.startswith(NATIVE_AXES))
    ],
    indirect=["case"],
)
def test_output_is_the_same_under(axis: str, case: Case) -> None:
    with case.served(axis) as engine:
        together = run(engine, case.work)
    assert [o.tokens for o in together] == [o.tokens for o in case.alone]
    assert [o.logprobs for o in together] == [o.logprobs for o in case.alone]
    if "preemption" in axis:
        assert sum(o.num_preemptions for o in together) > 0


def test_output_is_the_same_in_any_order_and_company(case: Case) -> None:
    with case.served() as engine:
        assert [o.logprobs for o in run(engine, case.work[::-1])][::-1] == [o.logprobs for o in case.alone]
        few = run(engine, case.work[2:5])
        assert [o.tokens for o in few] == [o.tokens for o in case.alone[2:5]]


def test_output_is_the_same_with_a_warm_prefix_cache(case: Case) -> None:
    with case.served("prefix cache cold") as engine:
        run(engine, case.work)
        warm = run(engine, case.work)
    assert [o.logprobs for o in warm] == [o.logprobs for o in case.alone]
    assert sum(o.num_cached_tokens for o in warm) > 100


def test_prompt_logprobs_do_not_depend_on_chunks(case: Case) -> None:
    params = SamplingParams(2, temperature=0.0, num_prompt_logprobs=3)
    asked = [(prompt, params, added) for prompt, _, added in case.work]
    outputs = []
    for axis in ("", "chunks of 7", "forced preemption", "prefix cache cold"):
        with case.served(axis) as engine:
            outputs.append([o.prompt_logprobs for o in run(engine, asked)])
    assert outputs[1:] == outputs[:1] * 3
    assert [len(entries) for entries in outputs[0]] == [len(prompt) for prompt, _, _ in case.work]


def test_a_recorded_run_replays_to_the_bit(case: Case, tmp_path: Path) -> None:
    record = tmp_path / "run.record"
    with replace(case, settings=case.settings | {"record": str(record)}).served(
        "forced preemption"
    ) as engine:
        run(engine, case.work)
    config, steps = read_record(record)
    assert len(steps) > 20
    with closing(Start.of(config).worker) as worker:
        assert replay(worker, steps) is None

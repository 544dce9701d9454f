"""A low-rank adapter serves as the merged weights would, and only those who ask for it notice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path

import msgspec
import numpy as np
import pytest
from quantize import quantize, recipe

from adapter_runs import BOUNDS, GREEDY, adapter, assert_alike, merged, outputs, ref
from factory import make_model
from gguf_convert import to_gguf
from local_engine import LocalEngine, Output
from model.stepping import Stepper, plan, prompt
from slipway.engine.messages import AdapterRef, LoadAdapter, UnloadAdapter
from slipway.engine.plan import NO_PLACE
from slipway.engine.replay import read_record, replay
from slipway.engine.start import Start
from slipway.load.adapter import AdapterLimits, read_adapter
from slipway.load.errors import LoadError
from slipway.model.adapters import Addition, additions
from slipway.model.registry import families
from slipway.model.shard import Shard, Sharded
from tensor_files import load, save

PROMPTS = [prompt(length, length) for length in (1, 7, 40, 65)]


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen2_moe"])
@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_serves_as_merged_weights_do(tmp_path: Path, architecture: str, rslora: bool) -> None:
    sizes = {"head_dim": 24} if architecture == "gemma3_text" else {}  # of which there is native code
    base = make_model(architecture, tmp_path / "model", **sizes)
    added = adapter(base, tmp_path / "adapter", use_rslora=rslora)
    whole = merged(base, added, tmp_path / "merged")
    with LocalEngine(base, **BOUNDS, max_loras=1) as engine:
        found = outputs(engine, [(tokens, added) for tokens in PROMPTS])
        plain = outputs(engine, [(tokens, None) for tokens in PROMPTS])
    with LocalEngine(whole, **BOUNDS) as engine:
        expected = outputs(engine, [(tokens, None) for tokens in PROMPTS])
    for one, other in zip(found, expected, strict=True):
        assert_alike(one, other)
    assert all(one.logprobs != other.logprobs for one, other in zip(found, plain, strict=True))


@dataclass
class Served:
    """A model, how it is served, and two adapters of different ranks and modules."""

    model: Path
    settings: dict[str, object]
    all: Path
    some: Path


@pytest.fixture(scope="module", params=["float32", "bfloat16", "awq", "gptq-act-order"])
def served(
    request: pytest.FixtureRequest,
    tiny_models: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Served:
    folder = tmp_path_factory.mktemp("served")
    model = source = tiny_models("llama")
    dtype = request.param if request.param in ("float32", "bfloat16") else "bfloat16"
    if dtype != request.param:
        method = request.param.removesuffix("-act-order")
        model = quantize(
            source, folder / "model", recipe(method, group=32, act_order=method != request.param)
        )
    return Served(
        model,
        BOUNDS | {"dtype": dtype, "enable_prefix_caching": False, "max_loras": 2, "max_lora_rank": 40},
        adapter(source, folder / "all", rank=5),
        adapter(source, folder / "some", rank=40, modules=("v_proj", "up_proj", "down_proj"), seed=1),
    )


def test_who_asks_for_none_gets_the_bits_of_a_server_without_adapters(served: Served) -> None:
    asked = [(tokens, one) for tokens in PROMPTS for one in (None, served.all)]
    with LocalEngine(served.model, **served.settings) as engine:
        found = outputs(engine, asked)[::2]
        program = engine.worker._model  # type: ignore[attr-defined]
    with LocalEngine(served.model, **(served.settings | {"max_loras": 0})) as engine:
        expected = outputs(engine, [(tokens, None) for tokens in PROMPTS])
        without = engine.worker._model  # type: ignore[attr-defined]
    assert [one.logprobs for one in found] == [one.logprobs for one in expected]
    assert [name for name, _ in program.measure()] == [name for name, _ in without.measure()]


@pytest.mark.parametrize(("packed", "plain"), [("gate", "up"), ("up", "gate")])
def test_an_adapter_adds_to_one_of_gate_and_up_where_they_are_two_products(
    tmp_path: Path, packed: str, plain: str
) -> None:
    base = make_model("llama", tmp_path / "model", head_dim=16)
    added = adapter(base, tmp_path / "adapter", modules=(f"{plain}_proj",))
    whole = merged(base, added, tmp_path / "merged")
    forms = {f"ffn_{packed}": "Q8_0"}
    files = [to_gguf(folder, folder.with_suffix(".gguf"), "F16", others=forms) for folder in (base, whole)]
    asked = [(tokens, added) for tokens in PROMPTS]
    bounds = BOUNDS | {"dtype": "bfloat16"}
    with LocalEngine(files[0], **bounds, max_loras=1) as engine:
        found = outputs(engine, asked)
        unadapted = outputs(engine, [(tokens, None) for tokens, _ in asked])
    with LocalEngine(files[1], **bounds) as engine:
        expected = outputs(engine, [(tokens, None) for tokens, _ in asked])

    def first(output: Output) -> dict[int, float]:
        return dict(output.logprobs[0].top)

    for one, wanted, other in zip(found, expected, unadapted, strict=True):
        common = first(one).keys() & first(wanted)
        assert len(common) >= 2
        # bf16 moves these numbers by up to 0.05 from those of fp32, the adapter by 0.2 and more.
        far = max(abs(first(one)[token] - first(wanted)[token]) for token in common)
        moved = max(abs(first(one).get(token, -inf) - first(other)[token]) for token in first(other))
        assert moved > 0.2
        assert far < moved / 4


def test_prefix_blocks_are_shared_within_an_adapter_alone(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    base = tiny_models("llama")
    one, other = (adapter(base, tmp_path / name, seed=seed) for seed, name in enumerate("ab"))
    with LocalEngine(base, **BOUNDS, max_loras=2) as engine:
        asked = [(PROMPTS[-1], folder) for folder in (one, other, None) * 2]
        found = [outputs(engine, [request])[0] for request in asked]
    assert [output.num_cached_tokens > 0 for output in found] == [False] * 3 + [True] * 3
    assert [output.logprobs for output in found[3:]] == [output.logprobs for output in found[:3]]


def test_the_prefixes_of_one_adapter_are_forgotten_and_no_others(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    base = tiny_models("llama")
    one, other = (adapter(base, tmp_path / name, seed=seed) for seed, name in enumerate("ab"))
    with LocalEngine(base, **BOUNDS, max_loras=2) as engine:

        def found() -> list[Output]:
            return [outputs(engine, [(PROMPTS[-1], folder)])[0] for folder in (one, other, None)]

        def hits() -> list[bool]:
            return [output.num_cached_tokens > 0 for output in found()]

        computed = found()
        running = engine.add(PROMPTS[-1], GREEDY, adapter=ref(one))
        while not engine.hub.deltas.get(running):
            engine.core.run_once()
        assert engine.call("reset_prefix_cache", str(ref(one).number)) == "ok"
        engine.finish()
        assert engine.output(running).logprobs == computed[0].logprobs
        assert [output.logprobs for output in found()] == [output.logprobs for output in computed]
        engine.call("reset_prefix_cache", str(ref(one).number))
        assert hits() == [False, True, True]
        engine.call("reset_prefix_cache", str(ref(one).number), str(ref(other).number))
        assert hits() == [False, False, True]
        engine.call("reset_prefix_cache")
        assert hits() == [False] * 3
        assert engine.call("check") == "ok"


def test_an_adapter_that_cannot_be_read_ends_the_requests_that_wait_for_it(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    good = adapter(tiny_models("llama"), tmp_path / "good")
    with LocalEngine(tiny_models("llama"), **BOUNDS, max_loras=1) as engine:
        asked = [ref(tmp_path / "none"), ref(tmp_path / "none"), ref(good), None]
        first, second, *others = [engine.add(PROMPTS[1], GREEDY, adapter=one) for one in asked]
        engine.finish()
        for name in (first, second):
            (delta,) = engine.hub.deltas[name]
            assert (delta.finish_reason, delta.unfit) == ("error", True)
            why = f"The adapter none in {tmp_path / 'none'} has no adapter_config.json. "
            assert delta.error == f"{why}Name a folder that PEFT saved."
        assert [engine.output(name).finish_reason for name in others] == ["length"] * 2


def test_an_engine_without_adapters_says_so(tiny_models: Callable[[str], Path], tmp_path: Path) -> None:
    with LocalEngine(tiny_models("llama"), **BOUNDS) as engine:
        name, other = (engine.add(PROMPTS[1], GREEDY, adapter=one) for one in (ref(tmp_path / "no"), None))
        engine.finish()
        (delta,) = engine.hub.deltas[name]
        assert (delta.error, delta.unfit) == ("This engine serves no adapters, and none named no.", True)
        assert engine.output(other).finish_reason == "length"


def test_one_loaded_again_under_its_name_is_another_while_the_old_one_runs_to_its_end(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    base = tiny_models("llama")
    old, new = (adapter(base, tmp_path / name, seed=seed) for seed, name in enumerate(("old", "new")))
    served = tmp_path / "served"
    long = msgspec.structs.replace(GREEDY, max_tokens=40)
    with LocalEngine(base, **BOUNDS, max_loras=2) as engine:
        expected = []
        for number, folder in enumerate((old, new), 10):
            name = engine.add(PROMPTS[2], long, adapter=ref(folder, number))
            engine.finish()
            expected.append(engine.output(name))
        shutil.copytree(old, served)
        first = engine.add(PROMPTS[2], long, adapter=ref(served, 1))
        while not engine.hub.deltas.get(first):
            engine.core.run_once()
        shutil.rmtree(served)
        shutil.copytree(new, served)
        engine.tell(UnloadAdapter(1, 1))
        engine.tell(LoadAdapter(2, ref(served, 2)))  # type: ignore[arg-type]
        second = engine.add(PROMPTS[2], long, adapter=ref(served, 2))
        engine.finish()
        assert engine.hub.replies == {1: "ok", 2: "ok"}
        found = [engine.output(name) for name in (first, second)]
    assert [one.logprobs for one in found] == [one.logprobs for one in expected]
    assert found[0].tokens != found[1].tokens
    assert [one.num_cached_tokens for one in found] == [0, 0]


def test_what_is_loaded_is_read_before_anyone_asks_and_a_wrong_one_is_named(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    base = tiny_models("llama")
    good = adapter(base, tmp_path / "good", rank=17)
    with LocalEngine(base, **BOUNDS, max_loras=1, max_lora_rank=17) as engine:
        engine.tell(LoadAdapter(1, ref(good)))  # type: ignore[arg-type]
        engine.tell(LoadAdapter(2, ref(tmp_path / "none")))  # type: ignore[arg-type]
        while len(engine.hub.replies) < 2:
            engine.core.run_once()
        assert engine.hub.replies[1] == "ok"
        assert "has no adapter_config.json" in engine.hub.replies[2]
    with LocalEngine(base, **BOUNDS, max_loras=1) as engine:
        engine.tell(LoadAdapter(1, ref(good)))  # type: ignore[arg-type]
        while not engine.hub.replies:
            engine.core.run_once()
        assert "has a rank of 17, and --max-lora-rank is 16" in engine.hub.replies[1]


def test_a_record_with_adapters_plays_back_to_the_bit(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    base, record = tiny_models("llama"), tmp_path / "record"
    folders = [adapter(base, tmp_path / str(seed), seed=seed) for seed in range(3)]
    with LocalEngine(base, **BOUNDS, max_loras=1, record=str(record)) as engine:
        outputs(engine, [(tokens, folder) for tokens in PROMPTS for folder in (*folders, None)])
    config, steps = read_record(record)
    assert sum(len(plan.adapters) for plan, _, _ in steps) >= 3
    assert replay(Start.of(config).worker, steps) is None


@pytest.mark.parametrize(
    ("config", "edit", "message"),
    [
        ({"use_dora": True}, {}, "uses use_dora: True, which is not supported"),
        ({"modules_to_save": ["lm_head"]}, {}, r"has modules_to_save: \['lm_head'\], and no matrix"),
        ({"peft_type": "IA3"}, {}, "is of the kind IA3; LORA is served"),
        ({"bias": "all"}, {}, r"has biases \(bias: all\)"),
        ({"rank_pattern": {"q_proj": 900}}, {}, "has a rank of 900, and --max-lora-rank is 16"),
        ({"rank_pattern": {"q_proj": 7}}, {}, "q_proj, and adapter_config.json says 7"),
        ({"rank_pattern": {"(a+)+": 7}}, {}, "repeats too much to be matched"),
        ({}, {"model.norm": (64, 64)}, "is for model.norm, and adapters add to the linear layers"),
        (
            {},
            {"model.layers.0.self_attn.q_proj": (64, 32)},
            r"is for model.layers.0.self_attn.q_proj of \[64, 32\] rows and columns, which has \[64, 64\]",
        ),
        ({"r": "many"}, {}, "has an adapter_config.json that says that r is 'many', and it must be a whole"),
        ({"lora_alpha": inf}, {}, "has a lora_alpha of inf for model.layers.0"),
        ({}, {f"model.{'x' * 256}": (64, 64)}, "whose name has 2"),
        ({"rank_pattern": [4]}, {}, r"says that rank_pattern is \[4\], and it must be an object"),
    ],
)
def test_what_is_not_served_is_named(
    tiny_models: Callable[[str], Path],
    tmp_path: Path,
    config: dict[str, object],
    edit: dict[str, tuple[int, int]],
    message: str,
) -> None:
    base = tiny_models("llama")
    folder = adapter(base, tmp_path / "mine", **config)
    factors = load(folder / "adapter_model.safetensors")
    for module, (rows, columns) in edit.items():
        factors[f"base_model.model.{module}.lora_A.weight"] = np.zeros((5, columns), np.float32)
        factors[f"base_model.model.{module}.lora_B.weight"] = np.zeros((rows, 5), np.float32)
    save(factors, folder / "adapter_model.safetensors")
    stepper = Stepper(base, max_loras=1)
    assert stepper.adapters is not None
    with pytest.raises(LoadError, match=message) as refused:
        stepper.adapters.read(AdapterRef(1, "mine", str(folder)), NO_PLACE)
    assert "The adapter mine in" in refused.value.message


@pytest.mark.parametrize("value", [inf, nan])
def test_factors_that_are_no_numbers_are_refused(
    tiny_models: Callable[[str], Path], tmp_path: Path, value: float
) -> None:
    folder = adapter(tiny_models("llama"), tmp_path / "mine")
    factors = load(folder / "adapter_model.safetensors")
    name = min(factors)
    factors[name][0, 0] = value
    save(factors, folder / "adapter_model.safetensors")
    with pytest.raises(LoadError, match=f"has a tensor {name} with numbers that are infinite, or none"):
        read_adapter("mine", folder, AdapterLimits())


@pytest.mark.torch
def test_transformers_code_takes_no_adapters(tiny_models: Callable[[str], Path]) -> None:
    with pytest.raises(LoadError, match="not by transformers' code") as refused:
        LocalEngine(tiny_models("llama"), **BOUNDS, max_loras=1, model_impl="transformers")
    assert refused.value.argument == "enable_lora"


def test_factors_are_cut_as_the_matrices_that_they_are_added_to(tmp_path: Path) -> None:
    """Rows that ranks hold get those rows of B, and products that ranks add up those columns of A."""
    base = make_model("llama", tmp_path / "model")
    read = read_adapter("it", adapter(base, tmp_path / "adapter", rank=4), AdapterLimits())
    spec = plan(base).route.spec
    assert spec is not None
    family = families()[spec.architecture]

    def of(shard: Shard) -> dict[str, Addition]:
        """By role, of the first layer."""
        part = Sharded(spec, {}, shard)
        found = additions(read, spec, family, part.cuts)
        return {role: one for (layer, role, _), one in found.items() if layer == 0}

    whole, ranks = of(Shard()), [of(Shard(rank, 2)) for rank in range(2)]
    for role, one in whole.items():
        axis, same = ("a", "b") if role in ("out", "down") else ("b", "a")
        parts = [getattr(rank[role], axis) for rank in ranks]
        assert np.array_equal(np.concatenate(parts, axis=int(axis == "a")), getattr(one, axis))
        assert all(np.array_equal(getattr(rank[role], same), getattr(one, same)) for rank in ranks)

"""What ranks compute together: experts, adapters, masks and vectors are those of one rank, in any company."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter_runs import GREEDY, assert_alike
from factory import VOCABULARY, model_folders
from local_engine import Output
from local_ranks import engine_of
from made_adapter import PREFIX, Made, of_ranks
from resized_adapters import ADDED, Resized, new_embeddings, whole
from slipway.engine.messages import AdapterRef
from slipway.engine.params import SamplingParams
from slipway.load.errors import LoadError
from slipway.text import structure
from slipway.text.open import load
from slipway.worker.cpu import CpuWorker

pytestmark = pytest.mark.slow

Models = Callable[[str], Path]
Asked = Sequence[tuple[list[int], AdapterRef | None]]
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
BOUNDS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "num_blocks": 200, "max_num_seqs": 16}
ADAPTED = BOUNDS | {"max_loras": 2, "lora_extra_vocab_size": 8}
SIZES = pytest.mark.parametrize("size", [2, 3, 4])
WHOLE_EXPERTS = pytest.mark.parametrize("whole_experts", [False, True], ids=["cut", "whole"])
SMALL = {"head_dim": 24, "vocab_size": 90}
"""Of so few tokens that ranks part within a block of 32."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    kinds: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {"head_dim": 24}) for name in MIXTURES}
    kinds |= {"llama": ("llama", {}), "few words": ("llama", SMALL)}
    kinds["both ways"] = ("gemma3_text", {"head": "", "use_bidirectional_attention": True, "head_dim": 24})
    kinds["qwen3"] = ("qwen3", {"head_dim": 24})
    return model_folders(tmp_path_factory.mktemp("ranked"), kinds)


def prompts(count: int = 4, vocab: int = 500) -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(3, vocab, 1 + 23 * number).tolist() for number in range(count)]


def run(model: Path, asked: Asked, **fields: Any) -> list[Output]:
    """All at once."""
    with engine_of(model, **fields) as engine:
        names = [engine.add(tokens, GREEDY, adapter=ref) for tokens, ref in asked]
        engine.finish()
        outputs = [engine.output(name) for name in names]
    assert {len(one.tokens) for one in outputs} == {GREEDY.max_tokens}
    return outputs


def check(model: Path, asked: Asked, size: int, **fields: Any) -> list[Output]:
    """What ranks say, which is what one says."""
    alone = run(model, asked, **fields)
    together = run(model, asked, tensor_parallel_size=size, **fields)
    for found, expected in zip(together, alone, strict=True):
        assert_alike(found, expected)
    return together


def check_company(model: Path, asked: Asked, **fields: Any) -> None:
    """To the bit, whoever shares a step, however prompts are cut and whatever is found of them."""

    def bits(outputs: list[Output]) -> list[Any]:
        return [(one.tokens, one.logprobs) for one in outputs]

    together = bits(run(model, asked, **fields))
    assert bits(run(model, asked[::-1], **fields))[::-1] == together
    chunked = {"max_num_batched_tokens": 7, "enable_prefix_caching": False}
    assert bits(run(model, asked, **fields, **chunked)) == together
    with engine_of(model, **fields) as engine:
        for _ in range(2):  # the second time behind prefix hits
            for (tokens, ref), expected in zip(asked, together, strict=True):
                name = engine.add(tokens, GREEDY, adapter=ref)
                engine.finish()
                assert bits([engine.output(name)]) == [expected]


@SIZES
@WHOLE_EXPERTS
@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_is_that_of_one_rank(models: Models, name: str, size: int, whole_experts: bool) -> None:
    asked = [(tokens, None) for tokens in prompts()]
    check(models(name), asked, size, enable_expert_parallel=whole_experts, **BOUNDS)


@SIZES
@WHOLE_EXPERTS
@pytest.mark.parametrize("name", ["llama", "few words", "mixtral", "qwen2_moe"])
def test_an_adapter_adds_what_it_adds_on_one_rank(
    models: Models, tmp_path: Path, name: str, size: int, whole_experts: bool
) -> None:
    ref = Made(models(name), tmp_path / "it").everywhere().save()
    asked = [(tokens, one) for tokens in prompts(vocab=90) for one in (ref, None)]
    check(models(name), asked, size, enable_expert_parallel=whole_experts, **ADAPTED)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ["llama", "few words", "mixtral", "qwen2_moe"])
def test_a_fully_sharded_adapter_adds_what_it_adds_on_one_rank(
    models: Models, tmp_path: Path, name: str, size: int
) -> None:
    """Of ranks that do not divide, too, and of fewer than there are of those that share it."""
    refs = [
        *of_ranks(models(name), tmp_path, 3, 1, 16),
        Made(models(name), tmp_path / "it").everywhere().save(),
    ]
    asked = [(tokens, one) for tokens in prompts(3, vocab=90) for one in (*refs, None)]
    fields = ADAPTED | {"max_loras": 4, "enable_lora_bias": True, "fully_sharded_loras": True}
    check(models(name), asked, size, **fields)


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_holds_its_share_of_a_fully_sharded_adapter(models: Models, tmp_path: Path, size: int) -> None:
    """And half of most without: one matrix of each product whole."""
    (ref,) = of_ranks(models("llama"), tmp_path, 96)
    fields = BOUNDS | {"max_loras": 1, "max_lora_rank": 96, "enable_lora_bias": True}

    def held(**ranked: Any) -> list[int]:
        with engine_of(models("llama"), **fields, **ranked) as engine:
            engine.add([1], GREEDY, adapter=ref)
            engine.finish()
            workers: list[CpuWorker] = getattr(engine, "ranks", [engine.worker])
            return [
                sum(one.nbytes for one in worker._adapters.program._adapters.values() if one is not None)
                for worker in workers
                if worker._adapters is not None
            ]

    (alone,), usual = held(), held(tensor_parallel_size=size)
    shared = held(tensor_parallel_size=size, fully_sharded_loras=True)
    assert len(usual) == len(shared) == size
    assert all(one > 0.6 * alone for one in usual)
    assert all(one < 1.2 * alone / size for one in shared)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_company_changes_no_bit_of_a_fully_sharded_adapter(
    models: Models, tmp_path: Path, dtype: str
) -> None:
    refs = [*of_ranks(models("few words"), tmp_path, 3, 1), None]
    asked = [(tokens, one) for tokens in prompts(3, 90) for one in refs]
    fields = {
        "dtype": dtype,
        "enable_lora_bias": True,
        "fully_sharded_loras": True,
        "tensor_parallel_size": 3,
    }
    check_company(models("few words"), asked, **(ADAPTED | fields))


@SIZES
@pytest.mark.parametrize("form", ["whole", "new", "factors"])
@pytest.mark.parametrize("name", ["llama", "few words"])
def test_rows_of_an_adapters_own_are_those_of_one_rank(
    models: Models, tmp_path: Path, name: str, form: str, size: int
) -> None:
    """Some of them of tokens of each rank."""
    base = models(name)
    vocab = SMALL["vocab_size"] if name == "few words" else VOCABULARY
    changed = (3, vocab // 2, vocab - 1)
    if form == "whole":
        ref, _ = whole(base, tmp_path / "it", changed=changed)
    elif form == "new":
        ref, _ = new_embeddings(base, tmp_path / "it")
    else:
        made = Resized(base, tmp_path / "it")
        rows = made.resize(changed=changed)
        made.tensors |= {
            f"{PREFIX}{key.replace('.weight', '.base_layer.weight')}": one for key, one in rows.items()
        }
        made.embedding()
        made.linear("lm_head")
        ref = made.save()
    own = [*changed, *range(vocab, vocab + ADDED)]
    asked: list[tuple[list[int], AdapterRef | None]] = [([*one, *own], ref) for one in prompts(3, 90)]
    asked += [(one, None) for one in prompts(2, 90)]
    drawn = check(base, asked, size, **ADAPTED)
    assert any(token >= vocab for one in drawn for token in one.tokens)


def test_company_changes_no_bit_of_an_adapter(models: Models, tmp_path: Path) -> None:
    base = models("few words")
    refs = [
        Made(base, tmp_path / "all").everywhere().save(),
        whole(base, tmp_path / "whole", changed=(3, 88))[0],
        None,
    ]
    asked = [(tokens, one) for tokens in prompts(3, 90) for one in refs]
    check_company(base, asked, tensor_parallel_size=4, **ADAPTED)


@SIZES
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("llama", {"task": "embed"}),
        ("both ways", {"task": "embed"}),
        ("mixtral", {"task": "embed", "override_pooler_config": {"pooling_type": "MEAN"}}),
        ("qwen3", {"hf_overrides": {"classifier_from_token": ["n", "y"]}, "task": "score"}),
    ],
)
def test_vectors_and_scores_are_those_of_one_rank(
    models: Models, name: str, fields: dict[str, Any], size: int
) -> None:
    """Scores are logits of tokens that any rank might have."""
    fields = BOUNDS | {"max_num_batched_tokens": 256} | fields
    if "hf_overrides" in fields:
        fields["hf_overrides"] |= {"method": "from_2_way_softmax"}
    with engine_of(models(name), **fields) as engine:
        alone = engine.pool(prompts())
    with engine_of(models(name), tensor_parallel_size=size, **fields) as engine:
        together = engine.pool(prompts())
        again = [engine.pool([one])[0] for one in prompts()]
    for one, other, single in zip(alone, together, again, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
        assert np.array_equal(other, single)


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_masks_are_the_first_ranks(demo_model: Path, num_drafts: int) -> None:
    """The others draw nothing, and learn what was drawn."""
    tokenizer = load(demo_model)
    schema = {"type": "array", "items": {"enum": list(range(10, 99))}, "minItems": 2, "maxItems": 4}
    grammar = structure.of_json_schema(schema, structure.JsonStyle(any_whitespace=False))
    params = SamplingParams(40, temperature=0.0, stop_token_ids=tokenizer.eos_token_ids)
    prompt = tokenizer.encode("Write some JSON:\n")

    def written(**fields: Any) -> list[list[int]]:
        settings = {"dtype": "float32", "max_model_len": 256, "num_blocks": 100, "num_drafts": num_drafts}
        with engine_of(demo_model, **settings, **fields) as engine:
            names = [engine.add(prompt, params, grammar=one) for one in (grammar, "")]
            engine.finish()
            return [engine.output(name).tokens for name in names]

    assert written(tensor_parallel_size=2) == written()


def test_where_no_experts_are_given_out_that_is_said(models: Models) -> None:
    for name, size, why in (("llama", 2, "LlamaForCausalLM has none"), ("mixtral", 1, "one rank has all")):
        fields = BOUNDS | {"tensor_parallel_size": size, "enable_expert_parallel": True}
        with engine_of(models(name), **fields) as engine:
            assert any(
                f"--enable-expert-parallel has no effect: {why}" in one for one in engine.start.warnings
            )


def test_memory_of_ranks_serves_again_behind_a_sleep(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_kernels.cpu.ranks.RANKS_BYTES", 1 << 20)  # of which two thirds are taken
    work = [(tokens, GREEDY) for tokens in prompts(2)]
    with engine_of(
        models("mixtral"), tensor_parallel_size=2, enable_expert_parallel=True, **BOUNDS
    ) as engine:
        before = [one.tokens for one in engine.run(work)]
        for _ in range(2):
            assert engine.call("sleep", "2") == "ok"
            assert engine.call("wake_up", "weights", "kv_cache") == "ok"
            assert [one.tokens for one in engine.run(work)] == before


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "settings", "why"),
    [
        ("llama", {"model_impl": "transformers"}, "LlamaForCausalLM is run by transformers' code"),
        ("opt", {}, "OPTForCausalLM is run by transformers' code"),
    ],
)
def test_what_transformers_code_runs_is_on_one_rank(
    tiny_models: Models, kind: str, settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(LoadError, match=f"--tensor-parallel-size 2: {why}") as refused:
        engine_of(tiny_models(kind), tensor_parallel_size=2, **BOUNDS, **settings)
    assert refused.value.argument == "tensor_parallel_size"

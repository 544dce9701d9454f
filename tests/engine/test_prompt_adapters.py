"""A prompt adapter's rows stand before the prompt, as PEFT puts them there, and count for nothing else."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from factory import make_model
from local_engine import LocalEngine, Output
from prompt_folder import prompt_folder
from slipway.engine.messages import NO_TOKEN, AdapterRef, LoadAdapter
from slipway.engine.params import Processor, SamplingParams
from slipway.engine.replay import read_record, replay
from slipway.engine.start import Start
from slipway.load.errors import LoadError
from slipway.load.virtual_tokens import count_virtual_tokens

BOUNDS: dict[str, object] = {
    "max_model_len": 256,
    "num_blocks": 200,
    "dtype": "float32",
    "enable_prefix_caching": False,
    "max_prompt_adapters": 2,
    "max_prompt_adapter_token": 40,
}
GREEDY = SamplingParams(8, temperature=0.0, num_logprobs=2, num_prompt_logprobs=0)
PROMPT = [17, 4, 200, 77, 31, 8, 90, 5, 222]


def ref(folder: Path, count: int | None = None) -> AdapterRef:
    """What the engine is told of an adapter: a number of its own, and what its configuration says."""
    count = count_virtual_tokens(folder.name, folder) if count is None else count
    return AdapterRef(1 + zlib.crc32(str(folder).encode()), folder.name, str(folder), count)


def answer(engine: LocalEngine, folder: Path | None, tokens: list[int] = PROMPT, **fields: Any) -> Output:
    name = engine.add(tokens, fields.pop("params", GREEDY), adapter=folder and ref(folder), **fields)
    engine.finish()
    return engine.output(name)


def by_transformers(
    model: Path, folder: Path, tokens: list[int], steps: int
) -> tuple[list[int], list[float]]:
    """The greedy output, and the log-probabilities of the prompt behind its first token and of the output."""
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval().requires_grad_(False)
    rows = torch.from_numpy(load_file(folder / "adapter_model.safetensors")["prompt_embeddings"])[None]
    known = list(tokens)
    while True:
        embedded = torch.cat([rows, reference.get_input_embeddings()(torch.tensor([known]))], dim=1)
        logprobs = reference(inputs_embeds=embedded).logits[0].log_softmax(-1)[rows.shape[1] :]
        if len(known) == len(tokens) + steps:
            told = logprobs[:-1].gather(1, torch.tensor(known[1:])[:, None])
            return known[len(tokens) :], told[:, 0].tolist()
        known.append(int(logprobs[-1].argmax()))


@pytest.mark.torch
@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_rows_stand_before_the_prompt_as_peft_puts_them(tmp_path: Path, architecture: str) -> None:
    """PEFT puts them before what the model's own embedding module gives."""
    sizes = {"head_dim": 24} if architecture == "gemma3_text" else {}  # of which there is native code
    model = make_model(architecture, tmp_path / "model", **sizes)
    folder = prompt_folder(tmp_path / "tuned", 7)
    with LocalEngine(model, **BOUNDS) as engine:
        found, plain = answer(engine, folder), answer(engine, None)
    tokens, logprobs = by_transformers(model, folder, PROMPT, GREEDY.max_tokens)
    assert found.tokens == tokens != plain.tokens
    assert found.prompt_logprobs[0] is None
    told = [one.logprob for one in (*found.prompt_logprobs[1:], *found.logprobs) if one is not None]
    assert len(found.prompt_logprobs) == len(PROMPT)
    assert np.allclose(told, logprobs, atol=1e-4)


def test_neither_company_nor_chunks_nor_preemption_nor_places_change_a_bit(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    model = tiny_models("llama")
    folders = [prompt_folder(tmp_path / str(tokens), tokens, seed=tokens) for tokens in (1, 5, 33)]
    draw = random.Random(4)
    asked = [
        ([draw.randrange(512) for _ in range(draw.randint(1, 60))], folder)
        for _ in range(4)
        for folder in (*folders, None)
    ]
    params = SamplingParams(20, num_logprobs=1, temperature=0.9, seed=3, frequency_penalty=0.3)

    def outputs(engine: LocalEngine) -> list[Output]:
        names = [engine.add(tokens, params, adapter=folder and ref(folder)) for tokens, folder in asked]
        engine.finish()
        return [engine.output(name) for name in names]

    with LocalEngine(model, **(BOUNDS | {"max_prompt_adapters": 3})) as engine:
        alone = [answer(engine, folder, tokens, params=params) for tokens, folder in asked]
    axes: tuple[dict[str, object], ...] = (
        {"max_prompt_adapters": 1, "max_num_batched_tokens": 7},
        {"num_blocks": 16, "max_num_batched_tokens": 64, "enable_prefix_caching": True},
        {"num_drafts": 3, "prompt_lookup_max": 3},
    )
    for axis in axes:
        with LocalEngine(model, **(BOUNDS | axis)) as engine:
            together = outputs(engine)
        assert [one.logprobs for one in together] == [one.logprobs for one in alone]
        assert bool(sum(one.num_preemptions for one in together)) == ("num_blocks" in axis)


def test_prefix_blocks_are_shared_within_an_adapter_and_count_real_tokens(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    folders = [prompt_folder(tmp_path / name, 20) for name in ("one", "other")]  # of the same rows
    plain = SamplingParams(4, temperature=0.0)
    with LocalEngine(tiny_models("llama"), **(BOUNDS | {"enable_prefix_caching": True})) as engine:
        asked = [*folders, None, folders[0], folders[0]]
        prompts = [list(range(40))] * 4 + [[500]]
        found = [
            answer(engine, folder, tokens, params=plain)
            for folder, tokens in zip(asked, prompts, strict=True)
        ]
        counted = sum(one.prompt_tokens for one in engine.hub.stats)
    assert [one.num_cached_tokens for one in found] == [0, 0, 0, 28, 0]  # three blocks, less 20 virtual ones
    assert counted == 4 * 40 + 1


@pytest.mark.torch
def test_logits_processors_see_the_prompt_that_was_sent(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    params = SamplingParams(2, temperature=0.0, processors=(Processor("row_processors.counting"),))
    with LocalEngine(tiny_models("llama"), **BOUNDS, processors=True) as engine:
        found = answer(engine, prompt_folder(tmp_path / "tuned"), params=params)
    assert found.tokens == [len(PROMPT), len(PROMPT) + 2]


def test_a_record_with_prompt_adapters_plays_back_to_the_bit(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    record, folder = tmp_path / "record", prompt_folder(tmp_path / "tuned")
    with LocalEngine(tiny_models("llama"), **BOUNDS, record=str(record)) as engine:
        answer(engine, folder)
    (folder / "adapter_model.safetensors").unlink()
    config, steps = read_record(record)
    assert replay(Start.of(config).worker, steps) is None


ROWS = np.zeros((5, 64), np.float32)


@pytest.mark.parametrize(
    ("config", "tensors", "known", "message"),
    [
        ({}, {}, 6, "has 5 virtual tokens, and had 6 when the server found it"),
        ({"num_virtual_tokens": 41}, {}, 0, "has 41 virtual tokens, and --max-prompt-adapter-token is 40"),
        (
            {"num_virtual_tokens": 4},
            {},
            0,
            r"of shape \[5, 64\]; this model takes \[4, 64\]",
        ),
        ({}, {"prompt_embeddings": ROWS[:, :32]}, 0, r"of shape \[5, 32\]; this model takes \[5, 64\]"),
        ({}, {"prompt_embeddings": ROWS + np.inf}, 0, "that are infinite, or no numbers"),
        ({}, {"lm_head.weight": ROWS}, 0, "has a tensor lm_head.weight; only prompt_embeddings are put"),
        (
            {"peft_type": "PREFIX_TUNING"},
            {},
            0,
            "is of the kind PREFIX_TUNING; PROMPT_TUNING and",
        ),
        ({"num_virtual_tokens": 0}, {}, 5, "config.json that says that num_virtual_tokens is 0, and"),
        ({"num_transformer_submodules": 2}, {}, 0, "is for 2 parts of a model; a decoder has one"),
    ],
)
def test_what_cannot_be_served_is_named_and_ends_its_requests_alone(
    tiny_models: Callable[[str], Path],
    tmp_path: Path,
    config: dict[str, Any],
    tensors: dict[str, Any],
    known: int,
    message: str,
) -> None:
    folder = prompt_folder(tmp_path / "mine", **config)
    if tensors:
        save_file({"prompt_embeddings": ROWS} | tensors, folder / "adapter_model.safetensors")
    named = ref(folder, known or int(config.get("num_virtual_tokens", 5)))
    with LocalEngine(tiny_models("llama"), **BOUNDS) as engine:
        name, other = (engine.add(PROMPT, GREEDY, adapter=one) for one in (named, None))
        engine.tell(LoadAdapter(1, named))
        engine.finish()
        (delta,) = engine.hub.deltas[name]
        assert delta.unfit
        assert engine.output(other).finish_reason == "length"
    assert re.search(message, delta.error)
    assert engine.hub.replies[1] == delta.error


def test_virtual_tokens_stand_before_a_prompt_of_embeddings_too(
    tiny_models: Callable[[str], Path], tmp_path: Path
) -> None:
    model, folder = tiny_models("llama"), prompt_folder(tmp_path / "tuned")
    table = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    plain = SamplingParams(8, temperature=0.0, num_logprobs=2)
    with LocalEngine(model, **BOUNDS, enable_prompt_embeds=True) as engine:
        expected = answer(engine, folder, params=plain)
        given = [NO_TOKEN] * len(PROMPT)
        found = answer(engine, folder, given, params=plain, prompt_embeds=table[PROMPT].tobytes())
    assert found.logprobs == expected.logprobs


@pytest.mark.parametrize(
    ("fields", "message", "argument"),
    [
        pytest.param(
            {"model_impl": "transformers"},
            "transformers' code embeds tokens alone",
            "enable_prompt_adapter",
            marks=pytest.mark.torch,
        ),
        ({"task": "embed"}, "would pool those of virtual tokens", "enable_prompt_adapter"),
        ({"max_prompt_adapter_token": 255}, "leaves no room for a prompt", "max_prompt_adapter_token"),
    ],
)
def test_where_none_can_stand_before_a_prompt_the_start_ends(
    tiny_models: Callable[[str], Path], fields: dict[str, object], message: str, argument: str
) -> None:
    with pytest.raises(LoadError, match=message) as refused:
        LocalEngine(tiny_models("llama"), **(BOUNDS | fields))
    assert refused.value.argument == argument

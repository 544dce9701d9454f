"""Features together: each pair gives what the table of the manual says, to the bit what it gives alone.

All at once, then pair by pair: where the first fails, the second says whose fault it is. What is refused is
in tests/api/test_feature_refusals.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from ml_dtypes import bfloat16
from test_draft_models import drafting
from test_given_rows import embedded
from test_processors import named
from test_sleep import BOTH

import followers
from adapter_runs import ref
from counted import Counted
from factory import model_folders
from local_engine import Output
from local_ranks import engine_of, in_threads
from lora_folder import lora_folder
from random_heads import guessing, write_heads
from slipway.engine.messages import NO_TOKEN
from slipway.engine.params import PoolingParams, SamplingParams
from slipway.engine.replay import read_record, replay
from slipway.engine.start import Start
from slipway.features import DRAFTS, FEATURES, Together, together
from slipway.text import structure
from slipway.text.open import load

Settings = dict[str, Any]
Asks = frozenset[str]
"""Features that one request asks for."""

RAISED, RAISED_BY = 77, 6.5
"""A token that processors make likelier, and by how much its logit is raised."""
BASE: Settings = {
    "dtype": "bfloat16",
    "max_model_len": 128,
    "num_blocks": 800,
    "max_num_batched_tokens": 4096,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": False,
}
SERVED: dict[str, Settings] = {
    "prefix cache": {"enable_prefix_caching": True},
    "chunked prefill": {"enable_chunked_prefill": True, "max_num_batched_tokens": 32},
    "preemption": {"num_blocks": 8},
    "priorities": {"scheduling_policy": "priority"},
    "LoRA": {"max_loras": 1},
    "n-grams": {"num_drafts": 4, "prompt_lookup_min": 1},
    "prompt embeddings": {"enable_prompt_embeds": True},
    "packed weights": {"quantization": "int4"},
    "fp8 KV cache": {"kv_cache_dtype": "fp8"},
    "logits processors": {"processors": True},
    "tensor parallelism": {"tensor_parallel_size": 2},
    "pipeline parallelism": {"pipeline_parallel_size": 2},
}
"""By settings alone."""
WITH_FILES = (*DRAFTS[1:], "sliding windows", "sleep", "recording")
FOLLOWERS = {"EAGLE": "eagle", "EAGLE-3": "eagle3", "MTP": "two mtp layers"}
OF_THE_MODEL = frozenset(("sliding windows", "packed weights", "fp8 KV cache", "tensor parallelism"))
"""What changes every output."""
ASKED: dict[str, Settings] = {
    "priorities": {},
    "LoRA": {},
    "grammar": {},
    "tools": {},
    "log-probabilities": {"num_logprobs": 2},
    "prompt log-probabilities": {"num_prompt_logprobs": 1},
    "prompt embeddings": {},
    "logits processors": {"processors": (named("raised", RAISED, by=RAISED_BY),)},
}
"""By requests, with what that changes of their parameters."""
FREE = frozenset(("priorities", "log-probabilities", "prompt log-probabilities", "prompt embeddings"))
"""Which change no token."""
DRAWN_ALIKE = FREE | {"LoRA"}
REGEX = "[ab]{4,12}c"
TOOLS = {"look": {"type": "object", "properties": {"at": {"enum": ["sky", "sea"]}}, "required": ["at"]}}
GRAMMARS = {"grammar": structure.of_regex(REGEX), "tools": structure.of_tool_calls(TOOLS)}
SERVING = (*SERVED, *WITH_FILES)
POOLED = tuple(name for name in SERVING if together(name, "pooling") is Together.RUN)


def runs(*names: str) -> bool:
    return all(together(*pair) is not Together.REFUSED for pair in combinations(names, 2))


def work() -> list[Asks]:
    """Nothing, each alone, and each pair that one request may ask for."""
    pairs = [frozenset(pair) for pair in combinations(ASKED, 2) if together(*pair) is Together.RUN]
    return [frozenset(), *(frozenset((one,)) for one in ASKED), *pairs]


WORK = work()


def prompt(asks: Asks) -> list[int]:
    """It repeats itself, and begins like the others."""
    number = sum(1 << place for place, name in enumerate(ASKED) if name in asks - DRAWN_ALIKE)
    return [*range(100, 140), *([150 + number, 160 + number, 170] * 6)]


def params(asks: Asks) -> SamplingParams:
    drawn = {} if len(asks - DRAWN_ALIKE) % 2 else {"temperature": 0.8, "top_p": 0.9, "seed": 5}
    changes = {key: value for name in asks for key, value in ASKED[name].items()}
    return SamplingParams(16, **({"temperature": 0.0} | drawn | changes))


Folders = Callable[[str], Path]
Reference = Callable[[Asks], dict[Asks, Output]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Of the models, heads and adapters by what they are for; each is made when it is first asked for."""
    root = tmp_path_factory.mktemp("features")
    variants = {
        "plain": ("llama", {}),
        "draft model": ("llama", {"num_hidden_layers": 2, "seed": 3}),
        "sliding windows": ("mistral", {"head_dim": 16, "sliding_window": 20}),
    }
    models = model_folders(root, variants)

    @cache
    def folder(name: str) -> Path:
        if name in variants:
            return models(name)
        if name.startswith("LoRA of "):
            return lora_folder(models(name.removeprefix("LoRA of ")), root / name)
        if name in FOLLOWERS:
            return followers.write_follower(FOLLOWERS[name], root / name)
        return write_heads(name.lower(), root / name)

    return folder


class Case:
    """An engine with some features, and what became of its requests."""

    def __init__(self, folders: Folders, features: Asks, place: Path | None = None) -> None:
        self.features, self.folders = features, folders
        self.base = "sliding windows" if "sliding windows" in features else "plain"
        self.record = None if place is None or "recording" not in features else place / "run.record"
        settings = BASE | {key: value for name in features for key, value in SERVED.get(name, {}).items()}
        if "draft model" in features:
            settings |= drafting(folders("draft model"))
        for name in ("Medusa", "MLP speculator"):
            if name in features:
                settings |= guessing(name.lower(), folders(name))
        for name, kind in FOLLOWERS.items():
            if name in features:
                settings |= followers.guessing(kind, folders(name), 3)
        if "pooling" in features:
            settings |= {"task": "embed"}
        if "preemption" in features and len(features) > 2:  # requests come one by one, and want fewer pages
            pages = 6 if "pipeline parallelism" in features else 7
            settings |= {"num_blocks": pages, "max_model_len": 16 * pages}
        if self.record is not None:
            settings["record"] = str(self.record)
        self.engine = engine_of(folders(self.base), **settings)
        self.engine.core.scheduler.guessing = None  # drafts go on, however few are accepted
        self.num_verified = self.num_preemptions = self.num_cached = 0
        self.closed = False

    def __enter__(self) -> Case:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.engine.core.executor.close()
        self.closed = True

    def fields(self, asks: Asks, tokens: list[int]) -> Settings:
        fields: Settings = {"priority": len(asks)} if "priorities" in asks else {}
        if "LoRA" in asks:
            fields["adapter"] = ref(self.folders(f"LoRA of {self.base}"), 1)
        if "prompt embeddings" in asks:
            rows = np.frombuffer(embedded(self.folders(self.base), tokens), np.float32)
            fields["prompt_embeds"] = rows.astype(bfloat16).astype(np.float32).tobytes()
        for name in asks & GRAMMARS.keys():
            fields["grammar"] = GRAMMARS[name]
        return fields

    def add(self, asks: Asks) -> str:
        tokens = prompt(asks)
        fields = self.fields(asks, tokens)
        return self.engine.add(
            [NO_TOKEN] * len(tokens) if "prompt embeddings" in asks else tokens, params(asks), **fields
        )

    def alone(self, items: list[Asks]) -> list[Output]:
        return [self.answers([one])[0] for one in items]

    def answers(self, items: list[Asks]) -> list[Output]:
        """To all at once; of the counts, which depend on company, only the sums are kept."""
        names = [self.add(one) for one in items]
        self.engine.finish()
        found = [self.engine.output(name) for name in names]
        self.num_preemptions += sum(one.num_preemptions for one in found)
        self.num_cached += sum(one.num_cached_tokens for one in found)
        return [replace(one, num_preemptions=0, num_cached_tokens=0) for one in found]

    def vectors(self, prompts: list[list[int]], first: int = 0) -> list[bytes]:
        """What prompts are pooled to, those of odd numbers by the adapter where there is one."""
        names = []
        for number, tokens in enumerate(prompts, first):
            asks = frozenset(("LoRA",)) & self.features if number % 2 else frozenset()
            fields = self.fields(asks, tokens) | {"priority": number % 3, "pooling": PoolingParams()}
            names.append(self.engine.add(tokens, SamplingParams(1), **fields))
        self.engine.finish()
        found = []
        for name in names:
            found.append(self.engine.pooled(name).tobytes())
            self.num_cached += self.engine.last.num_cached_tokens
        return found

    def twice(self, ask: Callable[[], list[Any]], expected: list[Any]) -> None:
        """And a third time where the engine sleeps: each but the first with prefix hits, or behind a sleep of
        one level. What was recorded is played back."""
        for level in ("1", "2", "") if "sleep" in self.features else ("", ""):
            counted = Counted(self.engine)
            assert ask() == expected
            self.num_verified += counted.accepted + counted.rejected
            self.engine.drawing._model = counted._model  # type: ignore[attr-defined]
            if level:
                assert self.engine.call("sleep", level) == "ok"
                assert self.engine.call("wake_up", *BOTH) == "ok"
        assert bool(self.num_cached) == ("prefix cache" in self.features)
        if "preemption" in self.features:
            assert self.num_preemptions + self.engine.preemptions > 0
        if not self.features.isdisjoint(DRAFTS):
            assert self.num_verified > 20
        if self.record is not None:
            self.close()
            config, steps = read_record(self.record)
            assert steps
            with in_threads(), closing(Start.of(config).worker) as worker:
                assert replay(worker, steps) is None


@pytest.fixture(scope="module")
def reference(folders: Folders) -> Reference:
    """What each request gives alone, of a model with these features: whole prompts, no drafts."""
    every = frozenset(("LoRA", "prompt embeddings", "logits processors"))

    @cache
    def found(of_the_model: Asks) -> dict[Asks, Output]:
        with Case(folders, every | of_the_model) as case:
            return dict(zip(WORK, case.alone(WORK), strict=True))

    return found


def expected_of(reference: Reference, features: Asks) -> dict[Asks, Output]:
    """Of the requests that a server with these features takes."""
    served = features | (ASKED.keys() - SERVED.keys()) | {"priorities"}
    return {asks: one for asks, one in reference(features & OF_THE_MODEL).items() if asks <= served}


def test_every_feature_is_run() -> None:
    assert {*SERVING, *ASKED, "pooling"} == {feature.name for feature in FEATURES}


@pytest.mark.torch
def test_requests_that_ask_for_two_get_what_each_gives(folders: Folders, reference: Reference) -> None:
    found = reference(frozenset())
    tokenizer = load(folders("plain"))
    texts = {asks: tokenizer.decode(one.tokens) for asks, one in found.items()}
    for asks, one in found.items():
        without = found[asks - FREE]
        assert one.tokens == without.tokens, asks
        assert len(one.logprobs) == (len(one.tokens) if "log-probabilities" in asks else 0)
        assert len(one.prompt_logprobs) == (len(prompt(asks)) if "prompt log-probabilities" in asks else 0)
        if "grammar" in asks:
            assert set(texts[asks].rstrip("c")) <= {*"ab"}, texts[asks]
        if "tools" in asks:
            assert texts[asks].startswith('[{"name"'), texts[asks]
        if "LoRA" in asks and asks.isdisjoint(("tools", "grammar")):
            assert one.tokens != found[asks - {"LoRA"}].tokens, asks
        if "logits processors" in asks and asks.isdisjoint(("tools", "grammar")):
            assert RAISED in one.tokens
    bias = {"logit_bias": ((RAISED, RAISED_BY),), "processors": ()}
    with Case(folders, frozenset(("LoRA", "prompt embeddings"))) as case:
        for asks in (one for one in WORK if "logits processors" in one):
            biased = msgspec.structs.replace(params(asks), **bias)
            tokens = prompt(asks)
            given = "prompt embeddings" in asks
            name = case.engine.add(
                [NO_TOKEN] * len(tokens) if given else tokens, biased, **case.fields(asks, tokens)
            )
            case.engine.finish()
            assert case.engine.output(name).tokens == found[asks].tokens


@pytest.mark.torch
@pytest.mark.parametrize(
    ("drafts", "without"),
    [
        ("n-grams", "tensor parallelism"),
        *(pytest.param(one, "tensor parallelism", marks=pytest.mark.slow) for one in DRAFTS[1:]),
        *[(one, "") for one in DRAFTS],
    ],
)
def test_all_at_once_give_what_each_request_gives_alone(
    folders: Folders, reference: Reference, drafts: str, without: str, tmp_path: Path
) -> None:
    every = (name for name in SERVING if name in DRAFTS or together(name, drafts) is not Together.REFUSED)
    features = frozenset(every) - {*DRAFTS, without} | {drafts}
    expected = expected_of(reference, features)
    assert len(expected) == len(WORK)
    with Case(folders, features, tmp_path) as case:
        case.twice(lambda: case.answers(WORK), [*expected.values()])


def pairs_with(one: str) -> Iterator[Asks]:
    """Each pair once: with those that come later."""
    later = SERVING[SERVING.index(one) :]
    return (frozenset((one, other)) for other in later if runs(one, other))


@pytest.mark.slow
@pytest.mark.parametrize("one", SERVING)
def test_each_pair_gives_what_each_request_gives_alone(
    folders: Folders, reference: Reference, one: str, tmp_path: Path
) -> None:
    for number, features in enumerate(pairs_with(one)):
        place = tmp_path / str(number)
        place.mkdir()
        expected = expected_of(reference, features)
        with Case(folders, features, place) as case:
            case.twice(lambda case=case, items=[*expected]: case.answers(items), [*expected.values()])  # type: ignore[misc]


def prompts() -> list[list[int]]:
    """Ragged, with a common beginning."""
    return [[*range(100, 140), *range(200, 204 + 9 * number)] for number in range(8)]


@pytest.fixture(scope="module")
def vectors(folders: Folders) -> Callable[[Asks], list[bytes]]:
    """What each prompt is pooled to alone, by a model with these features, and with adapters or without."""

    @cache
    def found(features: Asks) -> list[bytes]:
        with Case(folders, features | {"pooling"}) as case:
            return [case.vectors([one], number)[0] for number, one in enumerate(prompts())]

    return found


def pools_as(vectors: Callable[[Asks], list[bytes]], folders: Folders, features: Asks, place: Path) -> None:
    expected = vectors(features & (OF_THE_MODEL | {"LoRA"}))
    with Case(folders, features | {"pooling"}, place) as case:
        case.twice(lambda: case.vectors(prompts()), expected)


def test_all_at_once_pool_as_each_alone(
    folders: Folders, vectors: Callable[[Asks], list[bytes]], tmp_path: Path
) -> None:
    every, plain = vectors(OF_THE_MODEL | {"LoRA"}), vectors(OF_THE_MODEL)
    assert [one == other for one, other in zip(every, plain, strict=True)] == [True, False] * 4
    pools_as(vectors, folders, frozenset(POOLED), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("one", POOLED)
def test_what_pools_does_so_with_each_feature(
    folders: Folders, vectors: Callable[[Asks], list[bytes]], one: str, tmp_path: Path
) -> None:
    pools_as(vectors, folders, frozenset((one,)), tmp_path)


@pytest.mark.parametrize("drafts", DRAFTS)
def test_nothing_drafts_for_what_pools(folders: Folders, drafts: str) -> None:
    assert together(drafts, "pooling") is Together.ONE
    with Case(folders, frozenset((drafts, "pooling"))) as case:
        (warning,) = (text for text in case.engine.start.warnings if "Speculation" in text)
        assert "has no effect: --task embed" in warning
        assert case.engine.start.plan.draft is None
        assert case.vectors(prompts()[:1])

"""Which features run together, pair by pair: what the manual shows, and what tests hold the server to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import combinations, product


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    asked: str
    """How it is asked for, in Markdown."""


class Together(Enum):
    """What becomes of two features; the value is the mark in the table."""

    RUN = "yes"
    """Each gives what it gives without the other."""
    ONE = "one"
    """One of them has no effect; the other gives what it gives alone."""
    REFUSED = "no"
    """At the start, or with status 400."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Of each feature of one side with each of the other."""

    one: tuple[str, ...]
    other: tuple[str, ...]
    together: Together
    why: str

    @property
    def pairs(self) -> frozenset[frozenset[str]]:
        return frozenset(frozenset(pair) for pair in product(self.one, self.other) if len(set(pair)) == 2)


FEATURES = (
    Feature("prefix cache", "`--enable-prefix-caching`, the default"),
    Feature("chunked prefill", "`--enable-chunked-prefill`, the default"),
    Feature("preemption", "the KV cache has no page left"),
    Feature("priorities", "`--scheduling-policy priority` and `priority`"),
    Feature("LoRA", "`--enable-lora` and the adapter as `model`"),
    Feature("n-grams", '`"method": "ngram"` of `--speculative-config`'),
    Feature("draft model", '`"method": "draft_model"`'),
    Feature("Medusa", '`"method": "medusa"`'),
    Feature("MLP speculator", '`"method": "mlp_speculator"`'),
    Feature("EAGLE", '`"method": "eagle"`'),
    Feature("EAGLE-3", '`"method": "eagle3"`'),
    Feature("MTP", '`"method": "mtp"`'),
    Feature("grammar", "`response_format`, `structured_outputs`, `guided_*`"),
    Feature("tools", "`tools` and `tool_choice`"),
    Feature("log-probabilities", "`logprobs`"),
    Feature("prompt log-probabilities", "`prompt_logprobs`"),
    Feature("prompt embeddings", "`--enable-prompt-embeds` and `prompt_embeds`"),
    Feature("sliding windows", "the model"),
    Feature("packed weights", "the checkpoint, or `--quantization`"),
    Feature("fp8 KV cache", "`--kv-cache-dtype fp8`"),
    Feature("tensor parallelism", "`--tensor-parallel-size`"),
    Feature("pipeline parallelism", "`--pipeline-parallel-size`"),
    Feature("sleep", "`--enable-sleep-mode`, `/sleep` and `/wake_up`"),
    Feature("recording", "`SLIPWAY_RECORD`"),
    Feature("logits processors", "`--logits-processor-pattern` and `logits_processors`"),
    Feature("pooling", "`--task embed`, `classify`, `score` or `reward`"),
)
DRAFTS = ("n-grams", "draft model", "Medusa", "MLP speculator", "EAGLE", "EAGLE-3", "MTP")
OF_OUTPUT = ("grammar", "log-probabilities", "prompt log-probabilities", "logits processors")

LIMITS = (
    Limit(DRAFTS, DRAFTS, Together.REFUSED, "`--speculative-config` has one `method`"),
    Limit(
        ("logits processors",),
        DRAFTS,
        Together.ONE,
        "requests with processors verify no drafts, which their code has not seen; others do",
    ),
    Limit(
        ("prompt embeddings",),
        ("draft model", "EAGLE", "EAGLE-3", "MTP"),
        Together.ONE,
        "what drafts reads tokens: prompts without them get no drafts, and others do",
    ),
    Limit(
        ("grammar",),
        ("tools",),
        Together.ONE,
        "a call that has to come follows its tool's schema, and an answer with a form holds no call",
    ),
    Limit(
        ("EAGLE-3",),
        ("pipeline parallelism",),
        Together.REFUSED,
        "it reads rows of layers on other stages, and guesses on the last one",
    ),
    Limit(
        ("pooling",),
        DRAFTS,
        Together.ONE,
        "there are no tokens to guess, which the start says",
    ),
    Limit(
        ("pooling",),
        ("tools",),
        Together.ONE,
        "the chat template is told of `tools`, and nothing calls them: `tool_choice` is refused",
    ),
    Limit(
        ("pooling",),
        ("preemption",),
        Together.ONE,
        "a prompt starts when all its pages are free, and nothing takes them",
    ),
    Limit(("pooling",), OF_OUTPUT, Together.REFUSED, "nothing is written, and no token drawn"),
    Limit(("pooling",), ("prompt embeddings",), Together.REFUSED, "inputs are texts or tokens"),
    Limit(
        ("prompt embeddings",),
        ("prompt log-probabilities",),
        Together.REFUSED,
        "such a prompt has no tokens",
    ),
    Limit(("prompt embeddings",), ("tools",), Together.REFUSED, "tools are called in a chat"),
)
"""All pairs that are not named here run."""


def pairs() -> Iterator[tuple[str, str]]:
    """Of features that are not the same, each once."""
    return combinations((feature.name for feature in FEATURES), 2)


def limit_of(one: str, other: str) -> Limit | None:
    """What keeps a pair from running; None: it runs."""
    pair = frozenset((one, other))
    return next((limit for limit in LIMITS if pair in limit.pairs), None)


def together(one: str, other: str) -> Together:
    limit = limit_of(one, other)
    return Together.RUN if limit is None else limit.together


HEAD = """\
<!-- Generated from slipway.features by `make generate`. -->
# Which features run together

On CPU the tests run each pair of these features, or have it refused. *yes*: each gives what it gives without
the other, to the bit. *one*: one of them has no effect, and the other gives what it gives alone. *no*: the
start, or the request with status 400, is refused.

| feature | asked for by |
| --- | --- |
{features}

## Pairs

The columns are the features by their numbers.

{table}

## Why not

| pair | | because |
| --- | --- | --- |
{limits}

Prompt embeddings and logits processors run on CUDA, too; what a device cannot do yet is refused at the start
with its reason. Further limits are those of a model or a checkpoint: [models](models.md),
[adapters](adapters.md), [pooling](pooling.md), [speculation](serving.md#speculation).
"""


def manual() -> str:
    """The page docs/features.md."""
    names = [feature.name for feature in FEATURES]
    numbers = range(1, len(names) + 1)
    features = "\n".join(
        f"| {number} {feature.name} | {feature.asked} |"
        for number, feature in zip(numbers, FEATURES, strict=True)
    )
    rows = [f"| | {' | '.join(map(str, numbers))} |", f"| --- |{' --- |' * len(names)}"]
    for number, one in zip(numbers, names, strict=True):
        marks = ["" if one == other else together(one, other).value for other in names]
        rows.append(f"| {number} {one} | {' | '.join(marks)} |")
    limits = "\n".join(
        f"| {', '.join(limit.one)} × {', '.join(limit.other)} | {limit.together.value} | {limit.why} |"
        for limit in LIMITS
    )
    return HEAD.format(features=features, table="\n".join(rows), limits=limits)

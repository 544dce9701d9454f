"""Each flag of the newest vLLM acts, is taken with a reason, or is refused with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipway.args import ArgumentError, resolve
from slipway.args.foreign import FOREIGN, SHORT, Foreign, Takes
from slipway.args.schema import ARGUMENTS, SERVE
from slipway.args.status import arguments

NAMES = (Path(__file__).parent / "vllm-0.33.txt").read_text().split()
"""Of `vllm serve` 0.33, from its `EngineArgs` and `FrontendArgs`."""
VALUES = {Takes.NOTHING: (), Takes.ONE: ("7",), Takes.SEVERAL: ("7", "8")}


def resolved(*words: str, **environ: str) -> Any:
    return resolve(["m", *words], environ)


def test_each_flag_has_a_disposition_and_each_disposition_a_flag() -> None:
    assert len(NAMES) == 321
    assert [name for name in NAMES if SERVE.find(name) is None and name not in FOREIGN] == []
    assert sorted(FOREIGN.keys() - set(NAMES)) == []
    assert [name for name in FOREIGN if SERVE.find(name) is not None] == []
    assert {SHORT[name] for name in SHORT} <= FOREIGN.keys()
    assert not SHORT.keys() & SERVE.short.keys()


@pytest.mark.parametrize("row", FOREIGN.values(), ids=lambda row: row.name)
def test_a_flag_that_is_not_ours_is_taken_or_refused_with_its_reason(row: Foreign) -> None:
    words = (row.flag, *VALUES[row.takes], "--seed", "5")
    if row.refused:
        with pytest.raises(ArgumentError, match=f"^{row.flag}, which vLLM has, is refused: ") as caught:
            resolved(*words)
        assert str(caught.value).endswith(f"{row.reason}.")
    else:
        found = resolved(*words)
        assert found["seed"] == 5
        assert [one for one in found.warnings if row.flag in one] == [
            f"{row.flag} has no effect: {row.reason}."
        ]
    assert row.name in {entry.name[2:].replace("-", "_") for entry in arguments()}


@pytest.mark.parametrize(
    "words",
    [
        ("--decode-context-parallel-size", "1"),
        ("-dcp", "1"),
        ("-dcp=1",),
        ("--no-enable-dbo",),
        ("--no-enable-return-routed-experts",),
        ("--logprobs-mode=raw_logprobs",),
        ("--stream-interval", "1"),
        ("--profiler-config", "{}"),
        ("--kv-offloading-size", "0"),
    ],
)
def test_a_value_that_asks_for_nothing_is_taken(words: tuple[str, ...]) -> None:
    assert resolved(*words, "--seed", "5")["seed"] == 5


def test_objects_come_key_by_key_and_in_files(tmp_path: Path) -> None:
    (warning,) = resolved("--kernel-config.moe_backend", "triton", "--kernel-config.x=1").warnings
    assert warning.startswith("--kernel-config has no effect")
    file = tmp_path / "c.yaml"
    file.write_text("kernel-config: {a: 1}\nenable-dbo: true\nssl-ciphers: x\n")
    with pytest.raises(ArgumentError, match="--ssl-ciphers, which vLLM has, is refused"):
        resolved("--config", str(file))
    file.write_text("kernel-config: {a: 1}\nenable-dbo: true\n")
    assert len(resolved("--config", str(file)).warnings) == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--enable-dbo=true",), "it takes no value"),
        (("--ssl-ciphers",), "--ssl-ciphers needs a value"),
        (("--ssl-ciphers", "--seed", "1"), "--ssl-ciphers needs a value"),
        (("--no-ssl-ciphers",), "--no-ssl-ciphers is not an argument"),
        (("--enable-dboo",), "--enable-dboo is not an argument"),
    ],
)
def test_what_is_malformed_is_refused_so(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        resolved(*words)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("--runner", "generate"), {"task": "generate"}),
        (("--runner", "pooling"), {"task": "pooling"}),
        (("--runner", "pooling", "--convert", "classify"), {"task": "classify"}),
        (("--convert", "embed"), {"task": "embed"}),
        (("--runner", "pooling", "--task", "embed"), {"task": "embed"}),
        (("--convert", "none"), {"task": "auto"}),
        (("--pooler-config.pooling_type", "MEAN"), {"override_pooler_config": {"pooling_type": "MEAN"}}),
        (("--pooler-config", '{"normalize": true}'), {"override_pooler_config": {"normalize": True}}),
        (("--optimization-level", "2"), {"compilation_config": {"level": 2}}),
        (("--cudagraph-capture-sizes", "1", "2", "64"), {"cuda_graph_sizes": [1, 2, 64]}),
        (("--max-cudagraph-capture-size", "8"), {"cuda_graph_sizes": [1, 2, 4, 8]}),
        (("--shutdown-timeout", "7"), {"drain_timeout": 7}),
        (
            ("--spec-method", "ngram", "--spec-tokens", "3"),
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        ),
        (("-sc.method", "ngram", "-sc.num_speculative_tokens", "2"), {}),
        (
            ("--structured-outputs-config.backend", "xgrammar"),
            {"guided_decoding_backend": "xgrammar"},
        ),
        (
            ("--structured-outputs-config", '{"reasoning_parser": "qwen3", "disable_any_whitespace": true}'),
            {"reasoning_parser": "qwen3", "guided_decoding_disable_any_whitespace": True},
        ),
        (("--default-chat-template-kwargs", '{"a": 1}'), {"default_chat_template_kwargs": {"a": 1}}),
        (
            ("--disable-access-log-for-endpoints", "/ready,/metrics"),
            {"disable_access_log_for_endpoints": ["/ready", "/metrics"]},
        ),
    ],
)
def test_what_has_another_name_here_acts(words: tuple[str, ...], values: dict[str, Any]) -> None:
    found = resolved(*words)
    for name, value in values.items():
        assert found[name] == value
        assert name in found.given or name == "task"
    assert not [one for one in found.warnings if "old form" in one]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--runner", "draft"), "speculative-config"),
        (("--runner", "generate", "--convert", "embed"), "--convert embed pools, and --runner generate"),
        (("--runner", "generate", "--task", "embed"), "--runner generate contradicts --task embed"),
        (("--shutdown-timeout", "3", "--drain-timeout", "4"), "contradicts --drain-timeout 4"),
        (("--structured-outputs-config.backend", "none-such"), "'none-such' is not one of auto, guidance"),
        (("--structured-outputs-config.enable_in_reasoning", "true"), "has no key 'enable_in_reasoning'"),
        (
            ("--structured-outputs-config.backend", "xgrammar", "--guided-decoding-backend", "outlines"),
            "contradicts --guided-decoding-backend outlines",
        ),
    ],
)
def test_contradictions_are_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        resolved(*words)


def test_no_synonym_is_an_argument_or_another_ones() -> None:
    synonyms = [name for one in ARGUMENTS.values() for name in one.synonyms]
    assert len(set(synonyms)) == len(synonyms)
    assert not set(synonyms) & ARGUMENTS.keys()

"""Low-rank adapters (LoRA) as PEFT saves them: `adapter_config.json`, and tensors in safetensors or `.bin`.

Method: Hu et al. 2021, https://arxiv.org/abs/2106.09685; rank-stabilized: Kalajdzievski 2023.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, sqrt
from pathlib import Path

import numpy as np

from slipway.load.arrays import FP32, Array, DType, Floats, is_float
from slipway.load.config import Config, WrongField, flag, number, positive, table, text, texts
from slipway.load.errors import LoadError
from slipway.load.expert_parameters import expert_parameter, is_expert_parameter, shrinks_output
from slipway.load.folder import read_json
from slipway.load.own_tokens import NOTHING_OWN, WHOLE, NewRows, OwnLimits, open_tensors, read_new_rows
from slipway.load.quantized.tensors import in_type
from slipway.load.weight_files import WeightFiles

_TENSOR = re.compile(
    r"base_model\.model\.(.+?)\.(lora_(?:embedding_)?[AB])(?:\.default)?(?:\.(weight|bias))?"
)
_BIAS = re.compile(r"base_model\.model\.(.+)\.bias")
_UNUSED = {
    "use_dora": False,
    "fan_in_fan_out": False,
    "layer_replication": None,
    "trainable_token_indices": None,
    "alora_invocation_tokens": None,
    "use_qalora": False,
    "arrow_config": None,
}
"""Features of PEFT that we lack, by what their fields hold where they are not used."""
_PATTERN = re.compile(r"[^()*+?{]*(?:(?:\([\w.|\\]*\)|[*+?])[^()*+?{]*){0,3}")
"""Keys of rank_pattern and alpha_pattern that match in no time: few repetitions, none of a group, and no
long names."""
_LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """What a server takes of adapters: `--max-cpu-loras`, `--max-lora-rank`, `--enable-lora-bias`,
    `--max-loras`, `--lora-dtype`."""

    places: int = 1
    """Of them in memory."""
    max_rank: int = 16
    bias: bool = False
    in_step: int = 1
    """Different ones."""
    dtype: DType = FP32
    """In which they are multiplied."""
    own: OwnLimits = NOTHING_OWN


@dataclass(frozen=True, slots=True)
class Factors:
    """What a module's result gets: scaling · (B · (A · x) + bias).

    a     [r, k]; of an embedding [r, tokens]
    b     [n, r]
    bias  [n], or None
    experts  whose factors lie in one tensor, `by_expert` in its parts; 0: they are those of one matrix
    shrinks_output  of experts: A and B of a square matrix are the wrong way round
    """

    a: Array
    b: Array
    scaling: float
    bias: Array | None = None
    embedding: bool = False
    experts: int = 0
    shrinks_output: bool = False


@dataclass(frozen=True, slots=True)
class Adapter:
    """What is added to a model, by module, such as `model.layers.0.self_attn.q_proj`.

    biases          [n] that take the place of the module's own
    matrices        whole, by module, that take the place of the embedding or the head
    new_rows        of added tokens
    context_length  0: as the model's
    """

    name: str
    folder: Path
    factors: dict[str, Factors] = field(default_factory=dict)
    biases: dict[str, Array] = field(default_factory=dict)
    matrices: dict[str, Array] = field(default_factory=dict)
    new_rows: NewRows | None = None
    context_length: int = 0

    def wrong(self, why: str, hint: str = "Save it again by PEFT, or leave it out.") -> LoadError:
        """The error for an adapter that cannot be served."""
        message = f"The adapter {self.name} in {self.folder} {why}."
        return LoadError("BadCheckpoint", message, hint=hint, argument="lora_modules")


def read_adapter(name: str, folder: Path, limits: AdapterLimits) -> Adapter:
    """Raises LoadError, with the name of what is wrong, for what is no such adapter or more than we add."""
    path = folder / "adapter_config.json"
    if not path.is_file():
        raise Adapter(name, folder).wrong("has no adapter_config.json", "Name a folder that PEFT saved.")
    config = read_json(path)
    try:
        return _read(Adapter(name, folder), config, limits)
    except WrongField as error:
        raise Adapter(name, folder).wrong(f"has an {path.name} that {error.told}") from None


def _read(empty: Adapter, config: Config, limits: AdapterLimits) -> Adapter:
    length = positive(config, "context_length") if config.get("context_length") else 0
    adapter = replace(empty, new_rows=_new_rows(empty), context_length=length)
    _check(adapter, config, limits)
    weights = open_tensors(adapter.folder)
    if weights is None:
        raise adapter.wrong("has no adapter_model.safetensors")
    try:
        _take(adapter, config, limits, weights)
    finally:
        weights.close()
    if not (adapter.factors or adapter.biases or adapter.matrices or adapter.new_rows):
        raise adapter.wrong("adds to no matrix")
    return adapter


def _check(adapter: Adapter, config: Config, limits: AdapterLimits) -> None:
    """Raise LoadError for a configuration that asks for what we lack or the server does not take."""
    if (kind := config.get("peft_type")) != "LORA":
        raise adapter.wrong(
            f"is of the kind {kind}; LORA is served", "Convert it, or merge it into the model."
        )
    for name, unused in _UNUSED.items():
        if (config.get(name) or unused) != unused:
            raise adapter.wrong(
                f"uses {name}: {config[name]!r}, which is not supported",
                "Train it without, or merge it into the model.",
            )
    bias = text(config, "bias", "none")
    if bias not in ("none", "all", "lora_only"):
        raise adapter.wrong(f"has bias: {bias!r}, which is none of none, all and lora_only")
    if (bias != "none" or flag(config, "lora_bias")) and not limits.bias:
        asked = "lora_bias: true" if bias == "none" else f"bias: {bias}"
        raise adapter.wrong(f"has biases ({asked})", "Serve it with --enable-lora-bias.")
    largest = max(positive(config, "r", 8), *_numbers(config, "rank_pattern").values(), 0)
    if largest > limits.max_rank:
        raise adapter.wrong(
            f"has a rank of {largest:g}, and --max-lora-rank is {limits.max_rank}",
            f"Serve it with --max-lora-rank {largest:g}.",
        )


def _new_rows(adapter: Adapter) -> NewRows | None:
    try:
        return read_new_rows(adapter.folder)
    except ValueError as error:
        raise adapter.wrong(str(error)) from None


def _take(adapter: Adapter, config: Config, limits: AdapterLimits, weights: WeightFiles) -> None:
    """Fill the adapter with its tensors. Those of a file that is closed later are copied."""
    found: dict[str, dict[str, Array]] = {}
    for stored, entry in weights.entries.items():
        if not is_float(entry.dtype):
            raise adapter.wrong(f"has a tensor {stored} of {entry.dtype}, which is no type of factors")
        if len(stored) > _LONGEST_NAME:
            raise adapter.wrong(f"has a tensor {stored[:80]}… whose name has {len(stored)} characters")
        if match := _TENSOR.fullmatch(stored):
            side = match[2] if match[3] != "bias" else f"{match[2]}.bias"
            found.setdefault(match[1], {})[side] = _finite(adapter, stored, weights)
        elif (match := _BIAS.fullmatch(stored)) and config.get("bias", "none") != "none":
            adapter.biases[match[1]] = _finite(adapter, stored, weights).copy()
        elif match := WHOLE.fullmatch(stored):
            adapter.matrices[match[1]] = weights.view(stored)
        else:
            raise adapter.wrong(
                f"has a tensor {stored}, which is no factor of a linear layer or an embedding",
                "Factors, biases, and whole matrices of the embedding and the head are taken.",
            )
    _check_saved(adapter, config)
    for module, sides in found.items():
        name = expert_parameter(module, texts(config, "target_parameters"))
        if name is None:
            raise adapter.wrong(
                f"has factors for {module}, and its target_parameters name no tensor of experts for them",
                "Only gate_up_proj and down_proj of experts are added to.",
            )
        adapter.factors[name] = _scaled(adapter, config, limits, name, _factors(adapter, module, sides))


def _finite(adapter: Adapter, stored: str, weights: WeightFiles) -> Floats:
    """Its numbers; one that is none would end each request to the adapter."""
    numbers = in_type(weights.view(stored), FP32)
    if not np.isfinite(numbers).all():
        raise adapter.wrong(f"has a tensor {stored} with numbers that are infinite, or none")
    return numbers


def _scaled(
    adapter: Adapter, config: Config, limits: AdapterLimits, module: str, factors: Factors
) -> Factors:
    """Factors of a module, copied, of the rank that is stated for it and with its scaling."""
    ranks, alphas = _numbers(config, "rank_pattern"), _numbers(config, "alpha_pattern")
    rank, stated, experts = len(factors.a), _of_pattern(adapter, ranks, module, positive(config, "r", 8)), 0
    if is_expert_parameter(module):
        if stated < 1 or rank % stated:
            raise adapter.wrong(
                f"has {rank} rows of A for {module}, which are no whole number of experts of rank {stated:g}"
            )
        experts, rank = int(rank // stated), int(stated)
    if not 1 <= rank <= limits.max_rank:
        raise adapter.wrong(f"has a rank of {rank} for {module}, and --max-lora-rank is {limits.max_rank}")
    if rank != stated:
        raise adapter.wrong(f"has a rank of {rank} for {module}, and adapter_config.json says {stated:g}")
    share = sqrt(rank) if flag(config, "use_rslora", False) else rank
    alpha = _of_pattern(adapter, alphas, module, number(config, "lora_alpha", 8.0))
    if not isfinite(alpha):
        raise adapter.wrong(f"has a lora_alpha of {alpha} for {module}")
    return replace(
        factors,
        a=factors.a.copy(),
        b=factors.b.copy(),
        scaling=alpha / share,
        experts=experts,
        shrinks_output=shrinks_output(text(config, "peft_version", "0.17.0")),
    )


def _check_saved(adapter: Adapter, config: Config) -> None:
    """Raise LoadError where a module that was trained whole is not there whole."""
    saved = config.get("modules_to_save") or []
    names = saved if isinstance(saved, list) else [saved]
    modules = [f".{module}" for module in adapter.matrices]
    for name in names:
        if not any(module.endswith(f".{name}") for module in modules):
            raise adapter.wrong(f"has modules_to_save: {saved!r}, and no matrix of {name}")


def _factors(adapter: Adapter, module: str, sides: Mapping[str, Array]) -> Factors:
    """A and B of a module, of shapes that fit each other."""
    embedding = "lora_embedding_A" in sides
    names = ("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A", "lora_B")
    bias = sides.get("lora_B.bias")
    known = {*names, "lora_B.bias"}
    shapes = [list(array.shape) for array in sides.values()]
    if not {*names} <= {*sides} <= known or any(sides[name].ndim != 2 for name in names):
        raise adapter.wrong(
            f"has {', '.join(sides)} of shape {shapes} for {module}; they are [r, k] and [n, r]"
        )
    a, b = (sides[name] for name in names)
    if a.shape[0] != b.shape[1] or (bias is not None and bias.shape != b.shape[:1]):
        raise adapter.wrong(f"has factors of shape {shapes} for {module}; they are [r, k] and [n, r]")
    return Factors(a, b, 1.0, None if bias is None else bias.copy(), embedding)


def _numbers(config: Config, name: str) -> dict[str, float]:
    patterns = table(config, name)
    return {pattern: number(patterns, pattern) for pattern in patterns}


def _of_pattern(adapter: Adapter, patterns: Mapping[str, float], module: str, otherwise: float) -> float:
    """What the first pattern that fits the end of a module's name says."""
    for pattern, value in patterns.items():
        if len(pattern) > 200 or not _PATTERN.fullmatch(pattern):
            raise adapter.wrong(
                f"has a pattern {pattern[:200]!r} for ranks or alphas that repeats too much to be matched",
                "Name the modules, or use up to three repetitions and groups.",
            )
        try:
            if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module):
                return value
        except re.error as error:
            raise adapter.wrong(f"has a pattern {pattern!r} for ranks or alphas: {error}") from None
    return otherwise

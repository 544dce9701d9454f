"""Adapters of a tiny model, what is asked of them, and how near to merged weights the answers are."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from local_engine import LocalEngine, Output
from slipway.engine.messages import AdapterRef
from slipway.engine.params import SamplingParams
from tensor_files import load, save

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GREEDY = SamplingParams(12, temperature=0.0, num_logprobs=3)
BOUNDS: dict[str, object] = {"max_model_len": 256, "num_blocks": 200, "dtype": "float32"}
TIED = 1e-3
"""Log-probabilities of the merged weights closer than this may come out in either order in fp32."""


def adapter(
    model: Path,
    folder: Path,
    *,
    rank: int = 5,
    modules: tuple[str, ...] = MODULES,
    seed: int = 0,
    **config: Any,
) -> Path:
    """Of random factors for all such modules, as PEFT names and saves them."""
    random = np.random.default_rng(seed)
    weights = load(model / "model.safetensors")
    factors = {}
    for name, weight in weights.items():
        stem = name.removesuffix(".weight")
        if stem.endswith(modules) and name.endswith(".weight") and "experts" not in name:
            module = f"base_model.model.{stem}"
            n, k = weight.shape
            factors[f"{module}.lora_A.weight"] = random.standard_normal((rank, k), np.float32) * k**-0.5
            factors[f"{module}.lora_B.weight"] = random.standard_normal((n, rank), np.float32) * 0.05
    folder.mkdir()
    save(factors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 12,
        "target_modules": list(modules),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder


def merged(model: Path, added: Path, folder: Path) -> Path:
    """The model whose weights have B · A in them, in fp32."""
    config = json.loads((added / "adapter_config.json").read_text())
    scaling = config["lora_alpha"] / config["r"] ** (0.5 if config.get("use_rslora") else 1)
    weights, factors = (
        load(one) for one in (model / "model.safetensors", added / "adapter_model.safetensors")
    )
    for name in factors:
        if ".lora_A." in name:
            target = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
            weights[target] += scaling * (factors[name.replace("lora_A", "lora_B")] @ factors[name])
    folder.mkdir()
    (folder / "config.json").write_text((model / "config.json").read_text())
    save(weights, folder / "model.safetensors")
    return folder


def ref(folder: Path | None, number: int = 0) -> AdapterRef | None:
    """What the engine is told of an adapter: a number of its own, unless one is given."""
    if folder is None:
        return None
    return AdapterRef(number or 1 + zlib.crc32(str(folder).encode()), folder.name, str(folder))


def outputs(engine: LocalEngine, asked: list[tuple[list[int], Path | None]]) -> list[Output]:
    """Of greedy requests, all at once."""
    names = [engine.add(tokens, GREEDY, adapter=ref(folder)) for tokens, folder in asked]
    engine.finish()
    return [engine.output(name) for name in names]


def assert_alike(found: Output, expected: Output) -> None:
    """Equal tokens, and log-probabilities to 1e-3, up to where the merged weights' two best are tied."""
    pairs = zip(found.tokens, expected.tokens, found.logprobs, expected.logprobs, strict=True)
    for token, wanted, one, other in pairs:
        (_, first), (_, second) = other.top[:2]
        if token != wanted and first - second < TIED:
            return
        assert token == wanted
        assert abs(one.logprob - other.logprob) < TIED

"""MiMo: Qwen2, and in the same checkpoint layers that guess the tokens behind the next."""

from __future__ import annotations

from slipway.load.config import Config
from slipway.model.families import qwen2
from slipway.model.families.parts import LLAMA_NAMES
from slipway.model.registry import register
from slipway.model.spec import DecoderSpec


@register("MiMoForCausalLM", names=LLAMA_NAMES, defaults=qwen2.DEFAULTS, guessing=("model.mtp_layers.",))
def spec(config: Config) -> DecoderSpec:
    return qwen2.spec(config)

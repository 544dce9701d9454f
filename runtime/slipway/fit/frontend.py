"""What a process takes that answers HTTP: it has the tokenizer, and no part of the model."""

from __future__ import annotations

from slipway.engine.config import EngineConfig
from slipway.load.checkpoint import Checkpoint

INTERPRETER = 46 << 20
TOKEN_BYTES = 340
"""Of the tokenizer, for each token of the vocabulary."""


def frontend_bytes(config: EngineConfig, checkpoint: Checkpoint) -> int:
    return INTERPRETER

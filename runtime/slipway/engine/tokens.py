"""Ids of tokens inside the engine, which reads the tokenizer only where a model names some."""

from __future__ import annotations

from collections.abc import Sequence

from slipway.engine.config import EngineConfig
from slipway.load.errors import LoadError
from slipway.model.pooling import TokenIds


def token_ids_of(config: EngineConfig) -> TokenIds:
    """Looks tokens up in the model's vocabulary, as it writes them."""

    def token_ids(names: Sequence[str]) -> list[int]:
        from slipway.text.open import load_for

        tokenizer = load_for(config)
        found = {name: tokenizer.token_id(name) for name in names}
        unknown = [name for name, token_id in found.items() if token_id is None]
        if unknown:
            raise LoadError(
                "UnsupportedModel",
                f"classifier_from_token names {', '.join(map(repr, unknown))}, which are no tokens here.",
                hint="Write tokens as the vocabulary does, such as 'yes' or '\u0120yes'.",
                argument="hf_overrides",
            )
        return [found[name] or 0 for name in names]

    return token_ids

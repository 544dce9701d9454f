"""What the demo model writes under every schema that can be followed is valid by it."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema.validators import validator_for

from local_engine import LocalEngine
from schemas import official, tool_schemas
from slipway.engine.params import SamplingParams
from slipway.text import structure
from slipway.text.errors import GrammarError
from slipway.text.matcher import GrammarCompiler
from slipway.text.open import load

DRAFTS = {"draft7": jsonschema.Draft7Validator, "draft2020-12": jsonschema.Draft202012Validator}
LONGEST = 200


def schemas() -> list[tuple[Any, type]]:
    """With what validates the texts of each."""
    suite = [(group["schema"], DRAFTS[draft]) for draft in DRAFTS for group in official(draft)]
    return [*suite, *((schema, jsonschema.Draft202012Validator) for schema in tool_schemas(500))]


def exactly(text: str) -> Any:
    """JSON without rounding: by floats 1.42 is no multiple of 0.0001."""
    return json.loads(text, parse_float=Decimal)


@pytest.mark.soak
def test_what_the_demo_model_writes_is_valid_under_every_schema(demo_model: Path) -> None:
    tokenizer = load(demo_model)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, 1 << 28)
    prompt = tokenizer.encode("A short example of such JSON:\n")
    ends: Counter[str] = Counter()
    invalid: list[tuple[Any, str, str]] = []
    with LocalEngine(demo_model, max_model_len=512, num_blocks=1200) as engine:
        asked = []
        for number, (schema, validator) in enumerate(schemas()):
            try:
                grammar = structure.of_json_schema(schema)
                compiler.matcher(grammar)
            except GrammarError:
                ends["refused"] += 1
                continue
            params = SamplingParams(
                max_tokens=LONGEST, temperature=0.8, seed=number, stop_token_ids=tokenizer.eos_token_ids
            )
            asked.append((engine.add(prompt, params, grammar=grammar), schema, validator))
        engine.finish()
        for name, schema, validator in asked:
            output = engine.output(name)
            ends[output.finish_reason or ""] += 1
            if output.finish_reason == "stop":
                text = tokenizer.decode([one for one in output.tokens if one not in tokenizer.eos_token_ids])
                schema = exactly(json.dumps(schema))
                invalid += [
                    (schema, text, error.message)
                    for error in validator_for(schema, default=validator)(schema).iter_errors(exactly(text))
                ]
    print(f"\n{dict(ends)}")
    assert invalid == []
    assert ends["error"] == 0
    assert ends["stop"] > 400

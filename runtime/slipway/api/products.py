"""What the fields of one request may come to together, where each by itself is within its bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipway.api.errors import ApiError
from slipway.api.generate import Prompt
from slipway.api.structured import Grammar
from slipway.engine.messages import Pools
from slipway.engine.params import SamplingParams

MAX_OUTPUTS = 1024
"""Outputs of one request: prompts × candidates."""
MAX_EMBEDS_BYTES = 240 << 20
"""Below what the engine takes in one frame."""
MAX_PARAMETERS = 1 << 20
"""Members of lists in the parameters of all outputs of one request; of grammars and of what processors are
told, four characters for one: each output has its own copy, on the wire and in the engine."""
MAX_PROMPT_COPIES = 1 << 24
"""Tokens of the prompts of all outputs of one request, which are copied likewise: some 50 MB on the wire."""
MAX_PROMPT_LOGPROBS = 1 << 20
"""Of prompts, in one answer: read and written at once, they hold up the event loop for some 0.5 s."""
MAX_BEAM_TOKENS = 1 << 21
"""Of all beams of one request with their prompts, which are told to the engine again for each token: it reads
so many in some 80 ms."""

MAX_POOLED_TOKENS = 1 << 20
"""Of all inputs of one request that pools, which are told to the engine at once."""
MAX_PAIR_CHARACTERS = 1 << 24
"""Of all pairs of texts in one request, each read as one prompt: tokenized in some 20 s, in a thread."""
MAX_POOLED_NUMBERS = 1 << 22
"""Of all vectors in one answer: some 90 MB of JSON, which a thread writes vector by vector, and then copies
together in 70 ms."""


def check_outputs(prompts: int, candidates: int) -> None:
    if prompts * candidates > MAX_OUTPUTS:
        message = (
            f"{prompts} prompts with {candidates} outputs each are more than the "
            f"{MAX_OUTPUTS} outputs that one request may have; split it."
        )
        raise ApiError(message, param="prompt", code="invalid_value")


def check_parameters(params: SamplingParams, grammar: Grammar | None, outputs: int) -> None:
    """Raises ApiError with the largest field. One output may have whatever its body says."""
    members = {
        "allowed_token_ids": len(params.allowed_token_ids),
        "logit_bias": len(params.logit_bias),
        "bad_words": sum(map(len, params.bad_words)),
        "stop_token_ids": len(params.stop_token_ids),
        "logits_processors": sum(len(one.qualname) + len(one.arguments) for one in params.processors) // 4,
    }
    if grammar is not None:
        members[grammar.param] = len(grammar.text) // 4
    total = sum(members.values())
    if outputs > 1 and total * outputs > MAX_PARAMETERS:
        param = max(members, key=lambda name: members[name])
        said = " and ".join(name for name, number in members.items() if number)
        message = (
            f"Of {said} each of the {outputs} outputs has its own copy, {total} ids (or four characters of "
            f"another text): {total * outputs} are more than the {MAX_PARAMETERS} that one request may have. "
            f"Make {param} shorter, or split the request."
        )
        raise ApiError(message, param=param, code="invalid_value")


def check_copies(prompts: Sequence[Prompt], n: int) -> None:
    """Raises ApiError. One output of each prompt may have whatever its body says."""
    tokens = sum(len(prompt.token_ids) for prompt in prompts)
    if n > 1 and tokens * n > MAX_PROMPT_COPIES:
        message = (
            f"Each of the {n} outputs of a prompt has its own copy of it: {tokens} tokens make {tokens * n}, "
            f"more than the {MAX_PROMPT_COPIES} that one request may have. Ask for fewer at once."
        )
        raise ApiError(message, param="n", code="invalid_value")


def check_embeds(prompts: Sequence[Prompt], n: int) -> None:
    """Raises ApiError. Each output has its own copy of its prompt's embeddings, on the way to the engine."""
    total = sum(len(prompt.embeds) for prompt in prompts) * n
    if total > MAX_EMBEDS_BYTES:
        message = (
            f"The prompts' embeddings, a copy for each output, take {total >> 20} MiB in fp32, more than the "
            f"{MAX_EMBEDS_BYTES >> 20} MiB that one request may have. Ask for less at once."
        )
        raise ApiError(message, param="prompt_embeds", code="invalid_value")


def check_prompt_logprobs(asked: Mapping[str, int | None], prompts: Sequence[Prompt], shown: int) -> None:
    """Raises ApiError.

    asked  by the name of each field that shows them: alternatives beside each token; None shows nothing
    shown  how often an answer has those of one prompt
    """
    numbers = {name: number + 1 for name, number in asked.items() if number is not None}
    total = sum(len(prompt.token_ids) for prompt in prompts) * sum(numbers.values()) * shown
    if total > MAX_PROMPT_LOGPROBS:
        message = (
            f"The answer would hold {total} log-probabilities of prompts, more than the "
            f"{MAX_PROMPT_LOGPROBS} that one request may have; ask for fewer of each token, or split it."
        )
        raise ApiError(message, param=max(numbers, key=lambda name: numbers[name]), code="invalid_value")


def check_beams(width: int, prompts: Sequence[Prompt], wanted: int | None) -> None:
    """Raises ApiError. `wanted` are the tokens that the request asks for, None where it does not say."""
    total = width * sum(len(prompt.token_ids) + (wanted or 0) for prompt in prompts)
    if total > MAX_BEAM_TOKENS:
        message = (
            f"{width} beams of each prompt come to {total} tokens with their prompts and max_tokens, more "
            f"than the {MAX_BEAM_TOKENS} that one search may have. Use fewer beams, or split the request."
        )
        raise ApiError(message, param="use_beam_search", code="invalid_value")


def check_pairs(characters: int) -> None:
    """Raises ApiError. `characters` are those of all pairs, each with both of its texts."""
    if characters > MAX_PAIR_CHARACTERS:
        message = (
            f"The pairs have {characters} characters together, each with both of its texts, more than the "
            f"{MAX_PAIR_CHARACTERS} that one request may have. Shorten the texts, or split the request."
        )
        raise ApiError(message, param="text", code="invalid_value")


def check_pooled(prompts: Sequence[Sequence[int]], pools: Pools, dimensions: int) -> None:
    """Raises ApiError. `dimensions` are the numbers of a vector that are kept, 0: all."""
    tokens = sum(map(len, prompts))
    numbers = (tokens if pools.by_token else len(prompts)) * (dimensions or pools.dimensions)
    if tokens > MAX_POOLED_TOKENS:
        message = (
            f"The inputs have {tokens} tokens together, more than the {MAX_POOLED_TOKENS} that one request "
            "may have. Split it."
        )
    elif numbers > MAX_POOLED_NUMBERS:
        message = (
            f"The answer would hold {numbers} numbers, more than the {MAX_POOLED_NUMBERS} that one may have. "
            "Split the request."
        )
    else:
        return
    raise ApiError(message, param="input", code="invalid_value")

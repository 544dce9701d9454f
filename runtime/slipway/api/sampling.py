"""From a request's fields and the model's defaults to the parameters that the engine trusts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from slipway.api.configure import Settings
from slipway.api.errors import ApiError, TooLong
from slipway.api.model import ServedModel
from slipway.api.protocol.common import Generation, LogitsProcessor
from slipway.engine.params import Processor, SamplingParams

GREEDY_BELOW = 1e-5
"""Logits divided by a temperature below this overflow; the most likely token is meant."""

MAX_BAD_TOKENS = 8192
"""Of all bad words together, each in two spellings: what a device's record of a request has room for."""

MAX_ARGUMENTS_BYTES = 64 << 10
"""Of one logits processor: each output of a request is told them."""

Number = TypeVar("Number", int, float)


def sampling_params(
    request: Generation, model: ServedModel, *, num_logprobs: int = -1, num_prompt_logprobs: int = -1
) -> Callable[[int], SamplingParams]:
    """Makes of its `max_tokens` the parameters of a prompt's first child, prompt by prompt in their order;
    child i has seed + i. What all prompts have in common is looked at once.

    Raises ApiError for what the model's vocabulary does not have and for fields that contradict each other.
    """
    defaults = model.defaults
    temperature = _first(request.temperature, defaults.temperature, 1.0)
    _check_token_ids(request, model)
    _check_processors(request, model)
    common = SamplingParams(
        max_tokens=0,
        min_tokens=request.min_tokens or 0,
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        top_k=max(_first(request.top_k, defaults.top_k, 0), 0),
        top_p=_first(request.top_p, defaults.top_p, 1.0),
        min_p=_first(request.min_p, defaults.min_p, 0.0),
        typical_p=_first(request.typical_p, defaults.typical_p, 1.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=_first(request.repetition_penalty, defaults.repetition_penalty, 1.0),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
        logit_bias=tuple((int(key), bias) for key, bias in (request.logit_bias or {}).items()),
        allowed_token_ids=tuple(sorted(set(request.allowed_token_ids or ()))),
        bad_words=_bad_words(request.bad_words or [], model),
        stop_token_ids=_stop_token_ids(request, model),
        processors=tuple(map(_processor, request.logits_processors or ())),
    )
    _check_choice(common, model)
    return partial(_of_prompt, request, common)


def _of_prompt(request: Generation, common: SamplingParams, max_tokens: int) -> SamplingParams:
    if common.min_tokens > max_tokens:
        message = f"min_tokens is {common.min_tokens}, more than the {max_tokens} of max_tokens."
        raise ApiError(message, param="min_tokens", code="invalid_value")
    return msgspec.structs.replace(common, max_tokens=max_tokens, seed=request.seed_of_prompt())


def check_limits(request: Generation, settings: Settings, **logprobs: int | None) -> None:
    """Raises ApiError for more logprobs than allowed, for processors that are not, and as `check_priority`.
    `logprobs` are the numbers asked for by the name of their field."""
    for field, asked in logprobs.items():
        if asked is not None and asked > settings.max_logprobs:
            message = (
                f"{field} is {asked}, more than the {settings.max_logprobs} that --max-logprobs "
                "of this server allows."
            )
            raise ApiError(message, param=field, code="invalid_value")
    for processor in request.logits_processors or ():
        _check_allowed(processor if isinstance(processor, str) else processor.qualname, settings)
    check_priority(request.priority, settings)


def check_priority(priority: int | None, settings: Settings) -> None:
    """Raises ApiError for a priority without its policy."""
    if priority and not settings.priorities:
        message = (
            f"priority is {priority}, and this server runs requests in order of arrival; "
            "it needs --scheduling-policy priority."
        )
        raise ApiError(message, param="priority", code="invalid_value")


def _check_allowed(name: str, settings: Settings) -> None:
    allowed = settings.logits_processors
    if allowed is not None and allowed.fullmatch(name):
        return
    why = (
        "has no --logits-processor-pattern, and so allows none"
        if allowed is None
        else f"allows those whose whole name matches {allowed.pattern} (--logits-processor-pattern)"
    )
    message = f"logits_processors has {name}; this server {why}."
    raise ApiError(message, param="logits_processors", code="invalid_value")


def _processor(asked: str | LogitsProcessor) -> Processor:
    if isinstance(asked, str):
        return Processor(asked)
    arguments = msgspec.json.encode([asked.args or [], asked.kwargs or {}])
    if len(arguments) > MAX_ARGUMENTS_BYTES:
        message = (
            f"args and kwargs of {asked.qualname} have {len(arguments)} bytes as JSON, "
            f"at most {MAX_ARGUMENTS_BYTES} are passed on; make them shorter."
        )
        raise ApiError(message, param="logits_processors", code="invalid_value")
    return Processor(asked.qualname, arguments.decode())


def token_budget(
    wanted: int | None, default: int | None, *, prompt_tokens: int, model: ServedModel, param: str
) -> int:
    """How many tokens to generate at most: what is wanted, else the default, else all that the
    context leaves. Raises ApiError `context_length_exceeded` with the numbers."""
    if prompt_tokens == 0:
        message = "The prompt has no tokens; the model needs at least one to start from."
        raise ApiError(message, param=param, code="invalid_value")
    room = check_room(wanted, prompt_tokens=prompt_tokens, model=model, param=param)
    if wanted is None:
        wanted = room if default is None else min(default, room)
    cap = model.defaults.max_new_tokens
    return wanted if cap is None else min(wanted, cap)


def check_room(
    wanted: int | None, *, prompt_tokens: int, model: ServedModel, param: str, at_least: bool = False
) -> int:
    """Tokens that the context leaves beside a prompt of so many, or `at_least` so many.

    Raises ApiError `context_length_exceeded` where that is none, or fewer than wanted.
    """
    room = model.longest - prompt_tokens
    if room < 1 or (wanted is not None and wanted > room):
        asked = f" and {wanted} of the completion" if wanted else ", which leaves none for a completion"
        virtual = f", its prompt adapter takes {model.num_virtual} of them" if model.num_virtual else ""
        message = (
            f"This model's maximum context length is {model.max_model_len} tokens{virtual}, and the request "
            f"has {'at least ' if at_least else ''}{prompt_tokens} of the {param}{asked}. Shorten the {param}"
            + (" or lower max_tokens." if wanted else ".")
        )
        raise TooLong(message, param=param, prompt_tokens=prompt_tokens, wanted=wanted, limit=model.longest)
    return room


def _first(asked: Number | None, default: Number | None, neutral: Number) -> Number:
    if asked is not None:
        return asked
    return neutral if default is None else default


def child_seed(seed: int, index: int) -> int:
    return (seed + index) % (1 << 64)


def _check_processors(request: Generation, model: ServedModel) -> None:
    """Raises ApiError where processors would not see all that may be drawn."""
    if request.logits_processors and model.num_added:
        message = (
            f"logits_processors: this adapter adds {model.num_added} tokens to the vocabulary, and a "
            "processor is told the logits of the model's own tokens alone. Leave them out."
        )
        raise ApiError(message, param="logits_processors", code="invalid_value")


def _check_token_ids(request: Generation, model: ServedModel) -> None:
    for field in ("allowed_token_ids", "stop_token_ids"):
        check_vocabulary(getattr(request, field) or [], model, field)
    check_vocabulary([int(key) for key in request.logit_bias or {}], model, "logit_bias")


def check_vocabulary(token_ids: list[int], model: ServedModel, param: str) -> None:
    """Raises ApiError where an id is not one of the model's."""
    largest = max(token_ids, default=0)
    if largest >= model.vocab_size:
        message = (
            f"{param} has the token id {largest}, which is out of vocabulary: the largest of this model is "
            f"{model.vocab_size - 1}."
        )
        raise ApiError(message, param=param, code="invalid_value")


def _check_choice(params: SamplingParams, model: ServedModel) -> None:
    """Raises ApiError where some step may have no token left to draw: a softmax over nothing is NaN."""
    forbidden = {sequence[-1] for sequence in params.bad_words}
    if params.min_tokens:
        forbidden.update(params.stop_token_ids)
    allowed = params.allowed_token_ids
    left = len(set(allowed) - forbidden) if allowed else model.vocab_size - len(forbidden)
    if left < 1:
        field = "allowed_token_ids" if allowed else "bad_words"
        others = "bad_words and min_tokens" if allowed else "min_tokens"
        message = f"{field} together with {others} can leave no token to draw; allow more."
        raise ApiError(message, param=field, code="invalid_value")


def _bad_words(words: list[str], model: ServedModel) -> tuple[tuple[int, ...], ...]:
    """Each word as it stands at the start of a text and after a space."""
    sequences: dict[tuple[int, ...], None] = {}
    total = 0
    for text in dict.fromkeys(text for word in words for text in (word, f" {word.lstrip()}")):
        token_ids = tuple(model.encode(text, add_special_tokens=False))
        if not token_ids or token_ids in sequences:
            continue
        sequences[token_ids] = None
        total += len(token_ids)
        if total > MAX_BAD_TOKENS:
            message = (
                f"bad_words are {total} tokens or more, at most {MAX_BAD_TOKENS} are looked for; give fewer."
            )
            raise ApiError(message, param="bad_words", code="invalid_value")
    return tuple(sequences)


def _stop_token_ids(request: Generation, model: ServedModel) -> tuple[int, ...]:
    own = tuple(request.stop_token_ids or ())
    return own if request.ignore_eos else tuple(dict.fromkeys((*own, *model.eos_token_ids)))

"""From a checked body to an order of prompts that pool. Tokenizes and renders, so it runs in a thread."""

from __future__ import annotations

from collections.abc import Sequence

from slipway.api.chat_prompt import render_chat
from slipway.api.configure import Settings
from slipway.api.errors import ApiError
from slipway.api.generate import Order, Prompt
from slipway.api.model import ServedModel
from slipway.api.products import check_pooled
from slipway.api.protocol.pooling import InputRequest, PooledFields
from slipway.api.sampling import check_priority, check_vocabulary
from slipway.api.transcript import TranscriptRules
from slipway.engine.params import PoolingParams, SamplingParams
from slipway.text.template import WrittenChat

_NO_TOKENS = SamplingParams(max_tokens=1)


def input_order(
    body: InputRequest, model: ServedModel, settings: Settings, request_id: str, params: PoolingParams
) -> Order:
    """An order of a body's inputs, or of its messages. Raises ApiError with the field at fault."""
    body.check()
    if body.messages is not None:
        chat = render_chat(body, body.messages, model, defaults=settings.template_defaults)
        special = bool(body.add_special_tokens)
        tokens = [_written_tokens(chat, body, model, "messages", special=special)]
    else:
        special = body.add_special_tokens is not False
        tokens = [_input_tokens(one, body, model, special=special) for one in body.inputs]
    return pooled_order([pooled_prompt(one) for one in tokens], body, model, settings, request_id, params)


def pooled_prompt(token_ids: list[int], type_from: int | None = None) -> Prompt:
    return Prompt(token_ids, _NO_TOKENS, type_from=type_from)


def pooled_order(
    prompts: Sequence[Prompt],
    body: PooledFields,
    model: ServedModel,
    settings: Settings,
    request_id: str,
    params: PoolingParams,
) -> Order:
    """Raises ApiError where prompts are too many, or their vectors too large."""
    check_priority(body.priority, settings)
    assert model.pools is not None
    check_pooled([prompt.token_ids for prompt in prompts], model.pools, params.dimensions)
    return Order(
        request_id,
        [*prompts],
        1,
        TranscriptRules(tokenizer=None),
        body.priority or 0,
        body.cache_salt or "",
        pooling=params,
    )


def pair_prompt(pair: tuple[str, str], body: PooledFields, model: ServedModel, settings: Settings) -> Prompt:
    """A query and a document as one prompt: by the operator's template, else as the tokenizer joins them."""
    if settings.chat_template is None:
        for text in pair:
            _check_text(text, body, model, "text")
        token_ids, type_from = model.encode_pair(*pair, _limit(body, model))
        return pooled_prompt(kept(token_ids, body, model, "text"), type_from)
    roles = ("query", "document")
    messages = [{"role": role, "content": text} for role, text in zip(roles, pair, strict=True)]
    try:
        written = model.template.write(messages)
    except ValueError as error:
        raise ApiError(f"The chat template refuses a pair: {error}", code="invalid_value") from None
    return pooled_prompt(_written_tokens(written, body, model, "text", special=False))


def _written_tokens(
    chat: WrittenChat, body: PooledFields, model: ServedModel, param: str, *, special: bool
) -> list[int]:
    if chat.token_ids is not None:
        return kept(chat.token_ids, body, model, param)
    return text_tokens(chat.text, body, model, param, special=special)


def text_tokens(text: str, body: PooledFields, model: ServedModel, param: str, *, special: bool) -> list[int]:
    """What is kept of a text. Raises ApiError where the context cannot hold it."""
    _check_text(text, body, model, param)
    token_ids = model.encode(text, add_special_tokens=special)
    limit = _limit(body, model)
    if special and limit is not None and len(token_ids) > limit:
        token_ids = cut_inside(token_ids, model.encode(text, add_special_tokens=False), limit)
    return kept(token_ids, body, model, param)


def kept(token_ids: list[int], body: PooledFields, model: ServedModel, param: str) -> list[int]:
    """The first tokens, as many as are asked for. Raises ApiError where there are none, or too many."""
    token_ids = token_ids[: _limit(body, model)]
    if not token_ids:
        message = f"{param} has no tokens; the model needs one at least."
        raise ApiError(message, param=param, code="invalid_value")
    _check_room(len(token_ids), model, param)
    return token_ids


def _input_tokens(
    one: str | list[int], body: InputRequest, model: ServedModel, *, special: bool
) -> list[int]:
    if isinstance(one, str):
        return text_tokens(one, body, model, "input", special=special)
    check_vocabulary(one, model, "input")
    return kept(one, body, model, "input")


def _limit(body: PooledFields, model: ServedModel) -> int | None:
    asked = body.truncate_prompt_tokens
    return model.max_model_len if asked == -1 else asked


def cut_inside(whole: list[int], bare: list[int], limit: int) -> list[int]:
    """The first tokens of a text between the special ones that stand round it."""
    added = len(whole) - len(bare)
    before = next((i for i in range(added + 1) if whole[i : i + len(bare)] == bare), None)
    if before is None or limit <= added:
        return whole[:limit]
    after = whole[before + len(bare) :]
    return whole[:before] + bare[: limit - added] + after


def _check_text(text: str, body: PooledFields, model: ServedModel, param: str) -> None:
    """Raises ApiError where a text is too long, without the seconds that tokenizing it takes."""
    if body.truncate_prompt_tokens is None:
        _check_room(model.fewest_tokens(text), model, param, at_least=True)


def _check_room(count: int, model: ServedModel, param: str, *, at_least: bool = False) -> None:
    if count > model.max_model_len:
        message = (
            f"This model's maximum context length is {model.max_model_len} tokens, and {param} has "
            f"{'at least ' if at_least else ''}{count}. Shorten it, or let truncate_prompt_tokens cut it to "
            "that or less."
        )
        raise ApiError(message, param=param, code="context_length_exceeded")

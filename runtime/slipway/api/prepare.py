"""From a checked body to an order for the engine. Tokenizes and renders, so it runs in a thread."""

from __future__ import annotations

from collections.abc import Callable

from slipway.api.chat_prompt import render_chat
from slipway.api.configure import Settings
from slipway.api.errors import ApiError
from slipway.api.explained_parser import explained
from slipway.api.generate import Order, Prompt
from slipway.api.model import ServedModel
from slipway.api.parsing import Reading, channels_of, check_budget, check_tools, held_tools, reading
from slipway.api.products import (
    check_beams,
    check_copies,
    check_embeds,
    check_outputs,
    check_parameters,
    check_prompt_logprobs,
)
from slipway.api.prompt_embeds import rows_of
from slipway.api.protocol.beam import Beams
from slipway.api.protocol.chat import ChatRequest
from slipway.api.protocol.common import Generation
from slipway.api.protocol.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from slipway.api.sampling import (
    check_limits,
    check_room,
    check_vocabulary,
    sampling_params,
    token_budget,
)
from slipway.api.structured import Grammar, grammar_of
from slipway.api.transcript import TranscriptRules
from slipway.engine.messages import NO_TOKEN
from slipway.engine.params import SamplingParams
from slipway.text.offsets import prompt_offsets


def completion_order(
    body: CompletionRequest, model: ServedModel, settings: Settings, request_id: str
) -> Order:
    """Raises ApiError with the field at fault."""
    body.check()
    check_limits(body, settings, logprobs=body.logprobs, prompt_logprobs=body.prompt_logprobs)
    prompts = body.prompts
    check_outputs(len(body.embeds) or len(prompts), body.candidates)
    params_of = sampling_params(
        body,
        model,
        num_logprobs=_completion_logprobs(body),
        num_prompt_logprobs=_prompt_logprobs(body),
    )
    if body.prompt_embeds is None:
        ready = [_completion_prompt(prompt, body, model, params_of) for prompt in prompts]
    else:
        ready = [_embeds_prompt(number, body, model, params_of) for number in range(len(body.embeds))]
        check_embeds(ready, body.candidates)
    shown = {"prompt_logprobs": body.prompt_logprobs, "logprobs": body.logprobs if body.echo else None}
    check_prompt_logprobs(shown, ready, body.choices)
    grammar = grammar_of(body, model, settings)
    beams = beams_of(body, body.candidates, ready, body.max_tokens, settings)
    n = body.candidates if beams is None else body.choices
    offsets = body.logprobs is not None
    return _order(body, ready, n, model, request_id, grammar, beams=beams, offsets=offsets)


def _embeds_prompt(
    number: int, body: CompletionRequest, model: ServedModel, params_of: Callable[[int], SamplingParams]
) -> Prompt:
    if not model.hidden_size:
        message = (
            "prompt_embeds: this server takes no embeddings as prompts; it needs --enable-prompt-embeds."
        )
        raise ApiError(message, param="prompt_embeds", code="not_allowed")
    param = "prompt_embeds" if isinstance(body.prompt_embeds, str) else f"prompt_embeds[{number}]"
    rows = rows_of(body.embeds[number], model.hidden_size, param)
    count = len(rows) // (4 * model.hidden_size)
    budget = token_budget(body.max_tokens, DEFAULT_MAX_TOKENS, prompt_tokens=count, model=model, param=param)
    return Prompt([NO_TOKEN] * count, params_of(max(budget, 1)), embeds=rows)


def _completion_prompt(
    prompt: str | list[int],
    body: CompletionRequest,
    model: ServedModel,
    params_of: Callable[[int], SamplingParams],
) -> Prompt:
    if isinstance(prompt, str):
        _check_length(prompt, body, body.max_tokens, model, "prompt")
        whole = model.encode(prompt, add_special_tokens=body.add_special_tokens is not False)
    else:
        check_vocabulary(prompt, model, "prompt")
        whole = prompt
    token_ids = _truncated(whole, body, body.max_tokens, model)
    budget = token_budget(
        body.max_tokens, DEFAULT_MAX_TOKENS, prompt_tokens=len(token_ids), model=model, param="prompt"
    )
    params = params_of(max(budget, 1))  # 0 only echoes; the engine still computes one
    if not body.echo:
        return Prompt(token_ids, params)
    tokenizer = model.texts.tokenizer
    if tokenizer is None:
        return Prompt(token_ids, params, offsets=[0] * len(token_ids))
    if isinstance(prompt, str) and len(token_ids) == len(whole):
        text = prompt
    else:
        text = tokenizer.decode(token_ids, skip_special_tokens=False)
    offsets = [] if body.logprobs is None else prompt_offsets(tokenizer, token_ids, text)
    return Prompt(token_ids, params, text, offsets)


def chat_order(body: ChatRequest, model: ServedModel, settings: Settings, request_id: str) -> Order:
    """Raises ApiError with the field at fault."""
    body.check()
    check_tools(body, model.texts.formats)
    check_limits(body, settings, top_logprobs=body.top_logprobs, prompt_logprobs=body.prompt_logprobs)
    params_of = sampling_params(
        body,
        model,
        num_logprobs=body.num_logprobs,
        num_prompt_logprobs=-1 if body.prompt_logprobs is None else body.prompt_logprobs,
    )
    text, token_ids = chat_prompt(body, model, settings)
    token_ids = _truncated(token_ids, body, body.wanted_tokens, model)
    budget = token_budget(
        body.wanted_tokens, None, prompt_tokens=len(token_ids), model=model, param="messages"
    )
    params = params_of(budget)
    formats = model.texts.formats
    channels = channels_of(body, formats, text)
    check_budget(body, model, channels)
    tools = held_tools(body, formats, channels)
    grammar = grammar_of(body, model, settings, tools, channels=channels)
    variables = body.variables(settings.template_defaults)
    found = reading(body, formats, text, channels, variables, held=grammar is not None)
    prompts = [Prompt(token_ids, params)]
    check_prompt_logprobs({"prompt_logprobs": body.prompt_logprobs}, prompts, 1)
    beams = beams_of(body, body.choices, prompts, body.wanted_tokens, settings)
    return _order(body, prompts, body.choices, model, request_id, grammar, found=found, beams=beams)


def chat_prompt(
    body: ChatRequest, model: ServedModel, settings: Settings, *, must_fit: bool = True
) -> tuple[str, list[int]]:
    """The prompt as text and as tokens. Raises ApiError where the template refuses the messages, or the
    context cannot hold them."""
    text, ids = render_chat(body, body.messages, model, defaults=settings.template_defaults)
    if must_fit and ids is None:
        _check_length(text, body, body.wanted_tokens, model, "messages")
    if ids is None:
        ids = model.encode(text, add_special_tokens=bool(body.add_special_tokens))
    return text, ids


def _order(
    body: Generation,
    prompts: list[Prompt],
    n: int,
    model: ServedModel,
    request_id: str,
    grammar: Grammar | None,
    *,
    found: Reading | None = None,
    beams: Beams | None = None,
    offsets: bool = False,
) -> Order:
    if grammar is not None and beams is not None:
        message = f"use_beam_search searches free outputs, and {grammar.param} holds them to a form."
        raise ApiError(message, param="use_beam_search", code="invalid_value")
    if grammar is not None and not model.same_tokens:
        message = (
            f"{grammar.param}: a grammar is made of the model's own tokens, and this adapter has others. "
            "Leave it out, or name the model itself."
        )
        raise ApiError(message, param=grammar.param, code="invalid_value")
    if body.stop and model.texts.tokenizer is None:
        raise ApiError(
            "stop strings need a tokenizer, and this server has none (--skip-tokenizer-init); "
            "use stop_token_ids.",
            param="stop",
            code="no_tokenizer",
        )
    if beams is None:  # a beam takes nothing of these along
        check_parameters(prompts[0].params, grammar, len(prompts) * n)
        check_copies(prompts, n)
    rules = TranscriptRules(
        tokenizer=model.texts.tokenizer,
        stops=tuple(body.stop or ()),
        keep_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        spaces_between_special_tokens=body.spaces_between_special_tokens is not False,
        own_stop_ids=frozenset(body.stop_token_ids or ()) - frozenset(model.eos_token_ids),
        kept_ids=frozenset() if found is None else found.kept_ids,
        offsets=offsets,
    )
    return Order(
        request_id,
        prompts,
        n,
        rules,
        body.priority or 0,
        body.cache_salt or "",
        grammar,
        parser=None if found is None else explained(found.parser, request_id),
        reasoning=None if found is None else found.reasoning,
        beams=beams,
    )


def beams_of(
    body: Generation, width: int, prompts: list[Prompt], wanted: int | None, settings: Settings
) -> Beams | None:
    """How a request's beams are searched; None where its outputs are drawn. Raises ApiError."""
    if not body.use_beam_search:
        return None
    check_beams(width, prompts, wanted)
    params = prompts[0].params
    num_tops = width + len(params.stop_token_ids)
    if num_tops > settings.max_logprobs:
        message = (
            f"A beam search of width {width} has to see the {num_tops} likeliest tokens at each step, more "
            f"than the {settings.max_logprobs} that --max-logprobs of this server allows."
        )
        raise ApiError(message, param="n", code="invalid_value")
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    return Beams(width, penalty, body.early_stopping or False, max(num_tops, params.num_logprobs))


def _check_length(text: str, body: Generation, wanted: int | None, model: ServedModel, param: str) -> None:
    """Raises ApiError where the context cannot hold a text, without the seconds that tokenizing it takes.

    What is to be truncated is tokenized whole: where its last tokens begin, only the first ones tell.
    """
    fewest = model.fewest_tokens(text)
    if fewest and body.truncate_prompt_tokens is None:
        check_room(wanted, prompt_tokens=fewest, model=model, param=param, at_least=True)


def _truncated(token_ids: list[int], body: Generation, wanted: int | None, model: ServedModel) -> list[int]:
    """The last `truncate_prompt_tokens` of a prompt; -1 keeps as many as leave room to answer."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return token_ids
    if keep == -1:
        keep = max(model.longest - (wanted or 1), 1)
    return token_ids[-keep:] if keep else []


def _completion_logprobs(body: CompletionRequest) -> int:
    """Choosing the best needs the tokens' own log-probabilities, whether they are shown or not."""
    if body.logprobs is not None:
        return body.logprobs
    return 0 if body.candidates > body.choices and not body.use_beam_search else -1


def _prompt_logprobs(body: CompletionRequest) -> int:
    """An echoed prompt is shown with log-probabilities like the output."""
    echoed = body.logprobs if body.echo else None
    asked = [number for number in (body.prompt_logprobs, echoed) if number is not None]
    return max(asked, default=-1)

"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.body import body_bytes, read_body
from slipway.api.chat_prompt import render_chat
from slipway.api.frontend import frontend
from slipway.api.model import ServedModel
from slipway.api.protocol.answers import DetokenizedText, TokenizerInfo, Tokens
from slipway.api.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from slipway.api.responses import json_response
from slipway.api.route import ApiRoute
from slipway.api.sampling import check_vocabulary


async def tokenize(request: Request) -> Response:
    front = frontend(request)
    body = await read_body(request, TokenizeRequest)
    model = front.model.named(front.check_name(body.model))
    defaults = front.settings.template_defaults

    def tokenized() -> Response:
        return json_response(_tokenized(body, model, defaults))

    return await front.in_thread(tokenized, body_bytes(request))


def _tokenized(body: TokenizeRequest, model: ServedModel, defaults: dict[str, Any]) -> Tokens:
    body.check()
    token_ids: list[int] | None = None
    if body.messages is None:
        text, add_special_tokens = body.prompt or "", body.add_special_tokens is not False
    else:
        add_special_tokens = bool(body.add_special_tokens)
        text, token_ids = render_chat(body, body.messages, model, defaults=defaults)
    if token_ids is None:
        token_ids = model.encode(text, add_special_tokens=add_special_tokens)
    texts = (
        [model.tokenizer.token_text(token_id) for token_id in token_ids] if body.return_token_strs else None
    )
    return Tokens(
        count=len(token_ids),
        max_model_len=model.longest,
        tokens=token_ids,
        token_strs=texts,
    )


async def detokenize(request: Request) -> Response:
    front = frontend(request)
    body = await read_body(request, DetokenizeRequest)
    model = front.model.named(front.check_name(body.model))

    def detokenized() -> Response:
        return json_response(DetokenizedText(prompt=_detokenized(body, model)))

    return await front.in_thread(detokenized, body_bytes(request))


def _detokenized(body: DetokenizeRequest, model: ServedModel) -> str:
    check_vocabulary(body.tokens, model, "tokens")
    return model.tokenizer.decode(body.tokens, skip_special_tokens=False)


async def tokenizer_info(request: Request) -> Response:
    """The tokenizer's configuration and the chat template in effect."""
    model = frontend(request).model
    tokenizer, template = model.tokenizer, model.texts.template
    known = TokenizerInfo(
        tokenizer_class=tokenizer.configuration.get("tokenizer_class"),
        chat_template=None if template is None else template.source,
        vocab_size=tokenizer.vocab_size,
        model_max_length=tokenizer.max_length,
    )
    return json_response(tokenizer.configuration | tokenizer.special_tokens | asdict(known))


routes = [
    ApiRoute("/tokenize", tokenize, "POST", body=TokenizeRequest, answer=Tokens),
    ApiRoute("/detokenize", detokenize, "POST", body=DetokenizeRequest, answer=DetokenizedText),
]
info_routes = [ApiRoute("/tokenizer_info", tokenizer_info, answer=TokenizerInfo)]

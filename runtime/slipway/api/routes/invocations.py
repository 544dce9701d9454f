"""`POST /invocations`, the one path that SageMaker knows: fields and the model's task say what is asked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.body import read_one_of
from slipway.api.errors import ApiError
from slipway.api.frontend import frontend
from slipway.api.model import ServedModel
from slipway.api.routes import chat, classify, completions, embeddings, pooling, score
from slipway.api.routes.inference import InferenceRoute


class AnyForm(Protocol):
    """One way to ask, generating or pooling, and to answer."""

    @property
    def body(self) -> type[BaseModel]: ...
    async def answer(self, request: Request, body: Any, arrival: float) -> Response: ...


GENERATING: Mapping[str, AnyForm] = {
    "messages": chat.FORM,
    "prompt": completions.FORM,
    "prompt_embeds": completions.FORM,
}
INPUTS: Mapping[str, AnyForm] = {"embed": embeddings.FORM, "classify": classify.FORM}
"""By the task of a model that makes one vector of a prompt; all else /pooling answers."""


def forms_of(model: ServedModel) -> Mapping[str, AnyForm]:
    """What a model can be asked, by the field that tells: the first of them that a body has counts."""
    if model.pools is None:
        return GENERATING
    inputs = pooling.FORM if model.pools.by_token else INPUTS.get(model.pools.task, pooling.FORM)
    return {"messages": inputs, "input": inputs, "text_1": score.SCORE, "query": score.RERANK}


async def invoke(request: Request) -> Response:
    arrival = time.monotonic()
    forms = forms_of(frontend(request).model)
    body = await read_one_of(request, lambda fields: _meant(forms, fields).body)
    form = next(form for form in forms.values() if form.body is type(body))
    return await form.answer(request, body, arrival)


def _meant(forms: Mapping[str, AnyForm], fields: Mapping[str, Any]) -> AnyForm:
    for name, form in forms.items():
        if name in fields:
            return form
    message = f"The body has none of {', '.join(forms)}: one of them says what this model is asked."
    raise ApiError(message, param=next(iter(forms)), code="missing")


routes = [InferenceRoute("/invocations", invoke, "POST")]

"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`: there with VLLM_ALLOW_RUNTIME_LORA_UPDATING."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from slipway.api.adapters import UnknownAdapter, Unloadable
from slipway.api.body import read_body
from slipway.api.errors import ApiError
from slipway.api.frontend import frontend
from slipway.api.generate import engine_gone
from slipway.api.protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest
from slipway.api.route import ApiRoute
from slipway.engine.stream import EngineDead
from slipway.load.errors import LoadError


async def load_adapter(request: Request) -> Response:
    """Serve an adapter under a name, from a folder of the server or a repository on the hub."""
    front = frontend(request)
    body = await read_body(request, LoadAdapterRequest)
    front.admission.check()
    with _told():
        served = await front.adapters.load(body.lora_name, body.lora_path, in_place=bool(body.load_inplace))
    return PlainTextResponse(f"Success: the LoRA adapter {served.ref.name!r} is loaded.")


async def unload_adapter(request: Request) -> Response:
    """Serve it no more; requests that run with it go on to their end."""
    front = frontend(request)
    body = await read_body(request, UnloadAdapterRequest)
    front.admission.check()
    with _told():
        served = await front.adapters.unload(body.lora_name, body.lora_int_id)
    return PlainTextResponse(f"Success: the LoRA adapter {served.ref.name!r} is unloaded.")


@contextmanager
def _told() -> Iterator[None]:
    """Raises ApiError for what prevents it."""
    try:
        yield
    except UnknownAdapter as error:
        raise ApiError(str(error), status=404, param="lora_name", code="adapter_not_found") from None
    except Unloadable as error:
        raise ApiError(str(error), param="lora_name", code="invalid_value") from None
    except LoadError as error:
        missing = error.code == "ModelNotFound"
        raise ApiError(
            f"{error.message.rstrip('.')}. {error.hint}".rstrip(),
            status=404 if missing else 400,
            param="lora_path",
            code="adapter_not_found" if missing else "invalid_value",
        ) from None
    except TimeoutError:
        message = "The engine did not answer in time; the log says what it is doing."
        raise ApiError(message, status=504, code="engine_timeout") from None
    except EngineDead as dead:
        raise engine_gone(dead) from None


routes = [
    ApiRoute("/v1/load_lora_adapter", load_adapter, "POST", body=LoadAdapterRequest),
    ApiRoute("/v1/unload_lora_adapter", unload_adapter, "POST", body=UnloadAdapterRequest),
]

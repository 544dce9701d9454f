"""A served application over a scripted engine, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
from e2e.ground.patience import scaled
from scripted import ScriptedEngine

import slipway.text.open as texts
from slipway import envs
from slipway.api.configure import api_settings
from slipway.api.frontend import Frontend
from slipway.api.lifecycle import http_server
from slipway.api.listen import listen
from slipway.api.texts import read_texts
from slipway.args import resolve
from slipway.engine.client import EngineClient
from slipway.engine.messages import AddRequest, Pools

MODEL = "scripted"
SENTENCE = "Paris is the capital of France, and Berlin is the capital of Germany."


AS_JSON = {"Content-Type": "application/json"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
PLAIN: dict[str, Any] = {"prompt": "Hi", "max_tokens": 2}


class Served:
    """A running application: `url` for clients, `engine` to say what it answers."""

    def __init__(self, model: Path, engine: ScriptedEngine, *arguments: str) -> None:
        names = () if "--served-model-name" in arguments else ("--served-model-name", MODEL)
        resolved = resolve([str(model), *names, *arguments], {})
        settings = api_settings(resolved, envs.read(os.environ))
        sockets = listen("127.0.0.1", 0)
        self.engine = engine
        self.tokenizer = texts.load(model)
        self.client = EngineClient(engine.socket_path)
        self.front = Frontend(settings, self.client)
        self.http = http_server(self.front, resolved)
        scheme = "https" if with_tls(arguments) else "http"
        self.url = f"{scheme}://127.0.0.1:{sockets[0].getsockname()[1]}"
        self._texts = read_texts(settings)
        self._folders = self.front.adapters.find_modules()
        self._sockets = sockets
        self._opened = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self.wait_open = self._opened.wait

    def close(self) -> None:
        self.http.should_exit = True
        self._thread.join(scaled(10))
        assert not self._thread.is_alive()
        self.engine.die()

    def get(self, path: str, **keywords: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=scaled(10), **keywords)

    def post(self, path: str, body: Any = None, **keywords: Any) -> httpx.Response:
        if body is not None:
            keywords["json"] = body
        return httpx.post(self.url + path, timeout=scaled(10), **keywords)

    def openai(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0)

    def async_openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def _serve(self) -> None:
        reading = asyncio.create_task(self.client.run(on_stats=self.front.on_stats))
        opening = asyncio.create_task(self._open())
        try:
            await self.http.serve(sockets=self._sockets)
        finally:
            for task in (opening, reading):
                task.cancel()
            await asyncio.gather(opening, reading, return_exceptions=True)
            self.front.close()
            await self.front.flush()
            await self.client.close()

    async def _open(self) -> None:
        ready = await self.client.wait_ready()
        await self.front.adapters.load_modules(self._folders, self._texts, ready)
        self.front.open(self._texts, ready)
        self._opened.set()


def with_tls(arguments: tuple[str, ...]) -> bool:
    return "--ssl-certfile" in arguments


@contextlib.contextmanager
def starter(model: Path, root: Path) -> Iterator[Callable[..., Served]]:
    with contextlib.ExitStack() as stack:
        sentence = [*texts.load(model).encode(SENTENCE), 2]

        def begin(
            *arguments: str,
            loaded: bool = True,
            other: Path | None = None,
            pools: Pools | None = None,
            max_model_len: int = 512,
        ) -> Served:
            place = root / f"engine-{len(list(root.iterdir()))}"
            place.mkdir()
            engine = ScriptedEngine(place, lambda request: sentence, pools=pools, max_model_len=max_model_len)
            served = Served(other or model, engine, *arguments)
            stack.callback(served.close)
            if loaded:
                engine.finish_loading()
                assert served.wait_open(10)
            return served

        yield begin


def texts_of(tokenizer: Any, *parts: str) -> Callable[[AddRequest], list[int]]:
    """An answer made of the tokens of each part, in turn."""
    ids = [token for part in parts for token in tokenizer.encode(part)]
    return lambda request: ids


def refused(answer: httpx.Response, status: int, param: str | None, words: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert words in error["message"], error
    assert error["code"]


def says(served: Served, *parts: str) -> None:
    """Have the engine answer with these parts, and end."""
    answer = texts_of(served.tokenizer, *parts)
    served.engine.answer = lambda request: [*answer(request), 2]


def prompt(served: Served) -> str:
    """What the engine was last asked."""
    return served.tokenizer.decode(served.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)

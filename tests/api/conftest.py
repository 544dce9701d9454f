"""Servers of an application over a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import uvicorn
from serving import Served, starter

from factory import write_tokenizer


@pytest.fixture(scope="session", autouse=True)
def quick_clients_and_servers() -> Iterator[None]:
    """What hundreds of them wait for in this process, and nothing is tested by.

    Each client that verifies would read the trusted certificates anew, for as long as 20 answers take, and
    uvicorn looks ten times a second whether to end.
    """
    hasty = SimpleNamespace(**vars(asyncio) | {"sleep": lambda seconds: asyncio.sleep(seconds / 10)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx._transports.default, "create_ssl_context", cache(httpx.create_ssl_context))
        patch.setattr(uvicorn.server, "asyncio", hasty)
        yield


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and a generation configuration, and no weights."""
    folder = tmp_path_factory.mktemp("scripted-model")
    write_tokenizer(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2], "top_k": 33}')
    return folder


@pytest.fixture
def start(scripted_model: Path, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts servers with arguments; all are closed when the test ends."""
    with starter(scripted_model, tmp_path) as begin:
        yield begin


@pytest.fixture(scope="module")
def start_for_module(
    scripted_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Served]]:
    with starter(scripted_model, tmp_path_factory.mktemp("engines")) as begin:
        yield begin


@pytest.fixture(scope="module")
def shared_server(start_for_module: Callable[..., Served]) -> Served:
    return start_for_module()


@pytest.fixture
def served(shared_server: Served) -> Served:
    """A server with the defaults; its engine is as new for each test."""
    shared_server.engine.reset()
    return shared_server

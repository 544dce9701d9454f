"""Servers of an application over a scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest
from serving import Served, starter

from factory import write_tokenizer


@pytest.fixture(scope="session", autouse=True)
def one_tls_context() -> Iterator[None]:
    """For all clients that verify: each would read the certificates anew, as long as 20 answers take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx._transports.default, "create_ssl_context", cache(httpx.create_ssl_context))
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

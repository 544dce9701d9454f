"""TLS files that change while a server runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from e2e.ground.patience import scaled
from test_connections import say_hello, serving
from test_http import certificate

from slipway.api import tls

Address = tuple[str, int]


@contextlib.asynccontextmanager
async def refreshed(folder: Path, **options: object) -> AsyncIterator[Address]:
    """A server's address; its certificate and key are cert.pem and key.pem of `folder`."""
    files = {"ssl_certfile": str(folder / "cert.pem"), "ssl_keyfile": str(folder / "key.pem")}
    async with serving(**files, **options) as (server, address):
        while not server.started:
            await asyncio.sleep(0)
        task = asyncio.create_task(tls.refresh(server.config))
        await asyncio.sleep(0)
        try:
            yield address
        finally:
            task.cancel()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(tls, "SECONDS_BETWEEN_LOOKS", 0.01)
    caplog.set_level(logging.INFO, "slipway.api")


async def said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(scaled(10)):
        while words not in caplog.text:
            await asyncio.sleep(0.01)


async def is_served(address: Address, cert: Path) -> bool:
    """Whether the server shows this certificate."""
    try:
        with await asyncio.to_thread(say_hello, address, str(cert)):
            return True
    except ssl.SSLCertVerificationError:
        return False


async def test_a_rotation_that_is_half_done_leaves_the_old_pair_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new, live, old = tmp_path / "new", tmp_path / "live", tmp_path / "old.pem"
    for folder in (new, live):
        folder.mkdir()
        certificate(folder, folder.name)
    shutil.copy(live / "cert.pem", old)
    async with refreshed(live) as address:
        assert await is_served(address, old)
        shutil.copy(new / "cert.pem", live)
        await said(caplog, "not used yet")
        assert await is_served(address, old)
        await asyncio.sleep(0.1)
        assert caplog.text.count("not used yet") == 1
        shutil.copy(new / "key.pem", live)
        await said(caplog, "are in use")
        assert await is_served(address, new / "cert.pem")
        assert not await is_served(address, old)


def client_certificate(folder: Path, name: str) -> Path:
    """One that vouches for itself, with its key in one file."""
    folder = folder / name
    folder.mkdir()
    both = folder / "both.pem"
    both.write_text("".join(Path(path).read_text() for path in certificate(folder, name)))
    return both


async def test_an_authority_that_is_taken_out_is_trusted_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, _ = certificate(tmp_path, "server")
    kept, dropped = client_certificate(tmp_path, "kept"), client_certificate(tmp_path, "dropped")
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(kept.read_text() + dropped.read_text())

    def is_let_in(client: Path, address: Address) -> bool:
        try:
            with say_hello(address, cert, client):
                return True
        except OSError:
            return False

    options = {"ssl_ca_certs": str(trusted), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    async with refreshed(tmp_path, **options) as address:
        assert await asyncio.to_thread(is_let_in, kept, address)
        assert await asyncio.to_thread(is_let_in, dropped, address)
        trusted.write_text(kept.read_text())
        await said(caplog, "are in use")
        assert await asyncio.to_thread(is_let_in, kept, address)
        assert not await asyncio.to_thread(is_let_in, dropped, address)

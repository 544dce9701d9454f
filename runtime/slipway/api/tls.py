"""Certificates that change on disk, as cert-manager rotates them."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path

import uvicorn
from uvicorn.config import create_ssl_context

logger = logging.getLogger("slipway.api")

SECONDS_BETWEEN_LOOKS = 1.0


async def refresh(config: uvicorn.Config) -> None:
    """Make `config.ssl` anew whenever its files change, for the connections that come then. Never returns.

    Files that do not fit together, as in the middle of a rotation, leave the old context in use. It is never
    changed itself: OpenSSL would take a certificate before it looks at the key, and forgets no authority.
    """
    paths = [Path(path) for path in (config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs) if path]
    used = told = _versions(paths)
    while True:
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        now = _versions(paths)
        if now == used or None in now:
            continue
        try:
            config.ssl = _context(config)
        except OSError as error:  # ssl.SSLError is one
            if now != told:
                logger.warning("The changed TLS files are not used yet: %s.", error)
            told = now
        else:
            logger.info("The TLS files have changed and are in use.")
            used = told = now


def _context(config: uvicorn.Config) -> ssl.SSLContext:
    """As uvicorn makes the first one."""
    assert config.ssl_certfile is not None
    return create_ssl_context(
        certfile=config.ssl_certfile,
        keyfile=config.ssl_keyfile,
        password=config.ssl_keyfile_password,
        ssl_version=config.ssl_version,
        cert_reqs=config.ssl_cert_reqs,
        ca_certs=config.ssl_ca_certs,
        ciphers=config.ssl_ciphers,
    )


def _versions(paths: list[Path]) -> list[tuple[int, int] | None]:
    """What changes with a file's content: inode and time of each, through symbolic links."""
    versions: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError:
            versions.append(None)
        else:
            versions.append((stat.st_ino, stat.st_mtime_ns))
    return versions

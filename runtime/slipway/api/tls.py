"""Certificates that change on disk, as cert-manager rotates them."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path

logger = logging.getLogger("slipway.api")

SECONDS_BETWEEN_LOOKS = 1.0


async def refresh(context: ssl.SSLContext, *, certificate: str, key: str, authorities: str | None) -> None:
    """Load the files into `context` whenever they change; new connections use them. Never returns.

    Files that do not fit together, as in the middle of a rotation, leave the old ones in use.
    """
    paths = [Path(path) for path in (certificate, key, authorities) if path]
    seen = _versions(paths)
    while True:
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        now = _versions(paths)
        if now == seen or None in now:
            continue
        try:
            context.load_cert_chain(certificate, key)
            if authorities:
                context.load_verify_locations(authorities)
        except (OSError, ssl.SSLError) as error:
            logger.warning("The changed TLS files are not used yet: %s.", error)
        else:
            logger.info("The TLS files have changed and are in use.")
            seen = now


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

"""What tests of this folder share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from index_server import IndexServer, serve

from slipway.load import package_index


@pytest.fixture
def unset(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No setting of this machine says anything of package indexes; the empty home folder."""
    for name in os.environ:
        if name.startswith(("UV_", "PIP_", "XDG_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(package_index, "ETC", home / "etc")
    return home


@pytest.fixture
def index(unset: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IndexServer]:
    """The package index that is asked, on this machine."""
    monkeypatch.setattr(package_index, "PAUSE", 0.0)
    with serve() as server:
        monkeypatch.setenv("UV_DEFAULT_INDEX", server.address)
        yield server

"""An API server whose certificate another authority vouches for, as after that of a cluster was replaced."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from e2e.ground.pki import Authority

from slipway_operator.cluster import Cluster, Unreachable, Untrusted


class Named(BaseHTTPRequestHandler):
    """Answers with the server's name, each time on a connection of its own."""

    def do_GET(self) -> None:
        text = json.dumps({"from": self.server.name}).encode()  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@contextmanager
def serving(authority: Authority, port: int = 0) -> Iterator[int]:
    """A server with a certificate of this authority; its port."""
    pair = authority.issue("server", "server", hosts=("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = ThreadingHTTPServer(("127.0.0.1", port), Named)
    server.daemon_threads = True
    server.name = authority.folder.name  # type: ignore[attr-defined]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def authorities(tmp_path: Path) -> tuple[Authority, Authority]:
    return Authority(tmp_path / "old"), Authority(tmp_path / "new")


def test_another_authority_is_read_when_it_is_there_and_told_once(
    authorities: tuple[Authority, Authority], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = authorities
    told: list[bool] = []
    with serving(old) as port:
        kubeconfig = old.kubeconfig("operator", f"https://127.0.0.1:{port}", "operator")
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        cluster = Cluster()
        cluster.trusted_again = lambda: told.append(True)
        assert cluster.call("GET", "/") == {"from": "old"}
    with serving(new, port):
        # The new certificates are there before the file of the authority is.
        with pytest.raises(Untrusted, match="certificate verify failed"):
            cluster.call("GET", "/")
        assert told == []
        old.certificate.write_bytes(new.certificate.read_bytes())
        assert [cluster.call("GET", "/") for _ in range(2)] == [{"from": "new"}] * 2
        assert told == [True]
    with pytest.raises(Unreachable) as away:
        cluster.call("GET", "/")
    assert not isinstance(away.value, Untrusted)
    assert told == [True]

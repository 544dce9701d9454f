"""Servers that load, one at every address of the pods: `python -m e2e.loading_servers NETWORK`.

Each says another percentage every second, as a server of ours does at /ready, and none becomes ready.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 8000
TOTAL = 1000
"""Megabytes, at ten a second: a status tells whole percents."""
_BEGAN = time.monotonic()


class Loading(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        done = round(10 * (time.monotonic() - _BEGAN)) % TOTAL
        body = json.dumps({"phase": "load", "done": done << 20, "total": TOTAL << 20}).encode()
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """A hundred requests a second."""


class Many(ThreadingHTTPServer):
    request_queue_size = 512


if __name__ == "__main__":
    subprocess.run(("ip", "route", "add", "local", sys.argv[1], "dev", "lo"), check=True)
    server = Many(("", PORT), Loading)
    print("listening", flush=True)
    server.serve_forever()

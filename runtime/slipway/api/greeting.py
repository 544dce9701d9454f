"""What stands on the terminal when the server is ready: what to type next."""

from __future__ import annotations

import os

from slipway.api.configure import Arguments, Settings
from slipway.engine.messages import Ready


def greeting(arguments: Arguments, settings: Settings, ready: Ready, seconds: float) -> str:
    """At most six lines."""
    scheme = "https" if arguments["ssl_certfile"] else "http"
    url = f"{scheme}://{_reachable(arguments['host'])}:{arguments['port']}{settings.root_path}/v1"
    key = "" if settings.api_key is None else " -H 'Authorization: Bearer KEY'"
    message = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    lines = [
        f"\nReady after {seconds:.1f} s: {settings.name} at {url} "
        f"({ready.dtype}, {ready.max_model_len} tokens of context). Type in another terminal:",
        f"  {os.environ.get('SLIPWAY_COMMAND', 'slipway')} chat --url {url}",
        f"  curl {url}/chat/completions -H 'Content-Type: application/json'{key} \\",
        f"    -d '{message}'",
        "Ctrl-C ends the server.",
    ]
    return "\n".join(lines)


def _reachable(host: str) -> str:
    """An address that a client on this machine can use."""
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
    if host in local:
        return local[host]
    return f"[{host}]" if ":" in host else host

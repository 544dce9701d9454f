"""What stands on the terminal when the server is ready: what to type next."""

from __future__ import annotations

import os
import time
from pathlib import Path
from shlex import quote

from slipway.api.configure import Arguments, Settings
from slipway.api.texts import Texts
from slipway.engine.messages import Pools, Ready
from slipway.sockets import EVERYWHERE

QUESTION = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'


def seconds_running(process: int | str = "self") -> float:
    """Since the kernel started the process: what who typed the command has waited."""
    stat = Path(f"/proc/{process}/stat").read_text()
    ticks = int(stat.rpartition(")")[2].split()[19])  # from the boot to then
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def greeting(arguments: Arguments, settings: Settings, texts: Texts, ready: Ready) -> str:
    """At most six lines, with requests that this model can answer."""
    scheme = "https" if arguments["ssl_certfile"] else "http"
    uds = arguments["uds"]
    host = "localhost" if uds else f"{_reachable(arguments['host'])}:{arguments['port']}"
    server = f"{scheme}://{host}{settings.root_path}"
    url = f"{server}/v1"
    at = f"--unix-socket {quote(uds)} " if uds else ""
    key = " -H 'Authorization: Bearer KEY'" if settings.api_keys else ""
    command, path, body = _first_request(texts, ready.pools)
    if uds:  # neither browsers nor our own commands open one
        command = None
    started = os.getppid() if arguments["api_server_count"] > 1 else "self"
    lines = [
        f"\nReady after {seconds_running(started):.1f} s: {settings.name} at {uds or url} "
        f"({ready.dtype}, {ready.max_model_len} tokens of context).",
        f"Open {server}/console in a browser, or type in another terminal:"
        if command == "chat" and not settings.disable_fastapi_docs
        else "Type in another terminal:",
        *([f"  {os.environ.get('SLIPWAY_COMMAND', 'slipway')} {command} --url {url}"] if command else []),
        f"  curl {at}{server}/{path} -H 'Content-Type: application/json'{key} \\",
        f"    -d '{body}'",
        "Ctrl-C ends the server.",
    ]
    return "\n".join(lines)


def _first_request(texts: Texts, pools: Pools | None) -> tuple[str | None, str, str]:
    """The command for a conversation by text, where there can be one; a path and its body."""
    if pools is not None:
        text = '{"input": "The capital of France"}' if texts.tokenizer is not None else '{"input": [1, 2, 3]}'
        path = {"embed": "v1/embeddings", "classify": "classify"}.get(pools.task, "pooling")
        return None, "pooling" if pools.by_token else path, text
    if texts.template is not None:
        return "chat", "v1/chat/completions", QUESTION
    if texts.tokenizer is not None:
        return "complete", "v1/completions", '{"prompt": "The capital of France is"}'
    return None, "v1/completions", '{"prompt": [1, 2, 3]}'


def _reachable(host: str) -> str:
    """An address that a client on this machine can use."""
    local = dict.fromkeys(("0.0.0.0", EVERYWHERE, ""), "127.0.0.1")
    if host in local:
        return local[host]
    return f"[{host}]" if ":" in host else host

"""Chromium without a window, driven over its DevTools protocol through a pipe: no port, and no package."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.ground.patience import scaled

PROGRAM = "chromium"
PATIENCE = 60.0
"""Seconds for what must come."""

Event = dict[str, Any]


class Browser:
    """One process. Messages are JSON objects that end with a zero byte."""

    def __init__(self, folder: Path) -> None:
        requests, self._send = os.pipe()
        self._receive, answers = os.pipe()
        words = [PROGRAM, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={folder}"]
        words += [
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
        ]
        if os.geteuid() == 0:
            words.append("--no-sandbox")  # Chromium makes none as root, and only our own page is shown
        # It reads from descriptor 3 and writes to 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{requests} 4>&{answers}', "bash", *words],
            pass_fds=(requests, answers),
            stdout=subprocess.DEVNULL,
            stderr=(folder / "stderr").open("wb"),
            start_new_session=True,
        )
        os.close(requests)
        os.close(answers)
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[Event]] = {}
        self._pages: dict[str, list[Event]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = queue.Queue()
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        told = answer.get(timeout=scaled(PATIENCE))
        assert "error" not in told, (method, told)
        return told["result"]

    def page(self) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, self._pages.setdefault(session, []))

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._send)

    def _read(self) -> None:
        pending = b""
        while data := os.read(self._receive, 1 << 16):
            *whole, pending = (pending + data).split(b"\0")
            for message in map(json.loads, whole):
                if "id" in message:
                    self._answers.pop(message["id"]).put(message)
                elif "sessionId" in message:
                    self._pages.setdefault(message["sessionId"], []).append(message)
        os.close(self._receive)


class Page:
    """A tab; `events` is all that it told."""

    def __init__(self, browser: Browser, session: str, events: list[Event]) -> None:
        self._browser, self._session, self.events = browser, session, events
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, self._session, **params)

    def open(self, url: str) -> None:
        before = self.value("performance.timeOrigin")
        self.call("Page.navigate", url=url)
        self.until(f"performance.timeOrigin !== {before} && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is, as JSON; in the page's own world and under its policy."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, expression: str, patience: float = PATIENCE) -> Any:
        """The expression's value as soon as it is true; of an element, that it is there."""
        expression = f"((it) => it instanceof Element || it)({expression})"
        end = time.monotonic() + scaled(patience)
        while not (value := self.value(expression)):
            if time.monotonic() > end:
                raise AssertionError(f"never true: {expression}\n{self.value('document.body?.innerText')}")
            threading.Event().wait(0.05)
        return value

    def text(self, selector: str) -> str:
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of the element, which must be what is there."""
        quoted = json.dumps(selector)
        at = self.value(
            f"""(() => {{
              const found = document.querySelector({quoted});
              found.scrollIntoView({{ block: "nearest" }});
              const {{ x, y, width, height }} = found.getClientRects()[0];
              const [left, top] = [x + width / 2, y + height / 2];
              const hit = document.elementFromPoint(left, top);
              return found.contains(hit) || hit?.contains(found) ? [left, top] : null;
            }})()"""
        )
        assert at is not None, f"{selector} is covered"
        self.point(*at)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def point(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def hover(self, selector: str) -> None:
        x, y = self.value(
            f"""(() => {{
              const found = document.querySelector({json.dumps(selector)});
              const {{ x, y, width, height }} = found.getClientRects()[0];
              return [x + width / 2, y + height / 2];
            }})()"""
        )
        self.point(x, y)

    def press(self, key: str, *, shift: bool = False) -> None:
        code = {"Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "Escape": 27, "Tab": 9}[key]
        modifiers = 8 if shift else 0
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def fill(self, selector: str, text: str) -> None:
        """As typed over what the field had."""
        focused = self.value(
            f"""(() => {{
              const field = document.querySelector({json.dumps(selector)});
              field.focus();
              field.select();
              return document.activeElement === field;
            }})()"""
        )
        assert focused, f"{selector} cannot be typed into"
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.value("document.execCommand('delete')")

    def choose(self, selector: str, value: str) -> None:
        self.value(
            f"""(() => {{
              const field = document.querySelector({json.dumps(selector)});
              field.value = {json.dumps(value)};
              field.dispatchEvent(new Event("change", {{ bubbles: true }}));
            }})()"""
        )

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def dark(self, wanted: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def requested(self) -> list[str]:
        """The URL of each request that the page has sent."""
        return [
            event["params"]["request"]["url"]
            for event in list(self.events)
            if event["method"] == "Network.requestWillBeSent"
        ]

    def sent(self) -> list[str]:
        """The same of requests that the page's policy has not kept back."""
        told = [(event["method"], event["params"]) for event in list(self.events)]
        kept_back = {
            params["requestId"]
            for method, params in told
            if method == "Network.loadingFailed" and params.get("blockedReason") == "csp"
        }
        return [
            params["request"]["url"]
            for method, params in told
            if method == "Network.requestWillBeSent" and params["requestId"] not in kept_back
        ]

    def complaints(self) -> list[str]:
        """What the console of the browser shows as a warning or an error."""
        found = []
        for event in list(self.events):
            params = event["params"]
            match event["method"]:
                case "Runtime.exceptionThrown":
                    found.append(str(params["exceptionDetails"]))
                case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                    found.append(str(params["args"]))
                case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                    found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return found


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    started = Browser(folder)
    try:
        yield started
    finally:
        started.close()

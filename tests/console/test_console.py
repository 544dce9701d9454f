"""The console as a person uses it: in Chromium, on a real server with the demo model."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import PROGRAM, Browser, Page, browser
from e2e.ground.patience import scaled

from live_server import LiveServer, live_server
from slipway.cli.demo import serve_words
from slipway.load.demo import MODEL_NAME

pytestmark = pytest.mark.slow
KEY = "s3cret-ключ"
PREFIX = "/llm"
WIDE, NARROW = (1280, 820), (375, 740)
IDLE = "document.querySelector('#send').textContent === 'Send'"
HOSTILE = """<img src=x onerror="document.title = 1"><script>document.title = 2</script>"""
FITS = """[document.documentElement, ...document.querySelectorAll(".log, [role=tabpanel]")]
    .every((part) => part.scrollWidth <= part.clientWidth)"""
PARIS = "What is the capital of France?"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if shutil.which(PROGRAM) is None:
        objection = "This machine has no Chromium; make setup-dev says how to get it."
        if os.environ.get("CI") == "true":  # there a skip would pass for a proof
            pytest.fail(objection, pytrace=False)
        pytest.skip(objection)
    with browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def server(demo_model: Path) -> Iterator[LiveServer]:
    """Behind a key, and under a prefix that its proxy leaves in the path."""
    *options, model = serve_words(demo_model, MODEL_NAME, [])
    arguments = (*options, "--max-model-len", "2048", "--root-path", PREFIX)
    with live_server(model, *arguments, env={"VLLM_API_KEY": KEY}) as running:
        yield running


@pytest.fixture
def opened(chromium: Browser, server: LiveServer) -> Callable[[], Page]:
    """A fresh tab that has the console and no key."""

    def open_page() -> Page:
        page = chromium.page()
        page.resize(*WIDE)
        page.open(f"{server.url}{PREFIX}/console")
        return page

    return open_page


@pytest.fixture
def page(opened: Callable[[], Page], server: LiveServer) -> Iterator[Page]:
    """The console with the key. When the test ends, the browser must have had no complaint, and have asked
    nobody but the server, under its prefix."""
    page = opened()
    page.value(f"sessionStorage.setItem('slipway.key', {json.dumps(KEY)})")
    page.open(f"{server.url}{PREFIX}/console")
    page.until("document.querySelector('#model').value")
    page.fill("[name=max_tokens]", "40")
    page.fill("[name=temperature]", "0")
    page.events.clear()
    yield page
    assert page.complaints() == []
    assert {url for url in page.requested() if not url.startswith(f"{server.url}{PREFIX}/")} == set()
    assert page.value("document.title") == "Slipway console"


def ask(page: Page, text: str) -> str:
    """The text of the answer, when it is over."""
    before = page.value("document.querySelectorAll('.answer').length")
    page.fill("#message", text)
    page.press("Enter")
    page.until(f"document.querySelectorAll('.answer').length > {before}")
    page.until(f"{IDLE} && document.querySelector('.answer:last-child .facts span')")
    return page.text(".answer:last-child > .prose")


def bodies(page: Page) -> list[dict[str, object]]:
    """What was sent to the chat's path."""
    sent = [
        event["params"]["request"] for event in page.events if event["method"] == "Network.requestWillBeSent"
    ]
    return [json.loads(one["postData"]) for one in sent if one["url"].endswith("/v1/chat/completions")]


def test_a_key_is_asked_for_and_a_wrong_one_is_said_to_be(opened: Callable[[], Page]) -> None:
    page = opened()
    page.until("document.querySelector('#key-dialog').open")
    assert page.text("#key-note") == "This server answers only those who have its key."
    page.fill("#key", "wrong")
    page.press("Enter")
    page.until("document.querySelector('#key-note').textContent.includes('none of this server')")
    page.fill("#key", KEY)
    page.press("Enter")
    assert page.until("document.querySelector('#model').value") == MODEL_NAME
    assert not page.value("document.querySelector('#key-dialog').open")
    assert page.value("[localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]


def test_an_answer_streams_and_each_token_shows_its_probabilities(page: Page) -> None:
    page.value(
        """window.lengths = new Set(), new MutationObserver(() => {
             lengths.add(document.querySelector(".answer > .prose").textContent.length);
           }).observe(document.querySelector("#log"), { childList: true, subtree: true }), null"""
    )
    assert "Paris" in ask(page, PARIS)
    whole = page.value("document.querySelector('.answer > .prose').textContent.length")
    assert any(0 < length < whole for length in page.value("[...lengths]")), "it came in parts"
    assert page.text("#log .user") == PARIS
    tokens = page.value("[...document.querySelectorAll('#log .token')].map((token) => token.textContent)")
    assert "".join(tokens) == page.text(".answer > .prose")
    assert " Paris" in tokens
    page.hover(f".answer .token:nth-child({tokens.index(' Paris') + 1})")
    page.until("!document.querySelector('#probabilities').hidden")
    shown = page.value(
        "[...document.querySelectorAll('.candidate')].map((row) => row.innerText.split(/\\s+/))"
    )
    assert len(shown) == 5
    shares = [float(row[1]) for row in shown]
    assert shares == sorted(shares, reverse=True)
    assert page.text(".candidate.drawn .text") == "␣Paris"
    page.point(2, 2)
    page.until("document.querySelector('#probabilities').hidden")
    page.value("document.querySelector('.answer > .prose').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert page.text(".candidate.drawn .text") == tokens[1].replace(" ", "␣")
    page.press("Escape")
    assert page.value("document.querySelector('#probabilities').hidden")


def test_the_parameters_are_sent_as_they_are_set(page: Page) -> None:
    for name, value in {
        "temperature": "0.5",
        "top_p": "0.9",
        "top_k": "7",
        "max_tokens": "3",
        "seed": "11",
    }.items():
        page.fill(f"[name={name}]", value)
    page.fill("#system", "Be brief.")
    page.fill("#stop", "END\n\nSTOP")
    ask(page, "Hello")
    assert "3 tokens" in page.text(".facts")
    (body,) = bodies(page)
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    assert (body["temperature"], body["top_p"], body["top_k"], body["max_tokens"]) == (0.5, 0.9, 7, 3)
    assert (body["seed"], body["stop"], body["model"]) == (11, ["END", "STOP"], MODEL_NAME)
    page.click("#defaults")
    page.choose("#form", "json_schema")
    page.fill("#rule", '{"enum": ["Rome"]}')
    assert ask(page, "Which city?") == '"Rome"'
    page.fill("#rule", "{not json")
    page.fill("#message", "Which city?")
    page.press("Enter")
    assert page.value("document.querySelector('#rule').validationMessage").startswith("This is not JSON")
    assert len(bodies(page)) == 2


def test_what_the_server_refuses_is_said_in_its_words_and_can_be_mended(page: Page) -> None:
    page.fill("[name=max_tokens]", "99999")
    page.fill("#message", PARIS)
    page.press("Enter")
    page.until(f"{IDLE} && document.querySelector('.answer .complaint')")
    assert "max_tokens" in page.text(".answer .complaint")
    page.fill("[name=max_tokens]", "4")
    page.click("#retry")
    page.until(f"{IDLE} && document.querySelector('.facts span')")
    assert page.value("document.querySelectorAll('.turn').length") == 2
    assert [body["messages"] for body in bodies(page)] == [[{"role": "user", "content": PARIS}]] * 2
    refused = [complaint for complaint in page.complaints() if "400" in complaint]
    assert len(refused) == 1  # the browser's own line about the status
    page.events[:] = [event for event in page.events if event["method"] != "Log.entryAdded"]


def test_an_answer_can_be_stopped_and_a_line_begun(page: Page) -> None:
    page.fill("#message", "Count:")
    page.press("Enter", shift=True)
    page.call("Input.insertText", text="one, two")
    assert page.value("document.querySelector('#message').value") == "Count:\none, two"
    page.fill("[name=max_tokens]", "1500")
    page.choose("#form", "regex")
    page.fill("#rule", "([a-z]+ ){400}")
    page.click("#send")
    page.until("document.querySelectorAll('.answer .token').length > 3")
    page.click("#send")
    page.until(f"{IDLE} && document.querySelector('.facts').textContent.includes('stopped by you')")
    page.click("#defaults")
    page.fill("[name=max_tokens]", "40")
    ask(page, PARIS)
    roles = [message["role"] for message in bodies(page)[-1]["messages"]]  # type: ignore[index,attr-defined]
    assert roles == ["user", "assistant", "user"]
    page.click("#clear")
    assert page.value("document.querySelectorAll('.turn').length") == 0


def test_a_call_is_shown_and_its_result_sent_back(page: Page) -> None:
    page.click("#tab-tools")
    page.click("#tools-used")
    page.choose("#tool-choice", "weather")
    page.fill("#message", "How is the weather in Bern?")
    page.press("Enter")
    page.until("document.querySelector('.calls button')")
    assert page.text(".call h3") == "Calls weather"
    assert json.loads(page.text(".call .arguments"))["city"] in ("Paris", "Bern")
    page.fill(".call textarea", '{"celsius": 21}')
    page.click(".calls button")
    page.until(f"{IDLE} && document.querySelectorAll('.answer').length === 2")
    assert page.text(".answer:last-child > .prose")
    assert page.value("document.querySelector('.calls button')") is None
    first, second = bodies(page)
    assert first["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    _, call, result = second["messages"]  # type: ignore[misc,attr-defined]
    assert result == {
        "role": "tool",
        "tool_call_id": call["tool_calls"][0]["id"],
        "content": '{"celsius": 21}',
    }
    assert (second["tools"], second["tool_choice"]) == (first["tools"], "none")


def test_markup_in_any_text_stays_text(page: Page) -> None:
    page.fill("#system", HOSTILE)
    page.choose("#form", "regex")
    page.fill("#rule", "".join(f"[{letter}]" for letter in HOSTILE))
    assert ask(page, HOSTILE) == HOSTILE
    assert page.text("#log .user") == HOSTILE
    page.hover(".answer .token")
    page.until("!document.querySelector('#probabilities').hidden")
    assert page.value("document.querySelectorAll('#log img, #log script, #probabilities img').length") == 0


def test_the_live_figures_move_and_are_read_only_while_they_are_seen(page: Page) -> None:
    assert not [url for url in page.requested() if url.endswith("/metrics")]
    page.click("#tab-metrics")
    shows = "[...document.querySelectorAll('.card')].find((card) => card.ariaLabel === 'Generated tokens')"
    page.until(f"{shows}.innerText.includes('0.0 /s')")
    ask(page, PARIS)
    page.until(f"!{shows}.innerText.includes('0.0 /s')")
    page.until(f"{shows}.querySelector('polyline').getAttribute('points').split(' ').length > 2")
    page.click("#tab-models")
    page.until("document.querySelector('#cards').checkVisibility() === false")
    seen = len([url for url in page.requested() if url.endswith("/metrics")])
    ask(page, "Why?")
    assert len([url for url in page.requested() if url.endswith("/metrics")]) == seen
    names = page.value("[...document.querySelectorAll('.model strong')].map((name) => name.textContent)")
    assert names == [MODEL_NAME, "demo"]
    page.click(".models li:nth-child(2) button")
    ask(page, PARIS)
    assert bodies(page)[-1]["model"] == "demo"


def test_reasoning_is_folded_in_front_of_the_answer(chromium: Browser, demo_model: Path) -> None:
    with live_server(demo_model, "--max-model-len", "2048", "--reasoning-parser", "deepseek_r1") as reasoning:
        page = chromium.page()
        page.resize(*WIDE)
        page.open(f"{reasoning.url}/console")
        page.until("document.querySelector('#model').value")
        page.fill("[name=max_tokens]", "12")
        page.fill("[name=temperature]", "0")  # one answer in fifty is over after five tokens
        assert ask(page, "Think.") == ""
        assert not page.value("document.querySelector('.reasoning').open")
        page.click(".reasoning summary")
        assert page.value("document.querySelectorAll('.reasoning .token').length") > 5
        assert page.complaints() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_narrow_window_needs_no_scrolling_to_the_side(page: Page, tmp_path: Path, dark: bool) -> None:
    page.dark(dark)
    page.resize(*NARROW)
    ask(page, "x" * 120)
    assert page.value(FITS)
    assert not page.value("document.querySelector('#panel').checkVisibility()")
    page.click("#toggle")
    for tab in ("parameters", "tools", "metrics", "models"):
        page.click(f"#tab-{tab}")
        assert page.value(FITS), tab
    page.press("ArrowRight")
    assert page.value("document.activeElement.id") == "tab-parameters"
    page.picture(tmp_path / "narrow.png")
    ink = page.value("getComputedStyle(document.body).color")
    ground = page.value("getComputedStyle(document.documentElement).backgroundColor")
    assert (brightness(ink) > brightness(ground)) == dark


def brightness(colour: str) -> float:
    """Of `rgb(r, g, b)`."""
    return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])


@pytest.mark.parametrize(("path", "shown"), [("docs", ".opblock"), ("redoc", "[data-section-id]")])
def test_the_pages_of_the_schema_come_from_the_server_alone(
    chromium: Browser, server: LiveServer, path: str, shown: str
) -> None:
    page = chromium.page()
    page.open(f"{server.url}{PREFIX}/{path}")
    page.until(f"document.querySelector('{shown}')")
    own = (f"{server.url}{PREFIX}/", "data:", "blob:")
    end = time.monotonic() + scaled(10)
    # ReDoc would show a picture of its maker's. That the policy kept it back is told a moment later.
    while foreign := [url for url in page.sent() if not url.startswith(own)]:
        assert time.monotonic() < end, foreign
        threading.Event().wait(0.05)

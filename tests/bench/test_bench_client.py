"""The client that measures: what it sends, how it reads, and what each failure is called."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from raw_server import CHUNKED, RawServer, chunks, event, said, with_length

from slipway.bench import serve
from slipway.bench.ask import Asker
from slipway.bench.datasets import Sample
from slipway.bench.forms import FORMS, events
from slipway.bench.http import Address, Answer, Client, Connection
from slipway.bench.load import Load
from slipway.bench.measure import Outcome

SAMPLE = Sample([5, 6, 7], 4)
WHOLE = CHUNKED + chunks(said("a", "b", "c", "d"))


async def asked(*pieces: bytes, backend: str = "openai", hang_up: bool = False) -> Outcome:
    async with RawServer([pieces], hang_up).running() as server:
        return await server.asker(backend).ask(SAMPLE)


async def test_a_completion_is_asked_in_token_ids_streamed_and_with_usage():
    async with RawServer([[WHOLE]]).running() as server:
        outcome = await server.asker(temperature=0.5, ignore_eos=True).ask(SAMPLE)
    assert server.bodies == [
        {
            "prompt": [5, 6, 7],
            "max_tokens": 4,
            "stream": True,
            "stream_options": {"include_usage": True},
            "model": "m",
            "temperature": 0.5,
            "ignore_eos": True,
        }
    ]
    assert "X-Own: yes" in server.heads[0]
    assert (outcome.input_tokens, outcome.output_tokens, outcome.counted) == (3, 4, True)
    assert "".join(outcome.text) == "abcd"
    assert not outcome.error


async def test_a_header_of_the_user_replaces_the_own_one_of_its_name():
    async with RawServer([[WHOLE]]).running() as server:
        given = {"HOST": "other", "content-type": "text/json", "content-length": "1"}
        server.client = Client(server.client.address, given)
        assert (await server.asker().ask(SAMPLE)).succeeded
    lines = server.heads[0].splitlines()[1:-1]
    length = len(json.dumps(server.bodies[0]))
    assert lines == ["HOST: other", "content-type: text/json", f"Content-Length: {length}"]


def test_a_key_of_the_user_replaces_that_of_the_environment():
    arguments = {"header": ["x-a=1", "authorization=Bearer mine", "X-A=b=c"]}
    assert serve._headers(arguments, "theirs") == {"authorization": "Bearer mine", "X-A": "b=c"}


async def test_a_chat_is_one_message_of_the_user():
    delta = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}
    async with RawServer([[with_length(event({"choices": [delta]}))]]).running() as server:
        outcome = await server.asker("openai-chat").ask(Sample("Hello", 4))
    (body,) = server.bodies
    assert body["messages"] == [{"role": "user", "content": "Hello"}]
    assert body["max_completion_tokens"] == 4
    assert "prompt" not in body
    assert "max_tokens" not in body
    assert outcome.succeeded


async def test_times_count_from_the_moment_of_sending_to_each_token(monkeypatch):
    clock = iter([10.0, 10.5, 10.75, 11.5, 12.0, 13.0])  # sent, three tokens, usage, end
    for module in ("ask", "forms"):
        timer = SimpleNamespace(perf_counter=lambda: next(clock))
        monkeypatch.setattr(f"slipway.bench.{module}.time", timer)
    outcome = await asked(CHUNKED + chunks(said("a", "b", "c")))
    assert (outcome.started, outcome.ttft, outcome.gaps) == (10.0, 0.5, [0.25, 0.75])
    assert (outcome.latency, outcome.tpot) == (1.5, 0.5)
    assert list(clock) == []


@pytest.mark.parametrize("crlf", [False, True])
async def test_an_answer_is_read_the_same_wherever_it_is_cut(crlf: bool):
    body = b": a comment\n\n" + b"".join(said("a", "Ünïcödé", "c"))
    body = body.replace(b"\n", b"\r\n") if crlf else body
    framed = b"%x;ext=1\r\n%s\r\n" % (20, body[:20]) + b"%X\r\n%s\r\n" % (len(body) - 20, body[20:])
    framed += b"0\r\nTrailer: x\r\n\r\n"
    wanted = None
    for cut in range(1, len(framed)):
        reader = asyncio.StreamReader()
        answer = Answer(200, "OK", {"transfer-encoding": "chunked"}, Connection(reader, None))  # type: ignore[arg-type]
        reader.feed_data(framed[:cut])
        reading = asyncio.ensure_future(collected(answer))
        await asyncio.sleep(0)
        reader.feed_data(framed[cut:])
        found = await reading
        wanted = wanted or found
        assert found == wanted
        assert answer.keeps
    assert len(wanted or []) == 5


async def collected(answer: Answer) -> list[str]:
    return [text async for _, text in events(answer)]


async def test_a_connection_carries_one_request_after_the_other():
    async with RawServer([[WHOLE]]).running() as server:
        asker = server.asker()
        for _ in range(3):
            assert (await asker.ask(SAMPLE)).succeeded
    assert server.connections == 1


async def test_requests_at_once_have_a_connection_each_and_no_more_than_allowed():
    async with RawServer([[WHOLE]]).running() as server:
        load = Load(server.asker().ask, max_concurrency=2, on_end=lambda: None)
        await load.run([SAMPLE] * 9, [0.0] * 9)
    assert [one.error for one in load.outcomes] == [""] * 9
    assert server.connections == 2


async def test_a_connection_that_the_server_closed_meanwhile_is_opened_anew():
    async with RawServer([[WHOLE]], hang_up=True).running() as server:
        asker = server.asker()
        for _ in range(3):
            assert (await asker.ask(SAMPLE)).succeeded
    assert server.connections == 3


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        (
            [with_length(b'{"error": {"message": "n must be 1", "code": 400}}', "400 Bad Request")],
            "The server answered 400 Bad Request. n must be 1",
        ),
        (
            [with_length(b'{"error": "model not found"}', "404 Not Found")],
            "The server answered 404 Not Found. model not found",
        ),
        ([with_length(b"<html>", "502 Bad Gateway")], "The server answered 502 Bad Gateway."),
        (
            [CHUNKED, chunks([*said("a", "b")[:2], event({"error": {"message": "the engine died"}})])],
            "the engine died",
        ),
        ([CHUNKED, chunks(said("a", "b", end=None)[:2])], "The answer broke off: it has no end."),
        ([CHUNKED, chunks(said("a"))[:40]], "The answer broke off: the server closed the connection."),
        ([WHOLE[:20]], "The answer broke off: the server closed the connection."),
        ([CHUNKED, chunks([event(b"[DONE]")])], "The answer has no token."),
        ([CHUNKED, chunks([event(b"{")])], "The answer is not what OpenAI's API gives"),
        ([CHUNKED, chunks([event(b"7")])], "The answer is not what OpenAI's API gives: an event is '7'."),
        ([CHUNKED, chunks([event({"choices": [7]})])], "The answer is not what OpenAI's API gives"),
        ([CHUNKED, b"zz\r\n"], "The answer is not what OpenAI's API gives"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], "This is no answer of HTTP: 'SSH-2.0-OpenSSH_9.2'."),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000], "The answer has a head or a line of more than 65536"),
        ([CHUNKED, chunks([b"data: " + b"x" * 5_000_000])], "a line is longer than 4194304 bytes"),
    ],
)
async def test_a_failure_is_told_and_never_raised(pieces, error):
    outcome = await asked(*pieces, hang_up=True)
    assert error in outcome.error
    assert not outcome.succeeded


@pytest.mark.parametrize("backend", ["openai-embeddings", "vllm-pooling"])
async def test_an_embedding_is_one_answer_that_ends_with_its_last_byte(backend: str, monkeypatch):
    for module, now in (("ask", 10.0), ("forms", 10.75)):
        monkeypatch.setattr(f"slipway.bench.{module}.time", SimpleNamespace(perf_counter=lambda now=now: now))
    body = json.dumps({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 5}}).encode()
    async with RawServer([[with_length(body)]]).running() as server:
        outcome = await server.asker(backend).ask(SAMPLE)
    assert server.bodies == [{"input": [5, 6, 7], "model": "m"}]
    assert (outcome.latency, outcome.ttft, outcome.gaps, outcome.error) == (0.75, None, [], "")
    assert (outcome.input_tokens, outcome.output_tokens, outcome.counted) == (5, 0, True)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"data": []}', "The answer has no vector."),
        (b'{"object": "list"}', "The answer has no vector."),
        (b"[1]", "The answer is not what OpenAI's API gives"),
        (b'{"data": [1', "The answer is not what OpenAI's API gives"),
        (b'{"data": [1], "usage": 7}', "The answer is not what OpenAI's API gives"),
    ],
)
async def test_an_answer_without_a_vector_is_a_failure(body: bytes, error: str):
    outcome = await asked(with_length(body), backend="openai-embeddings")
    assert error in outcome.error


async def test_without_usage_an_embedding_has_the_tokens_that_were_sent():
    outcome = await asked(with_length(b'{"data": [1]}'), backend="openai-embeddings")
    assert (outcome.succeeded, outcome.input_tokens, outcome.counted) == (True, 3, False)


async def test_nobody_listening_is_a_failure_of_the_request():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    outcome = await Asker(Client(Address("127.0.0.1", port), {}), "/", FORMS["openai"], {}).ask(SAMPLE)
    assert outcome.error == f"http://127.0.0.1:{port} cannot be reached: Connection refused."


async def test_without_usage_the_chunks_are_counted():
    outcome = await asked(CHUNKED, chunks([*said("a", "b")[:2], event(b"[DONE]")]))
    assert (outcome.input_tokens, outcome.output_tokens, outcome.counted) == (3, 2, False)


def chat(end: str | None = None, **delta: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": end}]})


async def test_a_role_is_no_token_nor_is_an_end_without_text():
    answer = [
        chat(role="assistant", content=""),
        chat(content="a"),
        chat(reasoning_content="b"),
        chat("stop"),
    ]
    outcome = await asked(CHUNKED, chunks([*answer, event(b"[DONE]")]), backend="openai-chat")
    assert (outcome.output_tokens, len(outcome.gaps)) == (2, 1)
    assert "".join(outcome.text) == "ab"


async def test_a_token_without_text_is_one():
    outcome = await asked(CHUNKED, chunks([*said("", "", "")[:3], event(b"[DONE]")]))
    assert (outcome.output_tokens, len(outcome.gaps)) == (2, 1)  # the last is the end


@pytest.mark.parametrize(
    ("url", "shown", "authority"),
    [
        ("http://localhost:8000", "http://localhost:8000", "localhost:8000"),
        ("https://host/proxy/", "https://host:443/proxy", "host:443"),
        ("http://[::1]:80", "http://[::1]:80", "[::1]:80"),
        ("http://127.0.0.2", "http://127.0.0.2:80", "127.0.0.2:80"),
    ],
)
def test_an_address_is_read_from_its_url(url, shown, authority):
    address = Address.of(url)
    assert (str(address), address.authority) == (shown, authority)


def test_what_is_no_url_is_refused():
    with pytest.raises(ValueError, match="is not a URL such as"):
        Address.of("ftp://host")

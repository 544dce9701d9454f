"""What surrounds the answers: keys, ids, limits, origins, prefixes, documents, TLS."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from e2e.ground.patience import scaled
from serving import MODEL, Served
from starlette.applications import Starlette

from slipway.api.route import ApiRoute

BODY: dict[str, Any] = {"prompt": "a", "max_tokens": 1}
OPEN = ("/live", "/health", "/ready", "/ping", "/version", "/metrics")
PAGES = ("/console", "/docs", "/redoc", "/openapi.json")
"""What a browser opens, and the files below it."""


def routes_of(served: Served) -> list[tuple[str, str, ApiRoute]]:
    """(path, method, route) of all that the application answers."""
    app = served.http.config.app
    assert isinstance(app, Starlette)
    return [
        (re.sub(r"\{.*?\}", MODEL, route.path), method, route)
        for route in app.routes
        if isinstance(route, ApiRoute)
        for method in sorted(route.methods or ())
    ]


def spellings(path: str) -> Iterator[str]:
    """What may be taken for a path."""
    yield path + "/"
    yield "/" + path
    yield path.upper()
    yield f"/%{ord(path[1]):x}{path[2:]}"
    yield f"/.{path}"
    yield f"/x/..{path}"
    yield f"{path};x"
    yield f"{path}%00"


@pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_a_key_guards_every_path_but_those_of_probes(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    """One in `share` of the methods and spellings is tried at each path, in turn."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    served = start("--enable-lora", "--api-key", "s3cret-ключ")
    right = {"Authorization": "Bearer s3cret-ключ".encode()}
    routes = routes_of(served)
    open_ = {path for path, _, route in routes if route.public}
    assert {path for path in open_ if path != "/" and not path.startswith(PAGES)} == set(OPEN)
    assert len(routes) == sum(len(route.methods or ()) for route in served.http.config.app.routes)
    for path in OPEN:
        assert served.get(path).status_code == 200
    with httpx.Client(timeout=scaled(10)) as client:
        for number, (path, method, route) in enumerate(routes):
            if route.public:
                continue
            for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Basic s3cret"}):
                refused(client.request(method, served.url + path, headers=wrong))
            for other in ("GET", "HEAD", "OPTIONS", "POST", "PATCH")[number % share :: share]:
                assert client.request(other, served.url + path).status_code == 401, (other, path)
            for spelling in [*spellings(path)][number % share :: share]:
                answer = client.request(method, served.url + spelling, follow_redirects=True)
                assert answer.status_code in (401, 404), (method, spelling)
            if method == "GET":
                assert client.get(served.url + path, headers=right).status_code != 401, path
    assert served.post("/v1/completions", BODY, headers=right).status_code == 200
    assert served.post("/reset_prefix_cache", headers=right).status_code == 200
    assert served.engine.calls == ["reset_prefix_cache"]
    assert "s3cret" not in served.get("/server_info", headers=right).text


def test_who_has_no_key_waits_for_no_place_and_sends_no_body(start: Callable[..., Served]) -> None:
    served = start("--api-key", "s3cret", "--max-concurrency", "1")
    with served.front.admission.entered():
        refused(served.post("/v1/completions", BODY))
        full = served.post("/v1/completions", BODY, headers={"Authorization": "Bearer s3cret"})
        assert full.status_code == 429
    host, _, port = served.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=scaled(10)) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\nContent-Length: 99\r\n\r\n"
        )
        assert client.recv(1000).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "DELETE"])
def test_what_does_not_generate_enters_no_admission(start: Callable[..., Served], method: str) -> None:
    served = start("--max-concurrency", "1", loaded=False)
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert httpx.request(method, served.url + path).status_code == 405


def test_each_of_several_keys_opens_and_no_part_of_one(start: Callable[..., Served]) -> None:
    served = start("--api-key", "one,two", "three", "--api-key", "four")
    for key in ("one,two", "three", "four"):
        assert [model.id for model in served.openai(key).models.list()] == [MODEL]
    for key in ("one", "two", "three four", "thre"):
        refused(served.get("/v1/models", headers={"Authorization": f"Bearer {key}"}))


def test_a_key_opens_without_the_end_of_its_line(start: Callable[..., Served]) -> None:
    # The last byte of à and of х is white space in Latin-1, as which headers are read.
    for key in ("pear", "voilà", "успех"):
        served = start("--api-key", f"{key}\n")
        for presented in (key, f" {key}"):
            bearer = {"Authorization": b"Bearer " + presented.encode()}
            assert served.get("/v1/models", headers=bearer).status_code == 200, key
        refused(served.get("/v1/models", headers={"Authorization": b"Bearer " + key.encode()[:-1]}))


def refused(answer: httpx.Response) -> None:
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    if answer.request.method != "HEAD":
        assert answer.json()["error"]["type"] == "authentication_error"


def test_the_client_raises_its_own_error_without_the_key(start: Callable[..., Served]) -> None:
    served = start("--api-key", "s3cret")
    with pytest.raises(openai.AuthenticationError):
        served.openai("wrong").models.list()
    assert [model.id for model in served.openai("s3cret").models.list()] == [MODEL]


def test_every_served_name_is_listed_and_the_first_answers(start: Callable[..., Served]) -> None:
    served = start("--served-model-name", "one", "a/two")
    client = served.openai()
    assert [model.id for model in client.models.list()] == ["one", "a/two"]
    assert client.models.retrieve("a/two").id == "a/two"
    assert client.completions.create(model="a/two", prompt="a", max_tokens=1).model == "one"
    with pytest.raises(openai.NotFoundError, match="three"):
        client.models.retrieve("three")
    assert served.get("/v1/models/").status_code == 404


def test_while_loading_it_lives_and_requests_are_told_to_wait(start: Callable[..., Served]) -> None:
    served = start(loaded=False)
    served.engine.wait(lambda: served.client.progress is not None)
    assert served.get("/live").status_code == 200
    for told in readiness(served):
        assert (told.status_code, told.json()) == (503, {"phase": "load", "done": 3, "total": 7})
    for path in ("/v1/completions", "/tokenize"):
        answer = served.post(path, BODY)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert "3 of 7" in answer.json()["error"]["message"]
    assert served.get("/v1/models").status_code == 503
    assert served.get("/metrics").status_code == 200
    served.engine.finish_loading()
    assert served.wait_open(10)
    assert [told.status_code for told in readiness(served)] == [200] * 4
    assert served.post("/v1/completions", BODY).status_code == 200


def readiness(served: Served) -> list[httpx.Response]:
    """Every way to ask whether a request would be admitted."""
    return [*map(served.get, ("/ready", "/health", "/ping")), served.post("/ping")]


def test_over_the_limit_a_request_is_told_to_try_again(start: Callable[..., Served]) -> None:
    served = start("--max-concurrency", "1", "--enable-server-load-tracking")
    served.engine.held = 1
    served.engine.gate.clear()
    stream = served.openai().completions.create(model=MODEL, prompt="a", stream=True)
    next(iter(stream))
    assert served.get("/load").json() == {"server_load": 1}
    answer = served.post("/v1/completions", BODY)
    assert answer.status_code == 429
    assert answer.headers["retry-after"]
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert served.post("/tokenize", {"prompt": "a"}).status_code == 200
    served.engine.gate.set()
    list(stream)
    served.engine.wait(lambda: served.front.admission.num_open == 0)
    assert served.post("/v1/completions", BODY).status_code == 200


def test_a_request_id_is_honoured_and_given_back(start: Callable[..., Served]) -> None:
    served = start("--enable-request-id-headers")
    answer = served.post("/v1/completions", BODY, headers={"X-Request-Id": "my-id"})
    assert answer.headers["x-request-id"] == "my-id"
    assert answer.json()["id"] == "cmpl-my-id"
    assert len(served.get("/health").headers["x-request-id"]) == 32
    both = [served.post("/v1/completions", BODY | {"request_id": "same"}) for _ in range(2)]
    assert [one.json()["id"] for one in both] == ["cmpl-same"] * 2


def test_without_the_argument_no_request_id_is_given_back(served: Served) -> None:
    assert "x-request-id" not in served.get("/health").headers


def test_origins_are_allowed_as_listed(start: Callable[..., Served]) -> None:
    served = start("--allowed-origins", '["https://one.example"]', "--allowed-methods", '["POST"]')
    asked = {"Origin": "https://one.example", "Access-Control-Request-Method": "POST"}
    preflight = httpx.options(served.url + "/v1/completions", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://one.example"
    other = served.get("/health", headers={"Origin": "https://two.example"})
    assert "access-control-allow-origin" not in other.headers


def test_a_root_path_may_be_stripped_by_the_proxy_or_not(start: Callable[..., Served]) -> None:
    served = start("--root-path", "/llm/")
    assert served.get("/llm/v1/models").status_code == 200
    assert served.get("/v1/models").status_code == 200
    for page in ("docs", "redoc"):
        shown = served.get(f"/llm/{page}").text
        assert "/llm/openapi.json" in shown
        loaded = re.findall(r'(?:src|href)="([^"]*)"', shown)
        assert len(loaded) > 1
        for path in loaded:
            assert path.startswith("/llm/")
            assert served.get(path).status_code == 200, path
    assert served.get("/llm/openapi.json").json()["servers"] == [{"url": "/llm"}]


@pytest.mark.parametrize("arguments", [(), ("--root-path", "/llm"), ("--api-key", "secret")])
def test_a_slash_too_many_is_taken_back_without_a_word_on_host_and_prefix(
    start: Callable[..., Served], arguments: tuple[str, ...]
) -> None:
    served = start(*arguments)
    answer = served.get("/console/?a=%20b")
    assert (answer.status_code, answer.headers["location"]) == (307, "../console?a=%20b")
    assert served.get("/console/", follow_redirects=True).text == served.get("/console").text
    posted = served.post("/v1/completions/", BODY)
    assert (posted.status_code, posted.headers["location"]) == (307, "../completions")
    for path in ("/console//", "/nothing/"):
        assert served.get(path).status_code == 404


@pytest.mark.parametrize("arguments", [(), ("--root-path", "/llm"), ("--api-key", "secret")])
def test_a_browser_that_names_no_page_is_led_to_the_console(
    start: Callable[..., Served], arguments: tuple[str, ...]
) -> None:
    served = start(*arguments)
    answer = served.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "console")
    assert served.get("/", follow_redirects=True).text == served.get("/console").text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/V1/Chat/Completions", "did you mean /v1/chat/completions?"),
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/v1/models", "did you mean /v1/models?"),
        ("/models", "did you mean /v1/models?"),
        ("/openai/v1/embeddings/", "did you mean /v1/embeddings?"),
        ("/llm/v1/messages", "did you mean /v1/messages?"),
        ("/api/chat", "of Ollama, and not here; /v1/chat/completions is."),
        ("/generate", "of TGI, and not here; /v1/completions is."),
        ("/something/else", "GET /v1/models lists what is served."),
        (f"/v1/{'chat' * 500}", "GET /v1/models lists what is served."),
    ],
)
def test_a_path_that_is_not_there_leads_to_the_one_that_was_meant(
    served: Served, path: str, said: str
) -> None:
    answer = served.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].endswith(said)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", ["POST"]),
        ("POST", "/v1/models", ["GET", "HEAD"]),
        ("PATCH", "/v1/responses/resp_1", ["DELETE", "GET", "HEAD"]),
        ("GET", "/v1/messages", ["POST"]),
    ],
)
def test_a_method_that_does_not_work_is_answered_with_those_that_do(
    served: Served, method: str, path: str, allowed: list[str]
) -> None:
    answer = httpx.request(method, served.url + path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == ", ".join(allowed)
    verb = "do" if allowed[1:] else "does"
    said = f"{method} does not work on {path}; {' and '.join(allowed)} {verb}."
    assert answer.json()["error"]["message"] == said


def test_the_documents_can_be_removed(start: Callable[..., Served]) -> None:
    served = start("--disable-fastapi-docs")
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert served.get(path).status_code == 404


def test_the_openapi_document_says_which_routes_ask_for_a_key(
    start: Callable[..., Served], served: Served
) -> None:
    document = start("--api-key", "s3cret").get("/openapi.json").json()
    (scheme,) = document["components"]["securitySchemes"].items()
    assert scheme[1] == {"type": "http", "scheme": "bearer"}
    assert document["paths"]["/v1/models"]["get"]["security"] == [{scheme[0]: []}]
    assert "security" not in document["paths"]["/health"]["get"]
    assert "securitySchemes" not in served.get("/openapi.json").json()["components"]


def test_the_openapi_document_describes_the_bodies(served: Served) -> None:
    document = served.get("/openapi.json").json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"]["properties"]["temperature"]
    assert "Message" in document["components"]["schemas"]
    (name,) = document["paths"]["/v1/models/{name}"]["get"]["parameters"]
    assert (name["name"], name["in"]) == ("name", "path")
    assert "$defs" not in str(document)


ASKED = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Tell me"}],
        "logprobs": True,
        "top_logprobs": 2,
        "prompt_logprobs": 1,
        "return_token_ids": True,
    },
    "/v1/completions": {"prompt": "Tell me", "logprobs": 2, "prompt_logprobs": 1, "return_token_ids": True},
    "/v1/responses": {"input": "Tell me", "max_output_tokens": 9, "top_logprobs": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Tell me"}]},
    "/tokenize": {"prompt": "Tell me", "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/v1/models": None,
    f"/v1/models/{MODEL}": None,
    "/version": None,
    "/load": None,
}


@pytest.mark.parametrize("path", ASKED)
def test_answers_are_as_the_openapi_document_describes_them(served: Served, path: str) -> None:
    document = served.get("/openapi.json").json()
    body = ASKED[path]
    answer = served.get(path) if body is None else served.post(path, body)
    assert answer.status_code == 200
    described = document["paths"][path.replace(f"/{MODEL}", "/{name}")]["get" if body is None else "post"]
    validate(answer.json(), described["responses"]["200"]["content"]["application/json"]["schema"], document)
    wrong = served.post(path, {"messages": 1}) if body else served.post("/v1/completions", {"prompt": 1})
    validate(
        wrong.json(), described["responses"]["default"]["content"]["application/json"]["schema"], document
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_events_are_as_the_openapi_document_describes_them(served: Served, path: str) -> None:
    document = served.get("/openapi.json").json()
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    body = {name: value for name, value in (ASKED[path] or {}).items() if name != "prompt_logprobs"}
    options = {"stream_options": {"include_usage": True}} if path.endswith("completions") else {}
    answer = served.post(path, body | {"stream": True} | options)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    assert len(events) > 1
    for event in events:
        validate(json.loads(event), content["text/event-stream"]["schema"], document)


def validate(value: Any, schema: dict[str, Any], document: dict[str, Any]) -> None:
    """Fields that the document does not name are faults too."""
    components = {
        name: shape | ({"additionalProperties": False} if "properties" in shape else {})
        for name, shape in document["components"]["schemas"].items()
    }
    jsonschema.validate(value, {**schema, "components": {"schemas": components}})


MIDDLEWARE = """
class Marked:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def marked(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-class", b"yes")]
            await send(message)

        await self.app(scope, receive, marked)


async def marks(request, call_next):
    answer = await call_next(request)
    answer.headers["x-function"] = "yes"
    return answer
"""


def test_middleware_may_be_a_class_or_a_function(
    start: Callable[..., Served], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("middleware")
    (folder / "own_middleware.py").write_text(MIDDLEWARE)
    monkeypatch.syspath_prepend(str(folder))
    served = start("--middleware", "own_middleware.Marked", "--middleware", "own_middleware.marks")
    headers = served.get("/health").headers
    assert headers["x-class"] == headers["x-function"] == "yes"
    chunks = list(served.openai().completions.create(model=MODEL, prompt="a", stream=True, max_tokens=3))
    assert chunks


def test_an_unexpected_exception_is_answered_with_an_id(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    served = start()
    served.front.check_name = None  # type: ignore[assignment, method-assign]  # a defect
    answer = served.post("/v1/completions", BODY, headers={"X-Request-Id": "find-me"})
    assert answer.status_code == 500
    assert "find-me" in answer.json()["error"]["message"]
    assert any("find-me" in record.message and record.exc_info for record in caplog.records)


def test_what_the_server_was_started_with_is_not_for_every_page(served: Served) -> None:
    assert served.get("/server_info", headers={"Origin": "https://any.example"}).status_code == 404


def certificate(folder: Path, name: str) -> tuple[str, str]:
    paths = (str(folder / "cert.pem"), str(folder / "key.pem"))
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", paths[0], "-keyout", paths[1]),
        ],
        check=True,
        capture_output=True,
    )
    return paths


def test_tls_serves_https(start: Callable[..., Served], tmp_path_factory: pytest.TempPathFactory) -> None:
    cert, key = certificate(tmp_path_factory.mktemp("tls"), "first")
    served = start("--ssl-certfile", cert, "--ssl-keyfile", key)
    context = ssl.create_default_context(cafile=cert)
    assert httpx.get(served.url + "/health", verify=context).status_code == 200


def test_the_api_process_imports_nothing_heavy() -> None:
    program = (
        "import sys, slipway.api.server, slipway.api.lifecycle\n"
        "import slipway.text.folder, slipway.text.gguf\n"
        "heavy = {'torch', 'transformers', 'numpy', 'fastapi'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


PROFILE = ("/start_profile", "/stop_profile")


def test_traces_are_started_and_stopped_only_where_they_have_a_folder(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [start().post(path).status_code for path in PROFILE] == [404, 404]
    monkeypatch.setenv("VLLM_TORCH_PROFILER_DIR", "/traces")
    served = start("--api-key", "k")
    assert [served.post(path).status_code for path in PROFILE] == [401, 401]
    key = {"Authorization": "Bearer k"}
    served.engine.replies["stop_profile"] = "ok /traces/a b.json"
    assert served.post("/start_profile", headers=key).status_code == 200
    assert served.post("/stop_profile", headers=key).json() == {"trace": "/traces/a b.json"}
    assert served.engine.calls == ["start_profile", "stop_profile"]
    served.engine.replies |= {"start_profile": "It runs already.", "stop_profile": "failed: the disk is full"}
    answer = served.post("/start_profile", headers=key)
    assert (answer.status_code, answer.json()["error"]["message"]) == (409, "It runs already.")
    answer = served.post("/stop_profile", headers=key)
    assert answer.status_code == 500
    assert "the disk is full" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_to_a_client_of_http_1_0_ends_with_the_connection(served: Served, stream: bool) -> None:
    host, _, port = served.url.removeprefix("http://").partition(":")
    body = json.dumps({"prompt": "x", "max_tokens": 2, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection((host, int(port)), timeout=scaled(10)) as client:
        client.sendall(f"{head}\r\n\r\n".encode() + body)
        received = b"".join(iter(lambda: client.recv(1 << 16), b""))
    headers, _, answer = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers
    assert (b"content-length" in headers) is not stream
    if stream:
        assert answer.startswith(b"data: {")
        assert answer.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(answer)["usage"]["completion_tokens"] == 2

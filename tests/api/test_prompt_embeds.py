"""`prompt_embeds` of /v1/completions: what is taken, and what is refused before the engine sees it."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from e2e.ground.patience import scaled
from safetensors.torch import load_file, save

from factory import make_model
from live_server import LiveServer, live_server
from slipway.api.errors import ApiError
from slipway.api.prompt_embeds import rows_of

HIDDEN = 64
TOKENS = [5, 77, 300, 12, 9, 41]
GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 2}


def of_torch(value: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **how)
    return file.getvalue()


def text(file: bytes) -> str:
    return base64.b64encode(file).decode()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama", tmp_path_factory.mktemp("model") / "llama", dtype="bfloat16")


@pytest.fixture(scope="module")
def embeds(model: Path) -> torch.Tensor:
    """[tokens, hidden] of TOKENS, in the model's type."""
    return load_file(model / "model.safetensors")["model.embed_tokens.weight"][TOKENS].contiguous()


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[LiveServer]:
    with live_server(model, "--served-model-name", "m", "--enable-prompt-embeds") as started:
        yield started


def asked(server: LiveServer, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json={"model": "m", **body}, timeout=scaled(60))


def test_a_texts_own_embeddings_give_its_answer_in_every_form(
    server: LiveServer, embeds: torch.Tensor
) -> None:
    expected = asked(server, prompt=TOKENS, **GREEDY).json()
    files = [
        *(save({"rows": embeds}), of_torch(embeds), of_torch(embeds, _use_new_zipfile_serialization=True)),
        *(save({"x": embeds.float()}, {"format": "pt"}), of_torch(embeds.float())),
    ]
    for file in files:
        found = asked(server, prompt_embeds=text(file), **GREEDY).json()
        assert found["choices"] == expected["choices"]
        assert found["usage"]["prompt_tokens"] == len(TOKENS)


def test_several_prompts_and_several_answers_of_each(server: LiveServer, embeds: torch.Tensor) -> None:
    prompts = [TOKENS, TOKENS[:3]]
    files = [text(save({"rows": embeds[: len(one)].contiguous()})) for one in prompts]
    drawn = {"max_tokens": 6, "n": 2, "seed": 3, "temperature": 1.0}
    expected = asked(server, prompt=prompts, **drawn).json()["choices"]
    assert asked(server, prompt_embeds=files, **drawn).json()["choices"] == expected
    assert len(expected) == 4


def test_a_stream_says_what_the_whole_answer_says(server: LiveServer, embeds: torch.Tensor) -> None:
    body = {"prompt_embeds": text(save({"rows": embeds})), "max_tokens": 8, "temperature": 0}
    whole = asked(server, **body).json()["choices"][0]["text"]
    lines = asked(server, **body, stream=True).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == whole


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "a"},
        {"echo": True},
        {"prompt_logprobs": 1},
        {"truncate_prompt_tokens": 2},
        {"return_token_ids": True},
        {"use_beam_search": True, "n": 2},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_asks_for_the_tokens_of_a_prompt_without_tokens_is_refused(
    fields: dict[str, Any], server: LiveServer, embeds: torch.Tensor
) -> None:
    answer = asked(server, prompt_embeds=text(save({"rows": embeds})), **fields)
    assert answer.status_code == 400
    assert "does not go with prompt_embeds" in answer.json()["error"]["message"]


def test_neither_a_prompt_nor_embeddings_is_one_field_too_few(server: LiveServer) -> None:
    answer = asked(server, max_tokens=1)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_a_prompt_longer_than_the_context_is_refused(server: LiveServer) -> None:
    answer = asked(server, prompt_embeds=[text(save({"x": torch.zeros(600, HIDDEN)}))])
    assert answer.status_code == 400
    assert "maximum context length is 512" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "prompt_embeds[0]"


@pytest.mark.slow
def test_a_server_that_was_not_told_to_takes_none(model: Path, embeds: torch.Tensor) -> None:
    with live_server(model, "--served-model-name", "m") as plain:
        answer = asked(plain, prompt_embeds=text(save({"rows": embeds})))
    assert answer.status_code == 400
    assert "it needs --enable-prompt-embeds" in answer.json()["error"]["message"]


def compressed(file: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(file)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return out.getvalue()


class Evil:
    """Would run code where it is unpickled without care."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run",)


ROWS = torch.zeros(2, HIDDEN)
REFUSED: dict[str, tuple[bytes, str]] = {
    "an infinite one": (save({"a": (ROWS + torch.inf).bfloat16()}), "infinite, or none"),
    "code": (of_torch(Evil()), "holds what calls __builtin__.print and not one dense tensor"),
    "a list": (of_torch([ROWS]), "holds what needs EMPTY_LIST and not one dense tensor"),
    "a parameter": (of_torch(torch.nn.Parameter(ROWS)), "_rebuild_parameter and not one dense tensor"),
    "sparse": (of_torch(ROWS.to_sparse()), "and not one dense tensor"),
    "an expanded row": (of_torch(torch.zeros(1, HIDDEN).expand(2000, HIDDEN)), "is a view of other numbers"),
    "a part of more": (of_torch(torch.zeros(9, HIDDEN)[:2]), "is a view of other numbers"),
    "a transposed one": (of_torch(torch.zeros(HIDDEN, 2).T), "is a view of other numbers"),
    "doubles": (of_torch(ROWS.double()), r"holds a torch\.DoubleStorage, and must hold F32, F16, BF16"),
    "compressed": (compressed(of_torch(torch.zeros(4000, HIDDEN))), "holds compressed records"),
    "half a file": (of_torch(ROWS)[:200], "is no whole file of torch.save"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_of_torch_without_one_dense_tensor_is_refused_with_the_reason(case: str) -> None:
    file, message = REFUSED[case]
    with pytest.raises(ApiError, match=message) as raised:
        rows_of(text(file), HIDDEN, "prompt_embeds")
    assert raised.value.param == "prompt_embeds"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_numbers_keep_their_value(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows = (torch.randn(3, HIDDEN) * 100).to(dtype)
    for file in (save({"x": rows}), of_torch(rows)):
        found = np.frombuffer(rows_of(text(file), HIDDEN, "x"), np.float32)
        assert np.array_equal(found, rows.float().numpy().ravel())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_row_alone_is_read_whatever_the_pickle_is_written_by(protocol: int) -> None:
    row = torch.randn(HIDDEN)[None]
    file = of_torch(row.requires_grad_(), pickle_protocol=protocol)
    assert rows_of(text(file), HIDDEN, "x") == row.detach().numpy().tobytes()


def test_torch_reads_none_of_it() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import slipway.api.prompt_embeds as p\n"
        f"for given in sys.stdin.read().split(): print(len(p.rows_of(given, {HIDDEN}, 'x')))\n"
    )
    given = f"{text(save({'x': ROWS}))} {text(of_torch(ROWS))}"
    ended = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.split()) == (0, [str(8 * HIDDEN)] * 2), ended.stderr

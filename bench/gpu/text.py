"""Greedy text of the device beside the CPU's, in bf16, of the same checkpoint: the stage `text`.

The model is a small one of random weights, written here; or, as the part `demo`, the file that SLIPWAY_DEMO
names. That may lie in pieces FILE.0, FILE.1, … beside where it should be: it is put together. At the first
difference each side's token must be among the other's five best: only rounding is allowed to tell.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from answers import Said, unlike
from checkpoints import write_plain
from device import CUDA, DEVICE
from in_process import INTERPRETED, Engine, Request
from shapes import written
from stage import Part, run
from table import Rows

from slipway.engine.params import SamplingParams
from slipway.text.gguf import load as load_tokenizer

LENGTHS = (5, 70, 300, 1500) if CUDA else (5, 20)
"""Of prompts: the longest is one that decoding splits between processors."""
OUTPUT = 64 if CUDA else 4
DOCS = Path(__file__).parents[2] / "docs"


def random_model(rows: Rows) -> bool:
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        model = written("small" if CUDA else "tiny", Path(folder))
        write_plain(model, DEVICE)
        return compared(rows, "random", model, [[rng.randrange(2, 500) for _ in range(n)] for n in LENGTHS])


def demo(rows: Rows) -> bool:
    """On the beginnings of this repository's own manual."""
    model = whole(Path(os.environ["SLIPWAY_DEMO"]))
    text = "\n\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    tokens = load_tokenizer(model).encode(text, add_special_tokens=False)
    return compared(rows, "demo", model, [tokens[1000 * turn :][:n] for turn, n in enumerate(LENGTHS)])


def compared(rows: Rows, name: str, model: Path, prompts: list[list[int]]) -> bool:
    params = SamplingParams(OUTPUT, temperature=0.0, num_logprobs=5)
    work: list[Request] = [(prompt, params) for prompt in prompts]
    ours, cpus = answers(model, work, "cuda"), answers(model, work, "cpu")
    right = True
    for prompt, one, other in zip(prompts, ours, cpus, strict=True):
        wrong = unlike(one, other)
        equal = sum(a.token == b.token for a, b in zip(one, other, strict=True))
        rows.add(
            model=name, prompt=len(prompt), tokens=OUTPUT, equal=equal, correct=not wrong, wrong=wrong or None
        )
        right &= not wrong
    return right


def answers(model: Path, work: Sequence[Request], device: str) -> list[list[Said]]:
    bounds = {"max_num_seqs": 8, "max_model_len": 2048} if CUDA else INTERPRETED
    engine = Engine(model, load_format="auto", device=device, dtype="bfloat16", **bounds)
    said = engine.run(work)
    engine.close()
    return said


def whole(path: Path) -> Path:
    """The file, put together from its pieces where it is not there. Raises FileNotFoundError without any."""
    if path.exists():
        return path
    pieces = sorted(path.parent.glob(f"{path.name}.[0-9]"))
    if not pieces:
        raise FileNotFoundError(f"SLIPWAY_DEMO names {path}: neither it nor {path.name}.0 is there.")
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as target:
        for piece in pieces:
            with piece.open("rb") as source:
                shutil.copyfileobj(source, target)
    return partial.replace(path)


def parts() -> dict[str, Part]:
    known: dict[str, Part] = {"random": random_model}
    return known | {"demo": demo} if "SLIPWAY_DEMO" in os.environ else known


if __name__ == "__main__":
    raise SystemExit(run("text", parts(), __doc__))

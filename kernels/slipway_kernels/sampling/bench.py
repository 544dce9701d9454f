"""Sampling's cases: what requests ask for, by itself and together, at the vocabulary of a large model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipway_kernels.cuda.cases import Case, Size
from slipway_kernels.sampling import reference
from slipway_kernels.sampling.device import report, sample
from slipway_kernels.sampling.record import MASKED, Acceptance, Features, RecordLayout
from slipway_kernels.sampling.reference import Draft, Sampling
from slipway_kernels.sampling.workspace import Draws, History, Masks, workspace

MAX_LEN = 2048
TOP = 5


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's sampling parameters by the names of the engine; see record.Params."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    seed: int = 0
    num_logprobs: int = -1
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()

    def sampling(self) -> Sampling:
        """The same for the reference."""
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            min_tokens=self.min_tokens,
            seed=self.seed,
            bias=self.logit_bias,
            allowed=self.allowed_token_ids,
            stop=self.stop_token_ids,
            bad_words=self.bad_words,
        )


ASKED = {
    "greedy": Asked(temperature=0.0),
    "greedy, 5 log-probabilities": Asked(temperature=0.0, num_logprobs=TOP),
    "temperature 0.8": Asked(temperature=0.8),
    "temperature 0.6, top-p 0.95, top-k 20": Asked(temperature=0.6, top_p=0.95, top_k=20),
    "top-p 0.95": Asked(top_p=0.95),
    "typical 0.9, min-p 0.01": Asked(typical_p=0.9, min_p=0.01),
    "stop tokens held back": Asked(temperature=0.0, min_tokens=MAX_LEN, stop_token_ids=(2, 3)),
    "penalties": Asked(repetition_penalty=1.1, presence_penalty=0.5),
    "top-p 0.95, penalties, 5 log-probabilities": Asked(
        top_p=0.95, repetition_penalty=1.1, presence_penalty=0.5, num_logprobs=TOP
    ),
}
FULL = [(1, torch.float32), (64, torch.float32), (64, torch.bfloat16), (512, torch.float32)]


def cases(device: torch.device, size: Size) -> Iterator[Case]:
    for rows, dtype in FULL if size == "full" else [(2, torch.float32)]:
        logits = _logits(rows, 128_256 if size == "full" else 300, device).to(dtype)
        for name, asked in ASKED.items():
            yield _case(name, asked, logits)
        yield _case("masks", ASKED["temperature 0.8"], logits, masked=True)
        for name in ("temperature 0.8", "top-p 0.95"):
            yield _case(f"{name}, typical acceptance", ASKED[name], logits, acceptance=Acceptance(0.09, 0.3))
        yield _report_case(logits)


def _logits(rows: int, vocab: int, device: torch.device) -> Tensor:
    """Rows as a language model gives them: a few tokens far above the noise."""
    noise = torch.randn(rows, vocab, device=device) * 2.5
    if device.type != "meta":
        noise[:, torch.randperm(vocab, device=device)[:40]] += torch.linspace(4, 12, 40, device=device)
    return noise


def _case(
    name: str,
    asked: Asked,
    logits: Tensor,
    *,
    masked: bool = False,
    acceptance: Acceptance | None = None,
) -> Case:
    rows, vocab = logits.shape
    device = logits.device
    layout = RecordLayout(vocab)
    records = torch.zeros(1, layout.words, dtype=torch.int32, device=device)
    if device.type != "meta":
        for offset, words in layout.encode(asked):
            records[0, offset : offset + len(words)] = torch.from_numpy(words).to(device)
    features = Features.of(asked, vocab) | (MASKED if masked else Features())
    length = min(MAX_LEN // 2, vocab)
    tokens = torch.arange(MAX_LEN, dtype=torch.int32, device=device)[None] * (vocab // MAX_LEN + 1) % vocab
    lengths = torch.full((rows,), length, dtype=torch.int32, device=device)
    history = History(tokens, lengths, lengths[:1] // 2)
    slots = torch.zeros(rows, dtype=torch.int32, device=device)
    masks = Masks(torch.full((rows, -(-vocab // 32)), -1, dtype=torch.int32, device=device), lengths)
    space = workspace(rows, vocab, features, device)
    out = Draws.empty(rows, max(features.max_top, 0), device)

    def run() -> Tensor:
        sample(logits, slots, records, layout, history, space, out, features, masks, acceptance)
        return out.token

    def expected() -> Tensor:
        known = tuple(tokens[0, :length].tolist())
        drafts: list[Draft | None] = [None] * rows
        if acceptance is not None:  # every row but the last has one: they are all of a slot
            behind = Draft(int(tokens[0, length]), acceptance.threshold, acceptance.alpha)
            drafts[:-1] = [behind] * (rows - 1)
        values = zip(logits.float().cpu().numpy(), drafts, strict=True)
        drawn = [
            reference.sample_row(asked.sampling(), row, known, length // 2, draft=draft).token
            for row, draft in values
        ]
        return torch.tensor(drawn, dtype=torch.int32, device=device)

    passes = 1 + features.edits * 2 + features.penalties
    result = 8 * rows  # a token, and whether it failed
    return Case(
        f"{name} {rows}x{vocab} {str(logits.dtype)[6:]}",
        run,
        expected if rows <= 2 else None,
        tolerance=0.0,
        bytes=logits.nbytes + rows * vocab * 4 * passes * features.edits + result,
        written=rows * vocab * 4 * (1 + features.penalties) * features.edits + result,
        peers=_peers(name, logits),
    )


def _peers(name: str, logits: Tensor) -> dict[str, Callable[[], object]]:
    if name == "greedy":
        return {"torch.argmax": lambda: torch.argmax(logits, -1)}
    if name == "temperature 0.8":
        return {"torch.multinomial": lambda: torch.multinomial((logits.float() / 0.8).softmax(-1), 1)}
    if name == "top-p 0.95":
        return {"torch.sort": lambda: torch.sort(logits, -1)}
    return {"torch.topk": lambda: torch.topk(logits, 20)} if "top-k 20" in name else {}


def _report_case(logits: Tensor) -> Case:
    rows, vocab = logits.shape
    given = torch.full((rows,), 3, dtype=torch.int32, device=logits.device)
    space = workspace(rows, vocab, Features(), logits.device)
    out = Draws.empty(rows, TOP, logits.device)
    written = rows * (12 + 8 * TOP)

    def run() -> Tensor:
        report(logits, given, space, out)
        return out.logprob

    def expected() -> Tensor:
        reported = (reference.report(row, 3, 0) for row in logits.float().cpu().numpy())
        return torch.from_numpy(np.array([one.logprob for one in reported], np.float32)).to(logits.device)

    return Case(
        f"prompt log-probabilities {rows}x{vocab} {str(logits.dtype)[6:]}",
        run,
        expected if rows <= 2 else None,
        tolerance=1e-5,
        bytes=logits.nbytes + written,
        written=written,
        peers={"torch.log_softmax": lambda: torch.log_softmax(logits.float(), -1)},
    )

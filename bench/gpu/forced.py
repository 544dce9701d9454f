"""Runs over the same tokens: the error of each step's logits, and the largest that rounding explains.

Runs that sample for themselves can be compared up to their first different token only, and rounding and a
fault look the same there. So one run generates, and the others are forced to its tokens by a logits
processor: every step runs the engine's own kernels and graphs, and the processor gets the model's logits
before it forces the draw.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch
from answers import Said
from in_process import Engine, Request
from torch import Tensor

from slipway.engine.params import Processor, SamplingParams
from slipway.load.torch_arrays import torch_type
from slipway_kernels.cuda.compare import fp8_sum, rounding, row_error

At = tuple[int, int]
"""A request, and a token of its output: both count from 0."""

Logits = dict[At, Tensor]
"""Of the model, [vocab] at each step."""

_SEEN: Logits = {}
"""Logits of the current run. Processors run in threads of this process."""


class Force:
    """A logits processor of one request: keeps the model's logits, and allows only the forced token."""

    def __init__(self, request: int, tokens: Sequence[int]) -> None:
        self._request = request
        self._tokens = tokens

    def __call__(self, prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
        _SEEN[self._request, len(output)] = logits.clone()
        only = torch.full_like(logits, -math.inf)
        only[self._tokens[len(output)]] = 0.0
        return only


def forced(engine: Engine, work: Sequence[Request], tokens: Sequence[Sequence[int]]) -> Logits:
    """The model's logits [vocab] at each token, where these tokens are the requests' output.

    Raises RuntimeError if a request got another token, or if the log-probability that the engine reports is
    not the one that its logits have.
    """
    _SEEN.clear()
    requests: list[Request] = []
    for number, ((prompt, params), own) in enumerate(zip(work, tokens, strict=True)):
        force = Processor(f"{__name__}.Force", json.dumps([[number, list(own)], {}]))
        requests.append((prompt, msgspec.structs.replace(params, processors=(force,), num_logprobs=0)))
    for number, (ours, own) in enumerate(zip(engine.run(requests), tokens, strict=True)):
        if [one.token for one in ours] != list(own):
            raise RuntimeError(f"request {number} was forced to {list(own)} and has other tokens")
        for place, one in enumerate(ours):
            _check_reported(one, _SEEN[number, place], f"request {number}, token {place}")
    return dict(_SEEN)


def _check_reported(said: Said, logits: Tensor, where: str) -> None:
    """Log-probabilities are of the model's own distribution, before processors edit it."""
    assert said.logprobs is not None, "it was asked for"
    expected = float(logits.double().log_softmax(0)[said.token])
    if not math.isclose(said.logprobs.logprob, expected, abs_tol=1e-4, rel_tol=1e-5):
        raise RuntimeError(f"{where}: {said.logprobs.logprob} is reported, and the logits have {expected}")


@dataclass(frozen=True, slots=True)
class Apart:
    """The errors of a run's steps: the largest one, its request and step, and the median."""

    error: float
    request: int
    step: int
    median: float

    @classmethod
    def of(cls, errors: Mapping[At, float]) -> Apart:
        worst = max(errors, key=errors.__getitem__)
        return cls(errors[worst], *worst, sorted(errors.values())[len(errors) // 2])


def apart(found: Mapping[At, Tensor], base: Mapping[At, Tensor]) -> Apart:
    """By `row_error` of each step's logits. Raises ValueError if the runs do not have the same steps."""
    if found.keys() != base.keys():
        raise ValueError(f"the runs have {len(found)} and {len(base)} steps, and not the same ones")
    return Apart.of({at: row_error(row, base[at]) for at, row in found.items()})


def apart_as_prompt(
    engine: Engine, work: Sequence[Request], tokens: Sequence[Sequence[int]], base: Mapping[At, Tensor]
) -> Apart:
    """The same tokens as the end of a prompt: prefill kernels compute what decode kernels did.

    The engine reports log-probabilities of prompts, and no logits. Where logits are off by e at most, so is
    their log-sum-exp: the error is half of a log-probability's difference, by the largest logit of the row.
    """
    requests: list[Request] = []
    for (prompt, _), own in zip(work, tokens, strict=True):
        requests.append(([*prompt, *own], SamplingParams(1, temperature=0.0, num_prompt_logprobs=5)))
    engine.run(requests)
    errors: dict[At, float] = {}
    for number, ((prompt, _), own) in enumerate(zip(work, tokens, strict=True)):
        reported = engine.hub.prompt_logprobs[str(number)]
        for step, one in enumerate(reported[len(prompt) :]):
            assert one is not None, "only a prompt's first token has none"
            row = base[number, step].double()
            expected = row.log_softmax(0)
            pairs = [(own[step], one.logprob), *one.top]
            most = max(abs(logprob - float(expected[token])) for token, logprob in pairs)
            errors[number, step] = most / 2 / float(row.abs().max())
    return Apart.of(errors)


ROUNDINGS = 10
"""Of a layer: two norms, four products, rope, attention, activation, residual stream."""
PRODUCTS = 4
"""Of a layer, whose inputs fp8 rounds again."""
MARGIN = 3.0
"""Times the root mean square. In a simulation of the model `small` in torch, with every rounding drawn anew,
two runs were 1.5 times it apart in bf16 and 0.9 times in fp8. A page with flipped bits is 9 times in fp8."""


def explained(engine: Engine) -> float:
    """The largest error of a step's logits that rounding explains, for two runs of this engine's model.

    Every operation on a row's way rounds it once, in each run: `rounding` says by how much at most, the root
    mean square of which is √3 smaller. Norms keep relative errors as they are. So n independent roundings of
    two runs are √(2n) times one rounding apart; `MARGIN` is for the largest of many steps.
    """
    config, plan = engine.start.config, engine.start.plan
    spec = plan.route.spec
    assert spec is not None, "a model with code of ours"
    fp8 = config.quantization == "fp8"
    terms = max(spec.hidden, max(getattr(layer.mlp, "intermediate", 0) for layer in spec.layers))
    return error_of_roundings(len(spec.layers), terms, torch_type(plan.element), fp8=fp8)


def error_of_roundings(layers: int, terms: int, dtype: torch.dtype, *, fp8: bool) -> float:
    """terms: of the longest sum. fp8: inputs of products are rounded to it, and tensor cores add up in it."""
    squares = (ROUNDINGS * layers + 2) * rounding(dtype, terms=terms) ** 2
    if fp8:
        squares += PRODUCTS * layers * ((torch.finfo(torch.float8_e4m3fn).eps / 2) ** 2 + fp8_sum(terms) ** 2)
    return MARGIN * math.sqrt(2 * squares / 3)

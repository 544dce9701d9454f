"""How a model runs, in words, for the log at the level DEBUG."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form, GroupedForm
from slipway.worker.plan import ModelPlan

log = logging.getLogger("slipway.load")


def log_fallback(error: LoadError) -> None:
    """Say why our own code does not run a model."""
    log.debug("Transformers' code may run it: %s", error.message)


def log_plan(plan: ModelPlan) -> None:
    """Say what was decided of a model before its weights are read, where the log takes it."""
    if log.isEnabledFor(logging.DEBUG):
        for sentence in _sentences(plan):
            log.debug("%s.", sentence)


def _sentences(plan: ModelPlan) -> Iterator[str]:
    route, checkpoint, kv = plan.route, plan.checkpoint, plan.kv
    code = "our own" if route.native else "transformers'"
    yield f"{route.architecture} runs by {code} code, with contexts of {plan.max_model_len} tokens"
    quantized = f", quantized as {checkpoint.quantization}" if checkpoint.quantization else ""
    yield f"{checkpoint.total_bytes} bytes of weights are read, of {checkpoint.source_dtype}{quantized}"
    yield f"Activations, and matrices that are not quantized, are {plan.element}"
    for form, count in Counter(map(_named, route.forms(checkpoint))).items():
        yield f"Matrices of {form}: {count}"
    for (kind, bits), count in Counter(checkpoint.decoded.values()).items():
        yield f"Matrices of {kind} ({bits:g} bits a weight), which become {plan.element}: {count}"
    if kv.groups:
        yield f"Keys and values are {plan.kv_dtype}, in pages of {kv.page_bytes} bytes"
    layers = Counter(kv.groups[number] for number, _ in kv.layer_place)
    for group, count in layers.items():
        seen = f"the last {group.window} tokens" if group.window else "all tokens"
        yield f"Layers that see {seen}: {count}, with {group.block_size} tokens in a page"
    if plan.pooler is not None:
        yield "Its rows are pooled; it generates nothing"


def _named(form: Form) -> str:
    if not isinstance(form, GroupedForm):
        return f"{form.values} with a scale for {_shared(form.block)}"
    if form.blocks:
        return form.blocks
    minimums = " and minimums" if form.minimums else ""
    order = ", in an order of its own" if form.order else ""
    return f"integers of {form.bits} bits with scales{minimums} of groups of {form.group}{order}"


def _shared(block: tuple[int, int] | None) -> str:
    return "each row" if block is None else f"each block of {block[0]} by {block[1]}"

"""Which kernels a server of a model launches, found without a device, weights or numbers."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec

from slipway.dist.mesh import Mesh
from slipway.engine.config import EngineConfig
from slipway.fit.describe import opened, silent
from slipway.fit.served_most import served
from slipway.load.errors import LoadError
from slipway.model.pooling import TokenIds, no_tokenizer
from slipway.temporary import private_folder
from slipway.worker.device.every_step import decodes, draws, prompts, sizes
from slipway.worker.device.load import load
from slipway.worker.device.prompt_logprobs import REPORTED_AT_ONCE
from slipway.worker.drafts.plan import plan_with_draft
from slipway_kernels.cuda.specialization import Specialization, recording

PAGES = 2
"""Of the KV cache: what a page is decides on kernels, and not how many there are."""
UNKNOWN = "SHIFTED"
"""A constant that the numbers in a matrix decide: whether its codes for zero are whole numbers."""
SHORT = 1
"""A context that no attention kernel splits; graphs are captured for longer ones alone."""


def needed_kernels(
    config: EngineConfig, arch: int, token_ids: TokenIds = no_tokenizer
) -> dict[str, Specialization]:
    """By `Specialization.key` those of every step, on a device of that compute capability, times ten.

    Raises LoadError where the engine would not start, or where what it launches shows only with weights or
    among several devices.
    """
    if Mesh.of(config).size > 1:
        raise LoadError(
            "UnsupportedModel",
            "What several devices launch is not known without them.",
            hint="Name the kernels of one device; the others are compiled at the start.",
        )
    config = msgspec.structs.replace(config, use_tqdm_on_load=False)
    with recording(arch) as noted:
        config, plan = plan_with_draft(opened(config), config, silent, token_ids, lambda: arch)
        worker = load(plan, config, silent)
        worker.profile()
        worker.allocate(PAGES)
        known = {s.key: s for s in noted}
        graphs, most = worker.graph_sizes, (worker.most_requests, worker.token_budget)
        lengths = (SHORT, *graphs.lengths)
        for each, length, adapters in product(graphs.each, lengths, graphs.adapters):
            of_all = (*most, each, length, adapters)
            drawn = [*draws(config.max_logprobs)] if length == SHORT else []
            for step in decodes(*of_all):
                worker.rehearse(*step, drawn)
            for step in prompts(*of_all):
                worker.rehearse(*step)
            worker.rehearse(*step, reported=sizes(REPORTED_AT_ONCE + 1) if drawn else ())
            known |= {s.key: s for s in noted}
            noted.clear()
    others = [replace(s, constants={**s.constants, UNKNOWN: False}) for s in known.values() if _unsure(s)]
    return known | {s.key: s for s in others}


def _unsure(s: Specialization) -> bool:
    return s.constants.get(UNKNOWN) is True


def needed_most(arch: int) -> dict[str, Specialization]:
    """Those of the models that are served most, where the device has the numbers that they are served in."""
    known: dict[str, Specialization] = {}
    for model, settings in served():
        with private_folder("slipway-") as folder:
            Path(folder, "config.json").write_text(json.dumps(model))
            config = EngineConfig(model=folder, device="cuda", **settings)
            with suppress(LoadError):  # fp8 before sm_89
                known |= needed_kernels(config, arch)
    return known

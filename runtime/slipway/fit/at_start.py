"""The estimate that a starting engine makes of itself, before it reads its weights."""

from __future__ import annotations

import logging

from slipway.engine.config import EngineConfig
from slipway.engine.messages import Memory
from slipway.exits import Exit
from slipway.fit.describe import needs_of_plan
from slipway.fit.devices import Device
from slipway.fit.estimate import Estimate, estimate
from slipway.load.errors import LoadError
from slipway.machine import whole_memory
from slipway.model.pooling import TokenIds
from slipway.worker.plan import ModelPlan

log = logging.getLogger("slipway.engine")


def estimated(config: EngineConfig, plan: ModelPlan, token_ids: TokenIds) -> Memory | None:
    """What the model is about to take; None where nobody knows, as of a host that holds only some of it.

    config, plan  of the first rank
    token_ids     as its plan was made with
    """
    if config.device == "cpu" and config.nnodes > 1:
        return None
    try:
        found = _estimated(config, plan, token_ids)
    except (LoadError, Exit):  # not known without its weights; or the start is about to say what is wrong
        return None
    except Exception:  # a start that would succeed does not fail for a number
        log.exception("how much memory the model needs could not be estimated")
        return None
    if found.short is not None:
        log.warning("By the estimate it does not fit: %s %s", found.short.message, found.short.hint)
    return _told(found)


def _estimated(config: EngineConfig, plan: ModelPlan, token_ids: TokenIds) -> Estimate:
    if config.device == "cpu":
        return estimate(
            needs_of_plan(config, plan, token_ids, lambda: 0), Device("this machine", whole_memory())
        )
    from slipway.worker.device.memory import device_memory  # imports torch
    from slipway_kernels.cuda.launch import arch_of, device_in_use

    device = device_in_use()
    arch, (_, whole) = arch_of(device), device_memory(device)
    return estimate(needs_of_plan(config, plan, token_ids, lambda: arch), Device("the device", whole, arch))


def _told(found: Estimate) -> Memory:
    on_host = found.needs.kind == "cpu"
    in_full = found.total if on_host else found.ranks[0].total
    return Memory(
        capacity=found.device.memory,
        estimated=in_full,
        at_rest=found.at_rest if on_host else in_full,
        kv_tokens=found.kv_tokens,
        max_model_len=found.max_model_len,
        short="" if found.short is None else found.short.part,
    )


def taken(config: EngineConfig) -> int:
    """Bytes of the first rank's device in use now, by whoever uses it; 0 on a host."""
    if config.device == "cpu":
        return 0
    from slipway.worker.device.memory import device_memory
    from slipway_kernels.cuda.launch import device_in_use

    free, whole = device_memory(device_in_use())
    return whole - free

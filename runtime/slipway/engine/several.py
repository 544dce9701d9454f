"""Starts the engines of a host, which share its processors, its memory and its devices."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from slipway.engine.config import EngineConfig
from slipway.engine.launch import Engine, EngineProcess, EngineThread
from slipway.exits import DEVICE_UNAVAILABLE, Exit

VISIBLE = "CUDA_VISIBLE_DEVICES"


@contextmanager
def started(
    config: EngineConfig, ranks: Sequence[int], size: int, *, alone: bool, in_process: bool
) -> Iterator[list[Engine]]:
    """An engine for each of these ranks of `size`; all end with the block.

    alone       their server has but the one

    in_process  as a thread of this process
    """
    with ExitStack() as ending:
        engines: list[Engine] = []
        for rank, share in zip(ranks, shares(config, ranks, size, alone=alone), strict=True):
            engines.append(EngineThread(share, rank) if in_process else EngineProcess(share, rank))
            ending.callback(engines[-1].stop, patience=0)
        yield engines


def shares(config: EngineConfig, ranks: Sequence[int], size: int, *, alone: bool) -> list[EngineConfig]:
    """One configuration for each of these ranks of `size`: alike, but each with its part of the machine."""
    if alone:
        return [config]
    return [
        msgspec.structs.replace(
            config,
            name=f"engine {rank} of {size}",
            engines_on_host=len(ranks),
            place_on_host=place,
            machine_parts=config.machine_parts * len(ranks),
            record=None if config.record is None else f"{config.record}.{rank}",
        )
        for place, rank in enumerate(ranks)
    ]


def keep_own_devices(config: EngineConfig, environ: MutableMapping[str, str]) -> None:
    """Hide the devices of the other engines of this host, before anything has looked at them.

    Raises Exit where a list of visible devices has too few for all.
    """
    if config.engines_on_host == 1:
        return
    count = config.tensor_parallel_size * config.pipeline_parallel_size
    own = range(config.place_on_host * count, (config.place_on_host + 1) * count)
    listed = environ.get(VISIBLE)
    if listed is None:
        environ[VISIBLE] = ",".join(map(str, own))
        return
    devices = [device for device in listed.split(",") if device]
    if len(devices) < own.stop:
        wanted = count * config.engines_on_host
        raise Exit(
            DEVICE_UNAVAILABLE,
            f"{VISIBLE}={listed} shows {len(devices)} devices, and {config.engines_on_host} engines of "
            f"{count} each take {wanted}.",
            f"Show {wanted} devices, or lower --data-parallel-size.",
            "data_parallel_size",
        )
    environ[VISIBLE] = ",".join(devices[own.start : own.stop])

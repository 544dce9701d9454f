"""Classes of others as workers: --worker-cls and --worker-extension-cls.

They run code of others in every process that computes. Only what an argument names is imported, and none by
being installed.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from slipway import plugins
from slipway.engine.config import EngineConfig
from slipway.engine.executor import Steps, Worker
from slipway.exits import BAD_ARGUMENTS, Exit
from slipway.load.progress import Progress
from slipway.worker.plan import ModelPlan

METHODS = sorted(name for part in (Steps, Worker) for name in vars(part) if not name.startswith("_"))
FACTS = sorted(Worker.__annotations__.keys() - {"token_budget"})
"""What a worker says of itself once it has its weights."""

log = logging.getLogger("slipway.engine")


def check_classes(config: EngineConfig) -> None:
    """Raises Exit where a class that the configuration names cannot be used: before anything is read."""
    if config.worker_cls != "auto":
        _worker_class(config.worker_cls)
    if config.worker_extension_cls:
        _found(config.worker_extension_cls, "worker_extension_cls")


def of_named_classes(load: Callable[..., Worker]) -> Callable[..., Worker]:
    """`load`, or what takes its place and its arguments; and what is mixed into either's worker."""

    def loaded(plan: ModelPlan, config: EngineConfig, progress: Progress, **more: Any) -> Worker:
        worker = _own(config.worker_cls, load)(plan, config, progress, **more)
        if config.worker_extension_cls:
            _extend(worker, config.worker_extension_cls)
        return worker

    return loaded


def _own(name: str, load: Callable[..., Worker]) -> Callable[..., Worker]:
    if name == "auto":
        return load
    cls = _worker_class(name)

    def loaded(*arguments: Any, **more: Any) -> Worker:
        worker: Worker = cls(*arguments, **more)
        lacks = [fact for fact in FACTS if not hasattr(worker, fact)]
        if lacks:
            raise _no_worker(name, lacks)
        log.info("Workers are of the class %s.", name)
        return worker

    return loaded


def _worker_class(name: str) -> type:
    cls = _found(name, "worker_cls")
    lacks = [method for method in METHODS if not callable(getattr(cls, method, None))]
    if lacks:
        raise _no_worker(name, lacks)
    return cls


def _no_worker(name: str, lacks: list[str]) -> Exit:
    return Exit(
        BAD_ARGUMENTS,
        f"--worker-cls {name} is no worker: it has no {', '.join(lacks)}.",
        "Let it have all that slipway.engine.executor.Worker says, as by inheriting from "
        "slipway.worker.cpu.CpuWorker.",
        "worker_cls",
    )


def _found(name: str, argument: str) -> type:
    flag = f"--{argument.replace('_', '-')}"
    cls = plugins.imported(name, flag, argument)
    if not inspect.isclass(cls):
        message = f"{flag} {name} is no class: it is of type {type(cls).__name__}."
        raise Exit(BAD_ARGUMENTS, message, "Name the class itself.", argument)
    return cls


def _extend(worker: Worker, name: str) -> None:
    """Give a worker what a class has, as if its own class had been made with it.

    The worker exists by then, so the class's __init__ is not called. Raises Exit where both have something of
    one name.
    """
    argument = "worker_extension_cls"
    extension, own = _found(name, argument), type(worker)
    added = {key for cls in extension.__mro__[:-1] for key in vars(cls) if not key.startswith("__")}
    if taken := sorted(key for key in added if hasattr(worker, key)):
        raise Exit(
            BAD_ARGUMENTS,
            f"--worker-extension-cls {name} has {', '.join(taken)}, and so has the worker's own class "
            f"{own.__module__}.{own.__qualname__}.",
            "Rename them: an extension adds to a worker and replaces nothing. --worker-cls replaces it.",
            argument,
        )
    try:
        worker.__class__ = type(own.__name__, (own, extension), {"__module__": own.__module__})
    except TypeError as error:
        message = f"--worker-extension-cls {name} cannot be mixed into a worker: {error}."
        hint = "Let it be a plain class without __slots__ that inherits from nothing built in."
        raise Exit(BAD_ARGUMENTS, message, hint, argument) from None
    log.info("Workers have what %s has: %s.", name, ", ".join(sorted(added)) or "nothing")

"""The adapters that requests may name as their model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from slipway.api.configure import AdapterModule, Settings
from slipway.api.daemon import in_daemon
from slipway.api.own_model import OwnModel, OwnModels
from slipway.api.texts import Texts
from slipway.args.model_names import MAX_MODEL_NAME, fit_for_a_model
from slipway.engine.client import Client
from slipway.engine.messages import AdapterRef, Ready
from slipway.exits import BAD_ARGUMENTS, BY_REASON, LOAD_STALLED, Exit
from slipway.load.errors import LoadError
from slipway.load.hub import locate_adapter
from slipway.load.virtual_tokens import count_virtual_tokens

logger = logging.getLogger("slipway.api")

MOST = 4096
"""Names at a time: /v1/models tells all of them."""


class Unloadable(Exception):
    """Why a name cannot be given, or taken away, in a sentence."""


class UnknownAdapter(Unloadable):
    """It has no adapter."""


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """An adapter that the engine has read and found fit."""

    ref: AdapterRef
    path: str
    """A folder or a repository, as whoever loaded it called it."""
    parent: str
    """The model that it is said to be made for."""
    created: int
    """Unix time."""
    own: OwnModel | None = None
    """What its requests have in place of the model's own."""

    @property
    def kind(self) -> str:
        return "prompt" if self.ref.num_virtual else "LoRA"


class Found(NamedTuple):
    """Where an adapter is, and its virtual tokens, where it is a prompt adapter."""

    folder: str
    num_virtual: int


class Adapters:
    """The one ledger of their names; which of them are in memory is the engine's concern.

    Numbers count from 1 in the order of loading, so that several API processes give those of the arguments
    the same ones. A request takes its adapter from here when it goes to the engine, and the engine hears of
    an end behind it.
    """

    def __init__(self, settings: Settings, engine: Client) -> None:
        self._settings = settings
        self._engine = engine
        self._served: dict[str, ServedAdapter] = {}
        self._numbers = count(1)
        self._holds: Counter[int] = Counter()
        """By number: runs that ask the engine for it again and again."""
        self._leaving: set[int] = set()
        """Numbers of those that the engine is to forget when no such run is left."""
        self._own: OwnModels | None = None
        """Once the model is there."""
        self._turn = asyncio.Lock()
        """One change at a time: of two loads of a name the second finds the first, and downloads do not pile
        up."""

    def __iter__(self) -> Iterator[ServedAdapter]:
        return iter(self._served.values())

    def get(self, name: str | None) -> ServedAdapter | None:
        return self._served.get(name) if name and self._served else None

    def hold(self, ref: AdapterRef) -> Callable[[], None]:
        """Have the engine keep an adapter until what this gives is called: once, when the run has ended that
        asks for it again and again."""
        self._holds[ref.number] += 1
        return partial(self._let_go, ref.number)

    def find_modules(self) -> list[Found]:
        """The folders of --lora-modules and --prompt-adapters, downloaded where they are not there yet.

        Raises Exit.
        """
        found = []
        for module in self._settings.adapters:
            try:
                folder = self._folder(module.path)
                virtual = count_virtual_tokens(module.name, Path(folder)) if module.is_prompt else 0
            except LoadError as error:
                raise _unfit(module, error) from None
            found.append(Found(folder, virtual))
        return found

    async def load_modules(self, found: list[Found], texts: Texts, ready: Ready) -> None:
        """Have the engine read them. Raises Exit for the first that it cannot serve.

        texts, ready  what is known of the model
        """
        self._own = OwnModels(texts, ready, self._settings)
        for module, (folder, virtual) in zip(self._settings.adapters, found, strict=True):
            try:
                await self._read(module.name, module.path, folder, module.base_model_name, virtual)
            except LoadError as error:
                raise _unfit(module, error) from None
            except TimeoutError:
                seconds = self._settings.load_timeout
                message = f"The engine did not read the adapter {module.name} within {seconds:g} s."
                raise Exit(LOAD_STALLED, message, argument=module.argument) from None

    async def load(self, name: str, path: str, *, in_place: bool = False) -> ServedAdapter:
        """Serve an adapter under a name; `in_place` in place of the one that has it. What runs with that goes
        on to its end.

        Raises Unloadable for the name, LoadError for the adapter, TimeoutError, EngineDead.
        """
        async with self._turn:
            before = self._served.get(name)
            self._check_free(name, in_place)
            folder = await in_daemon(partial(self._folder, path))
            served = await self._read(name, path, folder, before.parent if before else None)
            if before is not None:
                await self._forget(before.ref)
            return served

    async def unload(self, name: str, number: int | None = None) -> ServedAdapter:
        """Serve it no more. What runs with it goes on to its end.

        Raises Unloadable where the name has none, or none of that number; TimeoutError, EngineDead.
        """
        async with self._turn:
            served = self._served.get(name)
            if served is None or served.ref.num_virtual:
                raise UnknownAdapter(f"There is no LoRA adapter {name!r}.")
            if number not in (None, served.ref.number):
                raise Unloadable(f"The LoRA adapter {name!r} has the id {served.ref.number}, not {number}.")
            del self._served[name]
            logger.info("LoRA adapter %s (number %d) is unloaded.", name, served.ref.number)
            await self._forget(served.ref)
            return served

    def _check_free(self, name: str, in_place: bool) -> None:
        if not fit_for_a_model(name):
            raise Unloadable(f"{name!r} is no name: one is 1 to {MAX_MODEL_NAME} printable characters.")
        if name in self._settings.served_names:
            raise Unloadable(f"{name!r} is the name of the model itself; give the adapter another.")
        if name in self._served and self._served[name].ref.num_virtual:
            raise Unloadable(f"{name!r} is the name of a prompt adapter; give the LoRA adapter another.")
        if name in self._served and not in_place:
            message = f"The LoRA adapter {name!r} has already been loaded. "
            raise Unloadable(message + "With load_inplace: true this one takes its place.")
        if name not in self._served and len(self._served) >= MOST:
            raise Unloadable(f"{MOST} LoRA adapters are loaded, as many as may be; unload one first.")

    def _folder(self, path: str) -> str:
        settings = self._settings
        return str(locate_adapter(path, token=settings.hf_token, download_dir=settings.download_dir))

    async def _read(
        self, name: str, path: str, folder: str, parent: str | None, virtual: int = 0
    ) -> ServedAdapter:
        ref = AdapterRef(next(self._numbers), name, folder, virtual)
        try:
            verdict = await self._engine.load_adapter(ref, timeout=self._settings.load_timeout)
        except TimeoutError:
            await self._forget(ref)
            raise
        if verdict != "ok":
            raise LoadError("BadCheckpoint", verdict)
        own = None
        if not virtual and self._own is not None:
            try:
                own = await in_daemon(partial(self._own.of, name, Path(folder)))
            except LoadError:
                await self._forget(ref)
                raise
        served = ServedAdapter(ref, path, parent or self._settings.name, int(time.time()), own)
        self._served[name] = served
        logger.info("%s adapter %s (number %d) is loaded from %s.", served.kind, name, ref.number, folder)
        return served

    async def _forget(self, ref: AdapterRef) -> None:
        if self._holds[ref.number]:
            self._leaving.add(ref.number)
        else:
            await self._engine.unload_adapter(ref.number, timeout=self._settings.rpc_timeout)

    def _let_go(self, number: int) -> None:
        self._holds[number] -= 1
        if self._holds[number]:
            return
        del self._holds[number]
        if number in self._leaving:
            self._leaving.remove(number)
            self._engine.forget_adapter(number)


def _unfit(module: AdapterModule, error: LoadError) -> Exit:
    """The end of a start with an adapter that cannot be served: a bad argument, but where the hub is at
    fault."""
    own = error.code in ("ModelNotFound", "BadCheckpoint")
    flag = f"--{module.argument.replace('_', '-')}"
    message = f"{flag} {module.name}={module.path}: {error.message}"
    hint = error.hint or "Leave it out, or name one that is fit for this model."
    return Exit(BAD_ARGUMENTS if own else BY_REASON[error.code], message, hint, module.argument)

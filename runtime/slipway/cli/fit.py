"""`slipway fit`: whether a model fits a device, and what takes how much of its memory."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from slipway import driver, envs
from slipway.args import ArgumentError, Resolved, resolve
from slipway.cli import documents
from slipway.fit.devices import Device, UnknownDevice, named, of_labels
from slipway.service import InvalidService, ServiceSpec
from slipway.service.profile import with_profile
from slipway.service.quantity import parse

if TYPE_CHECKING:
    from slipway.fit import Estimate, Needs
    from slipway.fit.instead import Arguments
    from slipway.fit.report import Answer

_DESCRIPTION = """Estimate the memory that a served model needs, and whether it fits: from its configuration
and the headers of its files, never from its weights. Of a model on the hub configuration and tokenizer are
fetched."""
_EPILOG = """All other arguments are those of `slipway serve`, whose help says what they mean. Exit status: 0
where the model fits one of the devices, 1 where it fits none, 2 where the input cannot be understood."""
_ANY_ARCH = 90
"""Of a device of which only the memory is known."""


class _Refused(Exception):
    """What is wrong with the command's own options, and what to do."""


def run(argv: Sequence[str]) -> int:
    """Exit status 0 where the model fits one of the devices, 1 where it fits none, 2 for input that cannot be
    understood."""
    options, words = _parser().parse_known_args(argv)
    from slipway.exits import Exit, leave
    from slipway.load.errors import LoadError

    try:
        answers = _answers(options, words)
    except (_Refused, ArgumentError, envs.InvalidEnvironment, InvalidService, UnknownDevice) as error:
        return _failed(str(error))
    except (LoadError, Exit) as error:
        return _failed("\n  ".join(filter(None, (error.message, error.hint))))
    from slipway.fit.report import as_json, as_table, verdict

    for found, instead in answers:
        if options.json:
            print(json.dumps(as_json(found, instead)))
        else:
            sys.stdout.write(as_table(found, instead))
    leave(os.environ, verdict(answers))
    return 0 if any(found.fits for found, _ in answers) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slipway fit",
        usage="slipway fit (MODEL [arguments of `slipway serve`] | -f FILE [MODEL]) [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-f", "--file", metavar="FILE", help="InferenceService document, or - for standard input"
    )
    documents.add_profile(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--device",
        metavar="NAME",
        help="H100, L40S, RTX 4090 and others; cpu: processors and memory of a host",
    )
    which.add_argument(
        "--node",
        metavar="FILE",
        action="append",
        help="the device of a node, by its labels: what `kubectl get node NAME --output yaml` prints, - for "
        "standard input, or KEY=VALUE,KEY=VALUE. May be repeated: the model has to fit one of them",
    )
    parser.add_argument(
        "--device-memory",
        metavar="SIZE",
        help="memory of each device, or with --device cpu of the host: 24GiB",
    )
    parser.add_argument("--devices", metavar="N", type=int, help="how many there are (default: enough)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON, sizes in bytes")
    return parser


def _answers(options: argparse.Namespace, words: list[str]) -> list[Answer]:
    """Of each device that was asked for, with what would fit where the model does not."""
    if options.devices is not None and options.devices < 1:
        raise _Refused(f"--devices {options.devices}: there is one at least.")
    if options.profile and options.file is None:
        raise _Refused("--profile is for a document: give it by -f.")
    spec = None if options.file is None else _document(options.file, options.profile)
    devices = _devices(options, spec)
    environ: Mapping[str, str] = os.environ
    if spec is not None:
        environ = {**environ, **{entry.name: entry.value for entry in spec.env if entry.value is not None}}
        words = _words(spec, environ, words)
    return [_answer(words, environ, device, options.devices) for device in devices]


def _answer(words: list[str], environ: Mapping[str, str], device: Device, devices: int | None) -> Answer:
    from slipway.exits import Exit
    from slipway.fit import estimate
    from slipway.fit.instead import argv, instead
    from slipway.load.errors import LoadError

    @cache
    def needs(arguments: tuple[tuple[str, int | str], ...], arch: int) -> Needs:
        more = argv(dict(arguments))
        resolved = resolve([*words, *more, "--device", "cuda" if arch else "cpu"], environ, dry_run=True)
        if not arguments and arch == device.arch:
            for warning in resolved.warnings:
                print(f"slipway fit: warning: {warning}", file=sys.stderr)
        return _needs(resolved, envs.read(environ), arch)

    def ask(arguments: Arguments, device: Device) -> Estimate | None:
        try:
            return estimate(needs(tuple(arguments.items()), device.arch), device)
        except (ArgumentError, LoadError, Exit):
            return None  # the engine would not start so

    found = estimate(needs((), device.arch), device, devices)
    return found, instead(found, ask)


def _needs(resolved: Resolved, environment: envs.Environment, arch: int) -> Needs:
    from slipway.api.configure import engine_config  # what follows is not light
    from slipway.args.data_parallel import copies_here
    from slipway.engine.tokens import token_ids_of
    from slipway.fit.describe import describe

    config = engine_config(resolved, environment, frontends=resolved["api_server_count"])
    return describe(config, arch, engines=copies_here(resolved), token_ids=token_ids_of(config))


def _document(name: str, profile: str | None) -> ServiceSpec:
    """With its profile's parts, where that is at hand."""
    # Who runs the cluster has no say in what a model needs.
    spec = documents.read_document(name, documents.ANYTHING)
    return with_profile(spec, documents.read_profile(profile, spec))


def _words(spec: ServiceSpec, environ: Mapping[str, str], given: list[str]) -> list[str]:
    """The server's words; `given` may be another place of the model."""
    from slipway.service.engine import arguments
    from slipway.service.local import local_model
    from slipway.service.origin import words_of

    if len(given) > 1 or any(word.startswith("-") for word in given):
        raise _Refused(f"With a document, {given[-1]} has no place: its arguments are under spec.engine.")
    model = given[0] if given else local_model(spec, environ)
    return [model, *words_of(arguments(spec))]


def _devices(options: argparse.Namespace, spec: ServiceSpec | None) -> list[Device]:
    """Raises UnknownDevice, and _Refused where nothing says which."""
    memory = _size(options.device_memory)
    if options.node is None:
        return [_device(options, spec, memory)]
    return [_with(of_labels(documents.read_labels(node)), memory) for node in options.node]


def _device(options: argparse.Namespace, spec: ServiceSpec | None, memory: int | None) -> Device:
    from slipway.service.devices import kind

    on_host = options.device == "cpu"
    if options.device is None and memory is None:
        on_host = not driver.loaded() if spec is None else kind(spec) == "cpu"
        if not on_host:
            raise _Refused("Which device? Give --device, such as H100, --node or --device-memory.")
    if on_host:
        limit = spec.resources.memory if spec is not None else None
        return _host(memory or _size(limit))
    if options.device is None:
        return Device("device", memory or 0, _ANY_ARCH)
    return _with(named(options.device), memory)


def _with(device: Device, memory: int | None) -> Device:
    """The device, of another memory where one is given."""
    return replace(device, memory=memory or device.memory, arch=device.arch or _ANY_ARCH)


def _host(memory: int | None) -> Device:
    from slipway.machine import whole_memory

    return Device("the container", memory) if memory else Device("this machine", whole_memory())


def _size(text: str | None) -> int | None:
    """Bytes of 24GiB, 24Gi, 24GB or 24e9."""
    if text is None:
        return None
    number = parse(text.removesuffix("B"))
    if number is None or number <= 0:
        raise _Refused(f"--device-memory {text} is no size. Write 24GiB, 24Gi, 24GB or 24e9.")
    return int(number)


def _failed(message: str) -> int:
    print(f"slipway fit: error: {message}", file=sys.stderr)
    return 2

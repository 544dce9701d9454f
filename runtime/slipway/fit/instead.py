"""What would fit in place of what does not: one change at a time, each asked of the estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from slipway.args.schema import ARGUMENTS
from slipway.fit.devices import FACTS, Device
from slipway.fit.estimate import Estimate

MOST_DEVICES = 8
"""Of one host, if its number of devices is unknown."""
QUANTIZATIONS = ("fp8", "int4")
"""What plain weights can become at a start, the most precise first."""
_FP8_ARCH = 89
"""The first with products of fp8."""

Arguments = Mapping[str, int | str]
"""Values by the names of the schema, such as `max_model_len`."""
Ask = Callable[[Arguments, Device], Estimate | None]
"""The estimate with these arguments over those that were given; None where the engine refuses them."""


@dataclass(frozen=True, slots=True)
class Instead:
    """arguments  over those that were given
    device     in place of the one that was asked for; None: that one"""

    arguments: Arguments = field(default_factory=dict)
    device: str | None = None

    @property
    def words(self) -> str:
        """As the command line says it."""
        return f"with {' '.join(argv(self.arguments))}" if self.arguments else f"on {self.device}"


def argv(arguments: Arguments) -> list[str]:
    """As the command line has them."""
    return [word for name, value in arguments.items() for word in (ARGUMENTS[name].flag, str(value))]


def instead(found: Estimate, ask: Ask) -> list[Instead]:
    """The changes that suffice, each alone; none where the model fits as it is.

    Where no change on this device suffices alone, spreading and quantizing are tried together.
    """
    if found.short is None:
        return []
    same = [Instead(arguments) for arguments in _changes(found, ask)]
    if found.needs.kind != "cuda":
        return same  # more processes on a host take more of it
    other = (Instead(device=larger.name) for larger in _larger(found.device) if _fits(ask({}, larger)))
    return [*(same or map(Instead, _together(found, ask))), *islice(other, 1)]


def _changes(found: Estimate, ask: Ask) -> Iterator[Arguments]:
    def first(*tried: Arguments) -> Iterator[Arguments]:
        return islice((one for one in tried if _fits(ask(one, found.device))), 1)

    if found.max_model_len:
        yield from first({"max_model_len": found.max_model_len})
    if found.needs.kind == "cuda":
        yield from first(*({"tensor_parallel_size": size} for size in _sizes(found)))
    yield from first(*({"quantization": name} for name in _quantizations(found.device)))
    if found.short is not None and found.short.part == "kv_cache":
        yield from first({"kv_cache_dtype": "fp8"})


def _together(found: Estimate, ask: Ask) -> Iterator[Arguments]:
    tried: Iterator[Arguments] = (
        {"tensor_parallel_size": size, "quantization": name}
        for size in _sizes(found)
        for name in _quantizations(found.device)
    )
    return islice((both for both in tried if _fits(ask(both, found.device))), 1)


def _sizes(found: Estimate) -> Iterator[int]:
    size, most = 2 * found.needs.tensor_parallel_size, found.device.count or MOST_DEVICES
    beside = max(1, found.needs.processes // found.needs.tensor_parallel_size)
    while size * beside <= most:
        yield size
        size *= 2


def _quantizations(device: Device) -> tuple[str, ...]:
    return QUANTIZATIONS if device.arch >= _FP8_ARCH else QUANTIZATIONS[1:]


def _larger(device: Device) -> list[Device]:
    """Those of the table that have more memory, the smallest first."""
    known = sorted((fact.device for fact in FACTS if fact.arch), key=lambda one: (one.memory, -one.arch))
    return [one for one in known if one.memory > device.memory]


def _fits(found: Estimate | None) -> bool:
    return found is not None and found.fits

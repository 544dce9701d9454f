"""Compiled kernels in files, by what they were compiled for.

An image carries them, and a server looks there before it asks the compiler.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from slipway_kernels.cuda.specialization import Specialization

log = logging.getLogger("slipway.kernels")

WARP = 32
"""Threads."""
SCRATCH_ALIGNMENT = 128
"""Bytes: what torch allocates begins at multiples of more."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """How a kernel wants a tensor described to the memory accelerator (TMA), in the terms of `CUtensorMap`.

    block  numbers of a tile in each dimension, outermost first
    """

    swizzle: int
    elem_size: int
    elem_type: int
    block: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code of one kernel, and what launching it needs to know.

    name         in the code
    shared       bytes of dynamic shared memory
    scratch      bytes of device memory that each program keeps descriptors in which it makes itself
    descriptors  one for each argument that is a tensor descriptor, in their order
    """

    name: str
    num_warps: int
    shared: int
    scratch: int
    descriptors: tuple[Descriptor, ...]
    code: bytes

    def to_bytes(self) -> bytes:
        """A line of JSON, and the code behind it."""
        facts = asdict(self)
        del facts["code"]
        return json.dumps(facts).encode() + b"\n" + self.code

    @classmethod
    def from_bytes(cls, stored: bytes) -> Compiled:
        line, _, code = stored.partition(b"\n")
        facts = json.loads(line)
        descriptors = tuple(
            Descriptor(**(one | {"block": tuple(one["block"])})) for one in facts.pop("descriptors")
        )
        return cls(**facts, descriptors=descriptors, code=code)


def cache() -> Path:
    """Where this machine keeps things: $SLIPWAY_CACHE, else $VLLM_CACHE_ROOT, else ~/.cache/slipway."""
    named = os.environ.get("SLIPWAY_CACHE") or os.environ.get("VLLM_CACHE_ROOT")
    return Path(named) if named else Path.home() / ".cache" / "slipway"


def own_folder() -> Path:
    """Where this machine keeps the kernels that it compiles."""
    return cache() / "kernels"


def folders() -> Iterator[Path]:
    """Where compiled kernels may lie: what $SLIPWAY_KERNELS names and what an image carries, which are only
    read, and the cache."""
    yield from (Path(one) for one in os.environ.get("SLIPWAY_KERNELS", "").split(os.pathsep) if one)
    yield Path(sys.prefix, "share", "slipway", "kernels")
    yield own_folder()


def place(wanted: Specialization) -> Path:
    """Where it lies within such a folder."""
    return Path(f"sm_{wanted.arch}", f"{wanted.kernel.__name__}-{wanted.key}.cubin")


def find(wanted: Specialization) -> Compiled:
    """The kernel from its file, or compiled now, which a warning tells, and kept."""
    path = place(wanted)
    for folder in folders():
        try:
            return Compiled.from_bytes((folder / path).read_bytes())
        except (OSError, ValueError, TypeError):  # it is not there, or is none of ours
            continue
    begun = time.monotonic()
    made, _ = compile_for(wanted)
    log.warning(
        "Compiled %s for sm_%d in %.1f s: it was not in %s.",
        path.stem,
        wanted.arch,
        time.monotonic() - begun,
        " nor in ".join(map(str, folders())),
    )
    try:
        keep(wanted, made)
    except OSError as error:
        log.warning("It is compiled again at the next start: %s", error)
    return made


def keep(of: Specialization, made: Compiled) -> None:
    """Write it where launches on this machine find it. Raises OSError."""
    path = own_folder() / place(of)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(made.to_bytes())
    partial.replace(path)


def compile_for(wanted: Specialization) -> tuple[Compiled, Mapping[str, Any]]:
    """What Triton makes of it: the kernel, and its texts by language (`ptx`). No GPU is needed.

    Raises ValueError for a kernel that wants what `bound.Bound` cannot give it.
    """
    target = GPUTarget("cuda", wanted.arch, WARP)
    built = triton.compile(source(wanted, target), target=target, options=wanted.options)
    facts = built.metadata
    extras = {
        "memory to profile": facts.profile_scratch_size,
        "odd scratch memory": facts.global_scratch_size and facts.global_scratch_align > SCRATCH_ALIGNMENT,
        "a cluster": facts.num_ctas != 1,
        "a cooperative grid": facts.launch_cooperative_grid,
        "an early launch": facts.launch_pdl,
    }
    asked = [name for name, is_wanted in extras.items() if is_wanted]
    if asked:
        raise ValueError(f"{facts.name} wants {' and '.join(asked)}, which no launch of ours has.")
    descriptors = tuple(map(_descriptor, getattr(facts, "tensordesc_meta", None) or ()))
    sizes = facts.num_warps, facts.shared, facts.global_scratch_size
    return Compiled(facts.name, *sizes, descriptors, built.asm["cubin"]), built.asm


def _descriptor(told: Mapping[str, Any] | None) -> Descriptor:
    if told is None or told["fp4_padded"] or told.get("is_im2col"):
        raise ValueError(f"a tensor descriptor is {told}: ours are of tiles that TMA fetches.")
    return Descriptor(told["swizzle"], told["elem_size"], told["elem_type"], tuple(told["block_size"]))


def source(s: Specialization, target: GPUTarget) -> ASTSource:
    """What a launch through Triton would compile, put together by its own function."""

    def known(parameter: Any) -> object:
        """As Triton tells launches apart: D for a multiple of 16, None where it does not look."""
        name, kind = parameter.name, s.types[parameter.name]
        if kind == "constexpr":
            return s.constants[name]
        if parameter.do_not_specialize or kind in ("fp32", "u1") or kind.startswith("tensordesc"):
            return None
        return "D" if name in s.aligned else ""

    parameters = s.kernel.params
    _, signature, constants, attributes = s.kernel._pack_args(
        make_backend(target),
        s.options,
        {one.name: s.constants.get(one.name) for one in parameters},
        [(s.types[one.name], known(one)) for one in parameters],
        None,
    )
    return ASTSource(s.kernel, signature, constants, attributes)

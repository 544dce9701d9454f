"""Prints how operations repeat what they did for a layout: by operation its launches, and what differs.

repeated_launches.py LIBRARY: all small cases, with kernels that nobody compiles. In the end each call is made
twice, on other tensors than before: as it is remembered, and as if for the first time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from typing import Any
from unittest.mock import patch

import torch

from slipway_kernels.cuda import bound
from slipway_kernels.cuda.ahead import cases_of, operations
from slipway_kernels.cuda.compiled import Compiled, Descriptor
from slipway_kernels.cuda.specialization import Specialization
from stub_cuda import Stub

Launch = tuple[str, tuple[int, ...], list[int], list[object]]


def uncompiled(s: Specialization) -> Compiled:
    tiles = [kind for kind in s.types.values() if kind.startswith("tensordesc")]
    return Compiled(
        s.kernel.__name__, s.tile.num_warps, 0, 0, (Descriptor(0, 2, 6, (1, 1)),) * len(tiles), b"\177ELF"
    )


def operations_of(name: str) -> dict[str, Any]:
    """Its prepared operations, by their names."""
    modules = [module for path, module in sys.modules.items() if path.startswith(f"slipway_kernels.{name}.")]
    values = (value for module in modules for value in vars(module).values())
    return {value.__name__: value for value in values if hasattr(value, "tapes")}


def run_cases(operation: str, known: Iterable[dict[Any, Any]] = ()) -> None:
    """Each on tensors of its own, and twice: in its first call a workspace may grow. `known` forgets that."""
    for case in cases_of(operation)(torch.device("cpu"), "small"):
        if case.arch <= 90:
            case.run()
            for tapes in known:
                for layout in [layout for layout, tape in tapes.items() if tape is None]:
                    del tapes[layout]
            case.run()


def main() -> None:
    Stub(sys.argv[1])
    bound.find = uncompiled
    heard: list[Launch] = []
    run = bound.Bound.run

    def noted(self, addresses, stream) -> None:
        scalars = [getattr(one, "value", None) for one in self._kept]
        heard.append((self.name, tuple(self._config.grid), addresses, scalars))
        run(self, addresses, stream)

    def twice(call):
        """A call that tells where what it remembers is not what it does."""

        def checked(*given, **named):
            nonlocal count, inside
            if inside:
                return call(*given, **named)
            inside = True
            heard.clear()
            before = sum(tape is not None for tape in call.tapes.values())
            result = call(*given, **named)
            repeated = list(heard)
            heard.clear()
            call.__wrapped__(*given, **named)
            inside = False
            if sum(tape is not None for tape in call.tapes.values()) > before:
                faults.append(f"{call.__name__} has not been remembered")
            count += len(repeated)
            if repeated != heard:
                faults.append(f"{call.__name__} is not the same on other tensors")
            return result

        return checked

    bound.Bound.run = noted
    torch.empty = cache(torch.empty)  # what an operation makes for itself lies where it lay before
    results = {}
    for operation in operations():
        count, inside = 0, False
        run_cases(operation)
        prepared = operations_of(operation)
        known = [call.tapes for call in prepared.values()]
        run_cases(operation, known)
        faults = ["not all is remembered"] if any(None in tapes.values() for tapes in known) else []
        with ExitStack() as stack:
            for path, module in list(sys.modules.items()):
                for name, call in prepared.items() if path.startswith("slipway_kernels.") else ():
                    if getattr(module, name, None) is call:
                        stack.enter_context(patch.object(module, name, twice(call)))
            run_cases(operation)
        results[operation] = count, faults
    print(json.dumps(results))


if __name__ == "__main__":
    main()

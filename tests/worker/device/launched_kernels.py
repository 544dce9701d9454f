"""Prints kernels of a model as one line of JSON: [[name, types, constants, aligned arguments, tile], …].

launched_kernels.py engine FOLDER SETTINGS           those that an engine launches in the interpreter
launched_kernels.py needed FOLDER SETTINGS           those that are compiled for it ahead
launched_kernels.py started FOLDER SETTINGS LIBRARY  those that a start looks for, under stub_cuda's driver

launched_kernels.py repeated FOLDER SETTINGS LIBRARY prints what is worked out of steps: see there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

Told = list[Any]


def told(s: Any) -> Told:
    """A specialization as all tell it: interpreted kernels have no keys, and no inline assembly."""
    constants = {name: repr(value) for name, value in s.constants.items() if name != "PTX"}
    tile = s.tile.num_warps, s.tile.num_stages, s.tile.fuses
    return [s.kernel.__name__, sorted(s.types.items()), sorted(constants.items()), sorted(s.aligned), tile]


def needed(folder: str, settings: dict[str, Any]) -> Iterable[Told]:
    from slipway.engine.config import EngineConfig
    from slipway.fit.kernels import needed_kernels

    config = EngineConfig(model=folder, device="cuda", **settings)
    return map(told, needed_kernels(config, 90).values())


def launched(folder: str, settings: dict[str, Any]) -> Iterable[Told]:
    from in_process import Engine  # of bench/gpu: it has Triton interpret
    from triton.runtime.jit import JITFunction

    import slipway.worker.device.load  # noqa: F401  and with it all operations
    from slipway.engine.params import SamplingParams
    from slipway_kernels.cuda import launch
    from slipway_kernels.cuda.specialization import specialized

    found: dict[str, Told] = {}
    compiled: dict[int, Any] = {}
    start = launch.launch

    def noted(kernel, grid, /, *, tile, **arguments):
        if 0 not in grid:
            if id(kernel) not in compiled:
                varies = kernel.kwargs.get("do_not_specialize")
                compiled[id(kernel)] = JITFunction(kernel.fn, do_not_specialize=varies)
            given = {**tile.constants, **arguments}
            one = told(specialized(compiled[id(kernel)], given, tile, 90))
            found[json.dumps(one)] = one
        start(kernel, grid, tile=tile, **arguments)

    for module in list(sys.modules.values()):
        if getattr(module, "launch", None) is start and module is not launch:
            module.launch = noted
    engine = Engine(folder, graph_sizes=[], **settings)
    ways: tuple[dict[str, Any], ...] = (
        {"temperature": 0.0, "num_prompt_logprobs": 1},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 5, "num_logprobs": 2},
        {"temperature": 0.8, "presence_penalty": 0.5, "logit_bias": ((3, 1.0),)},
        {"temperature": 0.0, "num_logprobs": 3, "repetition_penalty": 1.2},
    )
    requests = [([*range(2, 5 + 7 * number)], SamplingParams(3, **way)) for number, way in enumerate(ways)]
    for one in requests:
        engine.run([one])
    engine.run(requests)
    engine.close()
    return found.values()


def started(folder: str, settings: dict[str, Any], library: str) -> Iterable[Told]:
    found: list[Told] = []
    _start(folder, settings, library, found)
    return found


def repeated(folder: str, settings: dict[str, Any], library: str) -> Iterable[tuple[int, int]]:
    """Of steps of prompts of 16 rows, 16, 11 and 16: launches, and how many of them were worked out anew."""
    from slipway.worker.device.batch import nobody
    from slipway_kernels.cuda.bound import Bound
    from stub_cuda import Stub

    worker = _start(folder, settings, library, [])
    launches: list[str] = []
    made: list[int] = []
    make = Bound.__init__

    def counted(self: Any, *arguments: Any) -> None:
        made.append(1)
        make(self, *arguments)

    Bound.__init__ = counted  # type: ignore[method-assign]
    stub = Stub(library)
    stub.listen(lambda config, name, parameters: launches.append(name))
    for rows in (16, 16, 11, 16):
        launches.clear()
        made.clear()
        worker.rehearse(nobody(1, rows, rows, 1), rows, 1)
        yield len(launches), len(made)


def _start(folder: str, settings: dict[str, Any], library: str, found: list[Told]) -> Any:
    """A worker under a driver that starts nothing; `found` are the kernels that it looks for."""
    from slipway.engine import planned
    from slipway.engine.config import EngineConfig
    from slipway.engine.start import Start
    from slipway_kernels.cuda import bound
    from slipway_kernels.cuda.compiled import Compiled, Descriptor
    from stub_cuda import Stub

    Stub(library)

    def find(s: Any) -> Compiled:
        found.append(told(s))
        tiles = [kind for kind in s.types.values() if kind.startswith("tensordesc")]
        described = (Descriptor(0, 2, 6, (1, 1)),) * len(tiles)
        return Compiled(s.kernel.__name__, s.tile.num_warps, 0, 0, described, b"\x7fELF")

    bound.find = find
    planned.chosen_device = lambda asked: asked  # torch finds no device here, and its tensors are the host's
    config = EngineConfig(model=folder, device="cuda", use_tqdm_on_load=False, **settings)
    return Start.of(config).worker


def main() -> None:
    which, folder, settings, *library = sys.argv[1:]
    os.environ["TRITON_INTERPRET"] = "1" if which == "engine" else "0"
    kinds = {"engine": launched, "needed": needed, "started": started, "repeated": repeated}
    print(json.dumps([*kinds[which](folder, json.loads(settings), *library)]))


if __name__ == "__main__":
    main()

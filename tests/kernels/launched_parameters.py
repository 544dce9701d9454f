"""Prints what kernels are given beside what they take, as their machine code says it: [[kernel, faults]...].

launched_parameters.py LIBRARY OPERATION[:CASE]...: that small case, else the largest of them, is compiled for
Hopper.
"""

from __future__ import annotations

import ctypes
import json
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton

from slipway_kernels.cuda import bound, compiled
from slipway_kernels.cuda.ahead import cases_of
from stub_cuda import Stub

CUOBJDUMP = Path(triton.__path__[0]) / "backends/nvidia/bin/cuobjdump"
PARAMETER = re.compile(r"EIATTR_KPARAM_INFO.*?Ordinal : (0x\w+)\s+Offset  : 0x\w+\s+Size    : (0x\w+)", re.S)
SOMEWHERE = b"memory of the launch's own"
SWIZZLED = 128
"""Bytes of a row that TMA swizzles: a wider tile is several of them."""
FORMATS = {"i32": "<i", "i64": "<q", "u1": "<b", "fp32": "<f"}


def sizes(code: bytes) -> list[int]:
    """Of a kernel's parameters, in their order."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        shown = subprocess.run(
            [CUOBJDUMP, "-elf", file.name], capture_output=True, text=True, check=True
        ).stdout
    return [size for _, size in sorted((int(n, 16), int(size, 16)) for n, size in PARAMETER.findall(shown))]


def wanted(s, given) -> list[bytes]:
    """What the parameters must be, by the launch's own arguments; of a descriptor what the stub leaves."""
    told: list[bytes] = []
    for parameter in s.kernel.params:
        kind, value = s.types[parameter.name], given.get(parameter.name, parameter.default)
        if kind == "constexpr":
            continue
        if kind.startswith("*"):
            told.append(struct.pack("<Q", value.data_ptr()))
        elif kind.startswith("tensordesc"):
            base, (rows, columns), (height, width) = value.base, value.shape, value.block_shape
            size = base.element_size()
            type_of = {torch.bfloat16: 9, torch.float8_e4m3fn: 0, torch.int8: 0}[base.dtype]
            across = min(width, SWIZZLED // size)
            words = base.data_ptr(), type_of, columns, rows, value.strides[0] * size, across, height
            told.append(struct.pack("<7Q", *words))
            told += [struct.pack("<i", one) for one in value.shape]
            told += [struct.pack("<q", one) for one in value.strides]
        else:
            told.append(struct.pack(FORMATS[kind], value))
    return [*told, SOMEWHERE if compiled.find(s).scratch else bytes(8), bytes(8)]


def main() -> None:
    stub = Stub(sys.argv[1])
    results: list[tuple[str, list[str]]] = []
    made = bound.Bound.__init__
    expected: list[tuple[object, list[bytes], list[int]]] = []

    def noted(self, s, grid, given, device) -> None:
        made(self, s, grid, given, device)
        expected.append((grid, wanted(s, given), sizes(compiled.find(s).code)))

    def heard(config, name, parameters) -> None:
        grid, values, widths = expected.pop()
        faults = []
        if len(values) != len(widths):
            faults.append(f"{len(values)} parameters, the kernel takes {len(widths)}")
        for number, (value, width) in enumerate(zip(values, widths, strict=False)):
            found = ctypes.string_at(parameters[number], width)
            if value == SOMEWHERE and any(found):
                continue
            if found[: len(value)] != value or (width != len(value) and width != 128):
                faults.append(f"parameter {number} of {width} bytes is {found.hex()}, not {value.hex()}")
        if tuple(config.grid) != (*grid, 1, 1)[:3] or config.block[0] % 32:
            faults.append(f"a grid of {tuple(config.grid)} by {tuple(config.block)}, not {grid}")
        own = " with scratch memory" if SOMEWHERE in values else ""
        results.append((f"{name}{own}", faults))

    bound.Bound.__init__ = noted
    stub.listen(heard)
    for asked in sys.argv[2:]:
        operation, _, name = asked.partition(":")
        cases = list(cases_of(operation)(torch.device("cpu"), "small"))
        named = [case for case in cases if case.name == name]
        max(named or cases, key=lambda case: case.flops or case.bytes).run()
    print(json.dumps(results))


if __name__ == "__main__":
    main()

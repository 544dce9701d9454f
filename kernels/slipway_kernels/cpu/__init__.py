"""The CPU kernels: packed weights, the page pool, request slots, and the programs that compute over them."""

from slipway_kernels.cpu.binding import isa
from slipway_kernels.cpu.external import ExternalProgram, Rows, linear
from slipway_kernels.cpu.memory import PageMemory, page_bytes, reserved
from slipway_kernels.cpu.program import Adapter, Buffer, Program
from slipway_kernels.cpu.slots import Slots
from slipway_kernels.cpu.step import StepResult
from slipway_kernels.cpu.threads import Threads
from slipway_kernels.cpu.weights import Packed, PackedCodes, Weight

__all__ = [
    "Adapter",
    "Buffer",
    "ExternalProgram",
    "Packed",
    "PackedCodes",
    "PageMemory",
    "Program",
    "Rows",
    "Slots",
    "StepResult",
    "Threads",
    "Weight",
    "isa",
    "linear",
    "page_bytes",
    "reserved",
]

"""The CPU kernels: packed weights, the page pool, request slots, and the programs that compute over them."""

from slipway_kernels.cpu.adapters import LowRank, Piece, together
from slipway_kernels.cpu.binding import isa
from slipway_kernels.cpu.encoder import STEP_PAGES, EncoderProgram
from slipway_kernels.cpu.extension import Extension, OwnRows
from slipway_kernels.cpu.external import ExternalProgram, Rows, linear
from slipway_kernels.cpu.linked import LinkedProgram
from slipway_kernels.cpu.memory import PageMemory, apart, page_bytes, reserved, spread, trim
from slipway_kernels.cpu.program import Adaptable, Buffer, Program, Shared
from slipway_kernels.cpu.ranks import RankLeft, Ranks, shared_memory
from slipway_kernels.cpu.slots import Slots
from slipway_kernels.cpu.step import Edits, StepResult
from slipway_kernels.cpu.threads import Threads
from slipway_kernels.cpu.weights import (
    BLOCK_TYPES,
    Packed,
    PackedBlocks,
    PackedCodes,
    PackedNarrow,
    Weight,
    packed,
    takes_group,
)

__all__ = [
    "BLOCK_TYPES",
    "STEP_PAGES",
    "Adaptable",
    "Buffer",
    "Edits",
    "EncoderProgram",
    "Extension",
    "ExternalProgram",
    "LinkedProgram",
    "LowRank",
    "OwnRows",
    "Packed",
    "PackedBlocks",
    "PackedCodes",
    "PackedNarrow",
    "PageMemory",
    "Piece",
    "Program",
    "RankLeft",
    "Ranks",
    "Rows",
    "Shared",
    "Slots",
    "StepResult",
    "Threads",
    "Weight",
    "apart",
    "isa",
    "linear",
    "packed",
    "page_bytes",
    "reserved",
    "shared_memory",
    "spread",
    "takes_group",
    "together",
    "trim",
]

"""The shared library's functions and structures; slipway.h and interface.cpp are the other side."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from ctypes import CFUNCTYPE, POINTER, Structure, c_float, c_int, c_int32, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_kernels.build import LIBRARY

ABI = 21

ISAS = "amx, avx512bf16, avx512vnni, avx512, avxvnni, avx2 and generic (on ARM neonbf16 and neon)"
"""The names of instruction sets, from the widest to what every processor has."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Masks = Mapping[int, NDArray[np.uint32]]
"""By a request's place in a step: [rows that draw, ceil(vocab / 32)] bits, one a token that may be drawn."""

DTYPES = {
    **{"fp32": 0, "bf16": 1, "fp16": 2, "int4": 3, "int8": 4, "e4m3": 5, "e5m2": 6},
    **{"int5": 7, "int6": 8, "iq4": 9, "e2m1": 10, "int2": 11, "int3": 12},
    **{"two levels": 16, "e8m0": 17, "nibbles": 18},
}
"""The last three are of scales alone."""
ACTIVATIONS = {"silu": 1, "gelu": 2, "gelu_tanh": 3, "relu": 4, "tanh": 5}

DRAWN = np.dtype([("token", "i4"), ("failed", "i4"), ("logprob", "f4"), ("rank", "i4")])
ADVANCE = np.dtype([(name, "i4") for name in ("first_row", "first_drawn", "num_drawn", "failed")])


class WeightStruct(Structure):
    """`sw_weight` of slipway.h."""

    _fields_ = (
        ("at", c_void_p),
        *((name, c_int32) for name in ("n", "k", "dtype", "group", "scale_dtype", "minimums")),
    )


class AdapterStruct(Structure):
    """`sw_adapter` of slipway.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("a", "b", "spans", "bias")),
        *((name, c_int32) for name in ("width", "part")),
    )


class ExtensionStruct(Structure):
    """`sw_extension` of slipway.h."""

    _fields_ = (
        ("added", c_int32),
        ("row_of", c_void_p),
        ("rows", c_void_p),
        ("head", WeightStruct),
        ("tokens", c_void_p),
        ("bias", c_void_p),
        ("rotation", c_int32),
    )


class SourceStruct(Structure):
    """`sw_source` of slipway.h."""

    _fields_ = (
        ("at", c_void_p),
        ("stride", c_size_t),
        *((name, c_int32) for name in ("dtype", "rows", "columns", "scale_stride")),
        *((name, c_void_p) for name in ("scales", "minimums", "columns_at")),
    )


class SamplingStruct(Structure):
    """`sw_sampling` of slipway.h."""

    _fields_ = (
        *((name, c_float) for name in ("temperature", "top_p", "min_p", "typical_p")),
        *((f"{name}_penalty", c_float) for name in ("presence", "frequency", "repetition")),
        *((name, c_int32) for name in ("top_k", "min_tokens", "num_logprobs")),
        *((name, c_int32) for name in ("num_prompt_logprobs", "prompt_logprobs_from")),
        *((f"num_{name}", c_int32) for name in ("bias", "allowed", "stop", "bad")),
        ("seed", c_uint64),
        *((name, c_void_p) for name in ("bias_ids", "bias_values", "allowed_ids")),
        *((name, c_void_p) for name in ("stop_ids", "bad_ids", "bad_offsets")),
    )


class SlotsStruct(Structure):
    """`sw_slots` of slipway.h."""

    _fields_ = (
        *((name, c_int32) for name in ("num_slots", "max_len", "num_groups", "max_blocks")),
        *((name, c_void_p) for name in ("tokens", "num_tokens", "num_drafts", "num_computed")),
        *((name, c_void_p) for name in ("prompt_len", "block_table")),
        ("sampling", POINTER(SamplingStruct)),
        *((name, c_void_p) for name in ("adapter", "pooled", "num_given", "given")),
        *((f"posterior_{name}", c_float) for name in ("threshold", "alpha")),
    )


class PlanStruct(Structure):
    """`sw_plan` of slipway.h."""

    _fields_ = (
        ("num_requests", c_int32),
        *((name, c_void_p) for name in ("slots", "num_new", "num_drafts", "masks", "edits", "edit")),
    )


class OutputStruct(Structure):
    """`sw_output` of slipway.h."""

    _fields_ = (
        ("max_top", c_int32),
        *((name, c_void_p) for name in ("requests", "rows", "top_ids", "top_logprobs", "hidden")),
    )


EDIT = CFUNCTYPE(None, c_int32, POINTER(c_int32), POINTER(c_void_p), POINTER(c_void_p))
"""`sw_edit` of slipway.h."""
EXCHANGE = CFUNCTYPE(c_int, c_void_p, c_size_t, c_size_t)
"""`sw_exchange` of collective/ranks.h."""

# p: pointer, i: int, f: float, z: size_t; the first letter is the result, `-` for none.
SIGNATURES = {
    "sw_abi": "i",
    "sw_isa": "s",
    "sw_memory_map": "pz",
    "sw_memory_unmap": "-pz",
    "sw_memory_release": "-pz",
    "sw_memory_trim": "-",
    "sw_memory_take": "pz",
    "sw_memory_reserve": "-z",
    "sw_memory_settle": "-",
    "sw_memory_touch": "-pz",
    "sw_memory_spread": "-ipp",
    "sw_pool_create": "pip",
    "sw_pool_destroy": "-p",
    "sw_weight_bytes": "zp",
    "sw_pack_rows": "-pppip",
    "sw_convert_rows": "-ppiipi",
    "sw_round_rows": "-ppiiiiippp",
    "sw_pack_codes": "-pppzppip",
    "sw_pack_blocks": "-ppipzip",
    "sw_read_rows": "-ppip",
    "sw_page_layer_bytes": "ziiii",
    "sw_program_create": "ppiipiipizp",
    "sw_program_destroy": "-p",
    "sw_program_bytes": "zp",
    "sw_store_kv_as": "-pi",
    "sw_scale_kv": "-piiff",
    "sw_kv_scales": "-piip",
    "sw_find_kv_scales": "-pff",
    "sw_ranks_create": "piiipzp",
    "sw_ranks_destroy": "-p",
    "sw_ranks_give_back": "-p",
    "sw_ranks_leave": "-p",
    "sw_ranks_left": "ip",
    "sw_join": "-pp",
    "sw_buffer_of_ranks": "ipi",
    "sw_shard_embed": "-pii",
    "sw_share_head": "ipp",
    "sw_add_from_ranks": "-piii",
    "sw_draw_elsewhere": "-p",
    "sw_buffer": "ipii",
    "sw_buffer_at": "ppi",
    "sw_buffer_stride": "ipi",
    "sw_add_embed": "-ppif",
    "sw_add_rms_norm": "-pipifii",
    "sw_add_quantize": "ipi",
    "sw_add_linear": "-pipipiiii",
    "sw_add_embed_sum": "-ppifppp",
    "sw_add_layer_norm": "-pippifi",
    "sw_share_adapters": "ipi",
    "sw_adapt": "ipiiiii",
    "sw_set_adapter": "-piiip",
    "sw_extend": "-pii",
    "sw_add_rotation": "-pp",
    "sw_set_extension": "-pip",
    "sw_add_rope_and_store": "-piiiiiiipippfi",
    "sw_add_attention": "-piiiiiiififi",
    "sw_add_moe": "-pipppiiiiiii",
    "sw_add_gate": "-piii",
    "sw_add_add_gated": "-piii",
    "sw_add_head": "-pippfipfp",
    "sw_add_hidden": "-pipfi",
    "sw_add_given": "-ppi",
    "sw_add_tap": "-pipfip",
    "sw_add_activate": "-pipiii",
    "sw_step": "ippp",
    "sw_measure": "-pp",
    "sw_prepare": "ippp",
    "sw_row_tokens": "pp",
    "sw_row_positions": "pp",
    "sw_logit_rows": "ipp",
    "sw_store_kv": "-piiiippz",
    "sw_attend": "-piiiiipzpzfif",
    "sw_draw": "-ppz",
    "sw_conclude": "-p",
    "sw_code_stride": "zi",
    "sw_quantize_rows": "-piziip",
    "sw_linear": "-ppzippzp",
    "sw_attention_units": "iippiiiizpi",
    "sw_expert_units": "ipiiipi",
}
TYPES = {"p": c_void_p, "i": c_int, "f": c_float, "z": c_size_t, "s": ctypes.c_char_p, "-": None}


@cache
def library() -> ctypes.CDLL:
    """The loaded library. Raises RuntimeError where it was not built or is of another version."""
    if not LIBRARY.exists():
        raise RuntimeError(
            f"The CPU kernels are not built: {LIBRARY} does not exist, most likely because Slipway was "
            "installed without a C++ compiler. Install g++ and run `python -m slipway_kernels.build`."
        )
    loaded = ctypes.CDLL(str(LIBRARY))
    if loaded.sw_abi() != ABI:  # first: a library of another version may lack some of the functions
        raise RuntimeError(
            f"{LIBRARY} has interface version {loaded.sw_abi()}, these Python files need {ABI}: it was built "
            "from other sources. Run `python -m slipway_kernels.build`."
        )
    for name, signature in SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype = TYPES[signature[0]]
        function.argtypes = [TYPES[letter] for letter in signature[1:]]
    named, used = os.environ.get("SLIPWAY_CPU_ISA"), loaded.sw_isa().decode()
    if named and named != used:
        raise RuntimeError(
            f"SLIPWAY_CPU_ISA={named} cannot be had: this processor lacks it, or the name is none of {ISAS}. "
            "Name another or leave it unset."
        )
    return loaded


def isa() -> str:
    """The instruction set in use, one of `ISAS`."""
    name: bytes = library().sw_isa()
    return name.decode()


def floats(values: NDArray[Any]) -> Floats:
    """A contiguous fp32 array of one of any float type."""
    return np.ascontiguousarray(values, np.float32)


def address(array: NDArray[np.generic] | None) -> int | None:
    return None if array is None else array.ctypes.data


def ints(values: Sequence[int]) -> Ints:
    return np.asarray(values, np.int32)

"""The sampler on numpy rows, for tests and benchmarks; the engine calls the same C function from its step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_float, c_int32, c_size_t, c_uint64, c_void_p
from pathlib import Path

import numpy as np

from slipway_kernels.build import LIBRARY
from slipway_kernels.sampling.reference import Draft, Drawn, Floats, Mask, Sampling


class SamplingStruct(ctypes.Structure):
    """`sw_sampling` of slipway.h."""

    _fields_ = [
        *[(name, c_float) for name in ("temperature", "top_p", "min_p", "typical_p")],
        *[(f"{name}_penalty", c_float) for name in ("presence", "frequency", "repetition")],
        *[(name, c_int32) for name in ("top_k", "min_tokens")],
        *[(name, c_int32) for name in ("num_logprobs", "num_prompt_logprobs")],
        ("prompt_logprobs_from", c_int32),
        *[(f"num_{name}", c_int32) for name in ("bias", "allowed", "stop", "bad")],
        ("seed", c_uint64),
        ("bias_ids", POINTER(c_int32)),
        ("bias_values", POINTER(c_float)),
        *[(name, POINTER(c_int32)) for name in ("allowed_ids", "stop_ids", "bad_ids")],
        ("bad_offsets", POINTER(c_int32)),
    ]


class DrawnStruct(ctypes.Structure):
    """`sw_drawn` of slipway.h."""

    _fields_ = [("token", c_int32), ("failed", c_int32), ("logprob", c_float), ("rank", c_int32)]


class DraftStruct(ctypes.Structure):
    """`sw_draft` of slipway.h."""

    _fields_ = [("token", c_int32), ("threshold", c_float), ("alpha", c_float)]


def int_array(values: Sequence[int]) -> ctypes.Array[c_int32]:
    return (c_int32 * len(values))(*values)


def sampling_struct(s: Sampling) -> SamplingStruct:
    """The C form; it keeps its lists alive."""
    offsets = np.cumsum([0, *map(len, s.bad_words)]).tolist()
    return SamplingStruct(
        temperature=s.temperature,
        top_p=s.top_p,
        min_p=s.min_p,
        typical_p=s.typical_p,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        repetition_penalty=s.repetition_penalty,
        top_k=s.top_k,
        min_tokens=s.min_tokens,
        num_bias=len(s.bias),
        num_allowed=len(s.allowed),
        num_stop=len(s.stop),
        num_bad=len(s.bad_words),
        seed=s.seed,
        bias_ids=int_array([token for token, _ in s.bias]),
        bias_values=(c_float * len(s.bias))(*(value for _, value in s.bias)),
        allowed_ids=int_array(s.allowed),
        stop_ids=int_array(s.stop),
        bad_ids=int_array([token for sequence in s.bad_words for token in sequence]),
        bad_offsets=int_array(offsets),
    )


class Sampler:
    """`sw_sample_row` of a built library, with scratch for one thread and one vocabulary size."""

    def __init__(self, vocab: int, library: Path = LIBRARY) -> None:
        loaded = ctypes.CDLL(str(library))
        loaded.sw_sample_scratch_bytes.restype = c_size_t
        loaded.sw_sample_row.restype = None
        self._call = loaded.sw_sample_row
        self._vocab = vocab
        # Full of ones: nothing may rely on cleared scratch.
        self._scratch = np.full(loaded.sw_sample_scratch_bytes(c_int32(vocab)), 255, np.uint8)

    def bind(
        self,
        sampling: Sampling,
        logits: Floats,
        history: tuple[int, ...] = (),
        prompt_len: int = 0,
        *,
        given: int = -1,
        want_logprob: bool = False,
        num_top: int = 0,
        mask: Mask | None = None,
        draft: Draft | None = None,
    ) -> Callable[[], Drawn]:
        """A call with its arguments already in their C form: reference.sample_row by the kernel.

        logits  [vocab]  fp32, contiguous; raises ValueError for any other
        """
        if logits.dtype != np.float32 or logits.shape != (self._vocab,) or logits.strides != (4,):
            raise ValueError(
                f"logits are {logits.dtype}{list(logits.shape)}: the kernel reads contiguous"
                f" float32[{self._vocab}]. Convert them with np.ascontiguousarray(row, np.float32)."
            )
        drawn = DrawnStruct()
        ids, logprobs = (c_int32 * num_top)(), (c_float * num_top)()
        arguments = (
            ctypes.byref(sampling_struct(sampling)),
            c_void_p(logits.ctypes.data),
            None,
            None if mask is None else c_void_p(mask.ctypes.data),
            c_int32(self._vocab),
            int_array(history),
            c_int32(len(history)),
            c_int32(prompt_len),
            c_int32(given),
            None if draft is None else ctypes.byref(DraftStruct(draft.token, draft.threshold, draft.alpha)),
            c_int32(want_logprob),
            c_int32(num_top),
            c_void_p(self._scratch.ctypes.data),
            ctypes.byref(drawn),
            ids,
            logprobs,
        )

        def call() -> Drawn:
            self._call(*arguments)
            reported = want_logprob and not drawn.failed
            top = zip(ids, logprobs, strict=True) if reported else ()
            return Drawn(
                drawn.token,
                bool(drawn.failed),
                drawn.logprob,
                drawn.rank,
                tuple((token, logprob) for token, logprob in top if token >= 0),
            )

        return call

    def sample_row(
        self,
        sampling: Sampling,
        logits: Floats,
        history: tuple[int, ...] = (),
        prompt_len: int = 0,
        *,
        given: int = -1,
        want_logprob: bool = False,
        num_top: int = 0,
        mask: Mask | None = None,
        draft: Draft | None = None,
    ) -> Drawn:
        """reference.sample_row by the kernel; see `bind`."""
        return self.bind(
            sampling,
            logits,
            history,
            prompt_len,
            given=given,
            want_logprob=want_logprob,
            num_top=num_top,
            mask=mask,
            draft=draft,
        )()

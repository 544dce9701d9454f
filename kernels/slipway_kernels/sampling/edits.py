"""Edits of a tile of logits, in the order that reference.py defines."""

from __future__ import annotations

import triton
import triton.language as tl

from slipway_kernels.sampling.rows import (
    BAD_IDS_AT,
    BAD_OFFSETS_AT,
    BIAS_IDS_AT,
    BIAS_VALUES_AT,
    FREQUENCY,
    LONGEST_BAD,
    MIN_TOKENS,
    NUM_BAD,
    NUM_BIAS,
    NUM_STOP,
    PENALIZED,
    PRESENCE,
    REPETITION,
    STOP_AT,
    float_of,
)

# In a token's count: it stands in the prompt.
PROMPTED = tl.constexpr(1 << 30)


@triton.jit
def clear_kernel(
    counts_ptr, counts_stride, slots_ptr, records_ptr, records_stride, vocab, TILE: tl.constexpr
):
    """counts [rows, vocab] = 0, in rows with penalties."""
    row = tl.program_id(1)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    if tl.load(records_ptr + slot * records_stride + PENALIZED) != 0:
        token = tl.program_id(0) * TILE + tl.arange(0, TILE)
        zeros = tl.zeros([TILE], tl.int32)
        tl.store(counts_ptr + row.to(tl.int64) * counts_stride + token, zeros, mask=token < vocab)


@triton.jit
def count_kernel(
    counts_ptr,  # [rows, vocab]  int32
    counts_stride,
    slots_ptr,  # [rows]
    records_ptr,  # [num_slots, words]
    records_stride,
    tokens_ptr,  # [num_slots, max_len]
    tokens_stride,
    lengths_ptr,  # [rows]
    prompt_len_ptr,  # [num_slots]
    vocab,
    TILE: tl.constexpr,
):
    """How often each token stands in the output, and PROMPTED where it stands in the prompt."""
    row = tl.program_id(1)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot >= 0:
        record = records_ptr + slot * records_stride
        known = tl.load(lengths_ptr + row)
        if (tl.load(record + PENALIZED) != 0) & (tl.program_id(0) * TILE < known):
            at = tl.program_id(0) * TILE + tl.arange(0, TILE)
            token = tl.load(tokens_ptr + slot * tokens_stride + at, mask=at < known, other=-1)
            here = (token >= 0) & (token < vocab)
            prompted = at < tl.load(prompt_len_ptr + slot)
            counts = counts_ptr + row.to(tl.int64) * counts_stride + token
            tl.atomic_add(counts, 1, mask=here & ~prompted, sem="relaxed")
            if float_of(record + REPETITION) != 1.0:
                tl.atomic_or(counts, PROMPTED, mask=here & prompted, sem="relaxed")


@triton.jit
def holds_back_stop(record, num_output):
    return (tl.load(record + NUM_STOP) > 0) & (num_output < tl.load(record + MIN_TOKENS))


@triton.jit
def edits_lists(record, num_output):
    listed = (tl.load(record + NUM_BAD) > 0) | (tl.load(record + NUM_BIAS) > 0)
    return listed | holds_back_stop(record, num_output)


@triton.jit
def is_set(words_ptr, token, inside):
    """Of a bitmask: bit t % 32 of word t // 32; set, too, where not `inside`."""
    word = tl.load(words_ptr + (token >> 5), mask=inside, other=-1)
    return ((word >> (token & 31)) & 1) != 0


@triton.jit
def forbid_bad_words(record, history, num_known, edited, begin, end, LIST: tl.constexpr):
    """-inf for the last tokens of words that would be complete, where they lie in [begin, end)."""
    offsets = record + tl.load(record + BAD_OFFSETS_AT)
    ids = record + tl.load(record + BAD_IDS_AT)
    num_bad = tl.load(record + NUM_BAD)
    longest = tl.load(record + LONGEST_BAD)
    for start in range(0, num_bad, LIST):
        word = start + tl.arange(0, LIST)
        listed = word < num_bad
        opens = tl.load(offsets + word, mask=listed, other=0)
        last = tl.load(offsets + word + 1, mask=listed, other=1) - 1
        before = last - opens
        complete = listed & (before <= num_known)
        for back in range(1, longest):
            asked = complete & (back <= before)
            found = tl.load(history + num_known - back, mask=back <= num_known, other=-1)
            complete = complete & ((tl.load(ids + last - back, mask=asked, other=0) == found) | ~asked)
        token = tl.load(ids + last, mask=complete, other=-1)
        tl.store(edited + token, -float("inf"), mask=complete & (token >= begin) & (token < end))


@triton.jit
def forbid_stop(record, num_output, edited, begin, end, LIST: tl.constexpr):
    ids = record + tl.load(record + STOP_AT)
    count = tl.where(holds_back_stop(record, num_output), tl.load(record + NUM_STOP), 0)
    for start in range(0, count, LIST):
        at = start + tl.arange(0, LIST)
        token = tl.load(ids + at, mask=at < count, other=-1)
        tl.store(edited + token, -float("inf"), mask=(token >= begin) & (token < end))


@triton.jit
def add_bias(record, edited, begin, end, LIST: tl.constexpr):
    ids = record + tl.load(record + BIAS_IDS_AT)
    values = record + tl.load(record + BIAS_VALUES_AT)
    count = tl.load(record + NUM_BIAS)
    for start in range(0, count, LIST):
        at = start + tl.arange(0, LIST)
        token = tl.load(ids + at, mask=at < count, other=-1)
        here = (token >= begin) & (token < end)
        bias = tl.load(values + at, mask=here, other=0).to(tl.float32, bitcast=True)
        tl.store(edited + token, tl.load(edited + token, mask=here, other=0.0) + bias, mask=here)


@triton.jit
def edit_lists(record, history, num_known, num_output, edited, begin, end, LIST: tl.constexpr):
    """Bad words, stop tokens and bias, on the tokens [begin, end) of a row in memory.

    The threads that meet there have barriers between them: a token may be in several lists.
    """
    tl.debug_barrier()
    forbid_bad_words(record, history, num_known, edited, begin, end, LIST)
    forbid_stop(record, num_output, edited, begin, end, LIST)
    tl.debug_barrier()
    add_bias(record, edited, begin, end, LIST)
    tl.debug_barrier()


@triton.jit
def penalized(value, count, record):
    """Repetition over prompt and output (Keskar et al. 2019), frequency and presence over the output."""
    repetition = float_of(record + REPETITION)
    repeated = tl.where(value > 0.0, tl.div_rn(value, repetition), value * repetition)
    times = count & (PROMPTED - 1)
    lowered = repeated - times.to(tl.float32) * float_of(record + FREQUENCY)
    lowered -= (times > 0).to(tl.float32) * float_of(record + PRESENCE)
    return tl.where(count != 0, lowered, value)

"""An all-reduce in Triton: ranks read each other's memory, which all of them have mapped.

A rank's memory begins with its flags, [2, PROGRAMS, ranks] int64; behind them is room for two messages. A
program of a rank meets the programs of its number of the other ranks, and no others: a message is cut so that
none reads what another number has written. Round n writes to room n mod 2 and needs no meeting at its end: a
rank that has finished round n + 1 has seen that all others have begun it, and so have finished round n,
before it writes to that room again.

Bound by latency where messages are small, else by the links between devices.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def meet(
    peers_ptr,  # [SIZE]  where each rank's memory lies, as this one reaches it
    rank,
    which,
    count,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Wait until this program of every rank has come here for the `count`th time; what it has written before
    is there then.

    Others' flags are written, one's own are read, so that waiting sends nothing over a link. Counts only
    grow: a rank that is ahead has come here, too.
    """
    other = tl.arange(0, LANES)  # a lane for each rank, so that one fence stands before all flags
    there = other < SIZE
    program = (which * PROGRAMS + tl.program_id(0)) * SIZE
    flags = tl.load(peers_ptr + other, mask=there, other=0).to(tl.pointer_type(tl.int64))
    tl.debug_barrier()  # all threads have written: those that release speak for them
    tl.atomic_xchg(flags + program + rank, count, mask=there, sem="release", scope="sys")
    own = tl.load(peers_ptr + rank).to(tl.pointer_type(tl.int64)) + program + other
    behind = count - 1
    while behind < count:
        come = tl.atomic_add(own, 0, mask=there, sem="acquire", scope="sys")
        behind = tl.min(tl.where(there, come, count), axis=0)
    tl.debug_barrier()  # no thread reads before those that have acquired


@triton.jit
def _room(peers_ptr, rank, round, like_ptr, room, SIZE: tl.constexpr, PROGRAMS: tl.constexpr):
    """Where a rank's message of this round is."""
    base = tl.load(peers_ptr + rank) + 2 * PROGRAMS * SIZE * 8 + (round % 2) * room
    return tl.multiple_of(base.to(tl.pointer_type(like_ptr.dtype.element_ty)), 16)  # loads of whole vectors


@triton.jit
def _sum(peers_ptr, round, like_ptr, room, at, inside, SIZE: tl.constexpr, PROGRAMS: tl.constexpr):
    """Of all ranks' messages there, in fp32 and in the order of ranks."""
    # Not from the first-level cache, which knows nothing of what other devices write.
    first = _room(peers_ptr, 0, round, like_ptr, room, SIZE, PROGRAMS)
    total = tl.load(first + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    for other in tl.static_range(1, SIZE):
        part = _room(peers_ptr, other, round, like_ptr, room, SIZE, PROGRAMS)
        total += tl.load(part + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    return total


@triton.jit
def _begun(rounds_ptr, PROGRAMS: tl.constexpr):
    """The number of this round, from 1 on. It counts for programs that are not launched, too: a graph is
    replayed with what it was captured with, so that it lies on the device."""
    program = tl.program_id(0)
    round = tl.load(rounds_ptr + program) + 1
    tl.debug_barrier()
    if program == 0:
        others = tl.arange(0, PROGRAMS)
        idle = (others == 0) | (others >= tl.num_programs(0))
        tl.store(rounds_ptr + others, tl.zeros((PROGRAMS,), tl.int64) + round, mask=idle)
    else:
        tl.store(rounds_ptr + program, round)
    return round


@triton.jit(do_not_specialize=["rank", "room"])
def one_shot_kernel(
    x_ptr,  # [count]
    out_ptr,  # [count]
    peers_ptr,  # [SIZE]
    rounds_ptr,  # [PROGRAMS]
    rank,
    count,
    room,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """out = x₀ + x₁ + …: every rank reads every other's whole message. Least waiting: ranks meet once."""
    round = _begun(rounds_ptr, PROGRAMS)
    own = _room(peers_ptr, rank, round, x_ptr, room, SIZE, PROGRAMS)
    step = tl.num_programs(0) * WIDTH
    for start in range(tl.program_id(0) * WIDTH, count, step):
        at = start + tl.arange(0, WIDTH)
        tl.store(own + at, tl.load(x_ptr + at, mask=at < count, other=0.0), mask=at < count)
    meet(peers_ptr, rank, 0, round, SIZE, LANES, PROGRAMS)
    for start in range(tl.program_id(0) * WIDTH, count, step):
        at = start + tl.arange(0, WIDTH)
        total = _sum(peers_ptr, round, x_ptr, room, at, at < count, SIZE, PROGRAMS)
        tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=at < count)


@triton.jit(do_not_specialize=["rank", "room"])
def two_shot_kernel(
    x_ptr,  # [count]
    out_ptr,  # [count]
    peers_ptr,  # [SIZE]
    rounds_ptr,  # [PROGRAMS]
    rank,
    count,
    room,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """out = x₀ + x₁ + …: every rank adds up its part of the message, then reads the other parts' sums.

    A link carries 2 · (SIZE − 1) / SIZE messages instead of SIZE − 1; ranks meet twice. A sum takes the place
    of the rank's own part, which nobody else reads.
    """
    round = _begun(rounds_ptr, PROGRAMS)
    own = _room(peers_ptr, rank, round, x_ptr, room, SIZE, PROGRAMS)
    part = tl.cdiv(tl.cdiv(count, SIZE), WIDTH) * WIDTH  # of one rank; pieces are whole
    step = tl.num_programs(0) * WIDTH
    for start in range(tl.program_id(0) * WIDTH, part, step):
        for other in tl.static_range(SIZE):
            at = other * part + start + tl.arange(0, WIDTH)
            tl.store(own + at, tl.load(x_ptr + at, mask=at < count, other=0.0), mask=at < count)
    meet(peers_ptr, rank, 0, round, SIZE, LANES, PROGRAMS)
    for start in range(tl.program_id(0) * WIDTH, part, step):
        at = rank * part + start + tl.arange(0, WIDTH)
        total = _sum(peers_ptr, round, x_ptr, room, at, at < count, SIZE, PROGRAMS)
        tl.store(own + at, total.to(x_ptr.dtype.element_ty), mask=at < count)
    meet(peers_ptr, rank, 1, round, SIZE, LANES, PROGRAMS)
    for start in range(tl.program_id(0) * WIDTH, part, step):
        for other in tl.static_range(SIZE):
            at = other * part + start + tl.arange(0, WIDTH)
            sums = _room(peers_ptr, other, round, x_ptr, room, SIZE, PROGRAMS)
            found = tl.load(sums + at, mask=at < count, other=0.0, cache_modifier=".cg")
            tl.store(out_ptr + at, found, mask=at < count)

"""Laws of the arithmetic, for engines of every size and kind on devices of every size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.exits import Exit
from slipway.fit import Device, Estimate, Needs, RankNeeds, Step, estimate
from slipway.fit.arithmetic import Arithmetic
from slipway.model.kv import kv_layout

MIB = 1 << 20
BLOCK = 16


def tokens_bytes(heads: int, size: int, tokens: int) -> int:
    return 4 * heads * size * tokens


@st.composite
def ranks(draw: st.DrawFn) -> RankNeeds:
    windows = draw(st.lists(st.sampled_from((0, 0, 64)), min_size=1, max_size=4))
    heads = draw(st.sampled_from((1, 2, 8)))
    step = Step(draw(st.integers(1, 4096)), draw(st.integers(0, 4096)), draw(st.integers(0, 64)), 1000)
    return RankNeeds(
        weights=draw(st.integers(1, 64 * MIB)),
        state=draw(st.integers(0, MIB)),
        request_bytes=draw(st.integers(0, 9000)),
        sampled_bytes=draw(st.integers(0, 9000)),
        sampled_rows=draw(st.integers(1, 16)),
        position_bytes=draw(st.integers(0, 512)),
        slot_bytes=draw(st.integers(0, 16)),
        logits_bytes=draw(st.integers(0, 1024)),
        step=step,
        runtime=draw(st.integers(0, 16 * MIB)),
        kv=kv_layout([(window, (heads, 64)) for window in windows], BLOCK, tokens_bytes),
    )


@st.composite
def engines(draw: st.DrawFn) -> Needs:
    kind = draw(st.sampled_from(("cpu", "cuda")))
    rank = draw(ranks())
    chunked = draw(st.booleans())
    return Needs(
        architecture="LlamaForCausalLM",
        kind=kind,
        ranks=(rank, replace(rank, weights=rank.weights // 2)) if draw(st.booleans()) else (rank,),
        engines=draw(st.integers(1, 2)),
        frontend=draw(st.integers(0, MIB)),
        trained_len=draw(st.integers(1, 4096)),
        asked_len=draw(st.none() | st.integers(1, 4096)),
        default_budget=512,
        touched_ahead=MIB,
        num_drafts=draw(st.sampled_from((0, 0, 3))),
        graph_sizes=draw(st.sampled_from(((), (1, 2, 4, 8)))) if kind == "cuda" else (),
        max_num_seqs=draw(st.integers(1, 64)),
        max_num_batched_tokens=draw(st.none() | st.integers(5000, 8192)),
        enable_chunked_prefill=chunked,
        block_size=BLOCK,
        num_blocks=draw(st.none() | st.integers(1, 300)),
        kv_cache_bytes=draw(st.none() | st.integers(1, 32 * MIB)),
        gpu_memory_utilization=draw(st.sampled_from((0.5, 0.9, 1.0))),
        tensor_parallel_size=1,
    )


DEVICES = st.builds(Device, st.just("device"), st.integers(MIB, 512 * MIB), st.just(90))


@given(engines(), DEVICES, st.integers(1, 4096), st.integers(1, 4096))
def test_more_context_never_needs_less_memory(needs: Needs, device: Device, one: int, other: int) -> None:
    sums = Arithmetic(needs, device)
    short, long = sorted((one, other))
    for rank in needs.ranks:
        assert sums.taken(rank, short, rank.kv.pages_for(short)) <= sums.taken(
            rank, long, rank.kv.pages_for(long)
        )
    assert sums.holds(short) or not sums.holds(long)


@given(engines(), DEVICES)
def test_the_largest_context_fits_and_one_token_more_does_not(needs: Needs, device: Device) -> None:
    longest = estimate(needs, device).max_model_len
    assert not longest or asked(needs, device, longest).fits
    assert longest == needs.longest or not asked(needs, device, longest + 1).fits


def asked(needs: Needs, device: Device, length: int) -> Estimate:
    return estimate(replace(needs, asked_len=length), device)


@given(engines(), DEVICES)
def test_so_many_requests_have_all_their_pages_and_one_more_would_not(needs: Needs, device: Device) -> None:
    found = estimate(needs, device)
    length = found.serves_len
    if not length:
        assert not found.fits
        return

    def together(count: int) -> bool:
        more = replace(needs, max_num_seqs=count, asked_len=length)
        again = estimate(more, device)
        chunk = again.needs.tokens(length)
        each = sum(group.most_pages(length, chunk) for group in needs.ranks[0].kv.groups)
        pool = again.ranks[0].kv_cache // needs.ranks[0].kv.page_bytes
        return again.fits and pool >= count * each

    assert not found.max_num_seqs or together(found.max_num_seqs)
    assert not together(found.max_num_seqs + 1)


@given(engines(), DEVICES)
def test_a_device_never_gives_more_than_it_has(needs: Needs, device: Device) -> None:
    found = estimate(needs, device)
    if not found.fits:
        assert found.short is not None
        assert found.short.hint
        return
    if needs.kind == "cuda":
        assert max(rank.total for rank in found.ranks) <= device.memory
    else:
        assert found.total <= device.memory
        assert found.at_rest <= found.total


@given(engines(), DEVICES)
def test_a_larger_device_serves_what_a_smaller_one_does(needs: Needs, device: Device) -> None:
    small, large = estimate(needs, device), estimate(needs, replace(device, memory=2 * device.memory))
    assert large.fits or not small.fits
    assert large.max_model_len >= small.max_model_len


@given(engines(), DEVICES)
def test_a_prompt_that_no_step_takes_is_refused_as_at_a_start(needs: Needs, device: Device) -> None:
    small = replace(needs, enable_chunked_prefill=False, max_num_batched_tokens=64, asked_len=65)
    with pytest.raises(Exit, match="--max-num-batched-tokens 64 is smaller than the 65 tokens"):
        estimate(small, device)

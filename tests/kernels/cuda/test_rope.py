from __future__ import annotations

import pytest
import torch

from slipway_kernels.cuda.compare import rounding, row_error
from slipway_kernels.rms_norm.reference import rms_norm
from slipway_kernels.rope import reference, rope_and_store

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MAX_LEN, BLOCKS = 96, 6


class Layer:
    """Rows of three slots over a pool whose layers lie side by side in a page."""

    def __init__(
        self,
        device: torch.device,
        rows: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype = BF16,
        cache: torch.dtype = BF16,
        block: int = 16,
    ) -> None:
        columns = (heads + 2 * kv_heads) * head_dim
        qkv = torch.randn(rows, columns + 8, device=device, dtype=dtype)[:, :columns]
        qkv = qkv.unflatten(1, (-1, head_dim))
        self.q, self.k, self.v = qkv.split((heads, kv_heads, kv_heads), dim=1)
        pages = 3 * BLOCKS
        self.pool = torch.zeros(pages, 2, 2, kv_heads, block, head_dim, device=device).to(cache)
        self.keys, self.values = self.pool[:, 1, 0], self.pool[:, 1, 1]
        self.table = torch.randperm(pages, device=device, dtype=torch.int32).view(3, BLOCKS)
        self.row_slots = torch.randint(0, 3, (rows,), device=device, dtype=torch.int32)
        self.positions = torch.randperm(min(MAX_LEN, BLOCKS * block), device=device, dtype=torch.int32)[:rows]

    def run(self, **options: object) -> torch.Tensor:
        where = (self.keys, self.values, self.table, self.row_slots, self.positions)
        return rope_and_store(self.q, self.k, self.v, *where, **options)


def finished(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rotation: torch.Tensor | None,
    positions: torch.Tensor,
    *,
    interleaved: bool,
    add_one: bool,
) -> torch.Tensor:
    x = x.float() if weight is None else rms_norm(x, weight, 1e-6, add_one)
    return x if rotation is None else reference.rope(x, rotation[positions.long()], interleaved)


# rows, heads, kv_heads, head_dim, rotary_dim, interleaved, norm, add_one, dtype, cache, scales, block
CASES = [
    (1, 4, 2, 64, 64, False, False, False, BF16, BF16, 0, 16),
    (3, 9, 3, 64, 64, False, True, False, BF16, FP16, 0, 8),
    (5, 8, 1, 256, 256, False, True, True, BF16, BF16, 0, 16),
    (4, 6, 6, 80, 32, False, False, False, FP16, FP16, 1, 32),
    (2, 5, 5, 20, 10, True, True, False, FP32, FP32, 0, 8),
    (3, 3, 1, 128, 128, True, False, True, BF16, E4M3, 1, 16),
    (4, 17, 2, 128, 128, False, True, False, BF16, E4M3, 2, 64),
    (2, 4, 2, 96, 48, False, False, False, FP16, E5M2, 2, 16),
    (3, 2, 2, 112, 112, True, True, False, FP32, BF16, 0, 128),
    (2, 2, 1, 512, 128, False, True, False, BF16, FP32, 0, 8),
    (3, 4, 4, 16, 0, False, True, True, FP32, FP32, 1, 16),
    (2, 3, 3, 40, 0, False, False, False, BF16, E5M2, 0, 8),
    (0, 4, 2, 64, 64, False, False, False, BF16, BF16, 0, 16),
]


@pytest.mark.parametrize(
    (
        *("rows", "heads", "kv_heads", "head_dim", "rotary_dim", "interleaved", "norm", "add_one"),
        *("dtype", "cache", "scales", "block"),
    ),
    CASES,
)
def test_heads_are_normed_rotated_and_stored_as_the_reference_does(
    device: torch.device,
    rows: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    interleaved: bool,
    norm: bool,
    add_one: bool,
    dtype: torch.dtype,
    cache: torch.dtype,
    scales: int,
    block: int,
) -> None:
    layer = Layer(device, rows, heads, kv_heads, head_dim, dtype=dtype, cache=cache, block=block)
    rotation = reference.angles(MAX_LEN, rotary_dim).to(device) if rotary_dim else None
    weights = torch.randn(2, head_dim, device=device) if norm else (None, None)
    key_scale, value_scale = torch.rand(2, max(scales and (1, kv_heads)[scales - 1], 1), device=device) + 0.5
    form = {"interleaved": interleaved, "add_one": add_one}
    queries = finished(layer.q, weights[0], rotation, layer.positions, **form)
    keys = finished(layer.k, weights[1], rotation, layer.positions, **form)
    expected = layer.pool.clone()
    one = torch.ones(1, device=device)
    where = (layer.table, layer.row_slots, layer.positions)
    reference.store(expected[:, 1, 0], keys, *where, key_scale if scales else one)
    reference.store(expected[:, 1, 1], layer.v.float(), *where, value_scale if scales else one)
    k_before = layer.k.clone()

    result = layer.run(
        rotation=rotation,
        query_norm=weights[0],
        key_norm=weights[1],
        key_scale=key_scale if scales else None,
        value_scale=value_scale if scales else None,
        **form,
    )
    assert result is layer.q
    assert row_error(result, queries) <= rounding(dtype, terms=head_dim)
    # Both are rounded: of numbers midway between two, to either.
    assert row_error(layer.pool, expected) <= rounding(cache, cache, terms=head_dim)
    assert torch.equal(layer.k, k_before)


def test_queries_go_to_out_and_keys_stay_in_k_where_that_is_asked(device: torch.device) -> None:
    layer = Layer(device, 3, 4, 2, 64)
    rotation = reference.angles(MAX_LEN, 64).to(device)
    q_before = layer.q.clone()
    out = torch.empty(3, 4, 96, device=device, dtype=FP32)[:, :, 16:80]
    expected = finished(layer.k, None, rotation, layer.positions, interleaved=False, add_one=False)
    assert layer.run(rotation=rotation, keep_keys=True, out=out) is out
    queries = finished(q_before, None, rotation, layer.positions, interleaved=False, add_one=False)
    assert row_error(out, queries) <= rounding(FP32)
    assert row_error(layer.k, expected) <= rounding(BF16)
    assert torch.equal(layer.q, q_before)


def test_without_a_cache_keys_are_rotated_in_place(device: torch.device) -> None:
    layer = Layer(device, 3, 4, 2, 64)
    rotation = reference.angles(MAX_LEN, 64).to(device)
    expected = finished(layer.k, None, rotation, layer.positions, interleaved=False, add_one=False)
    nothing = (None, None, None)
    rope_and_store(layer.q, layer.k, layer.v, *nothing, layer.row_slots, layer.positions, rotation=rotation)
    assert row_error(layer.k, expected) <= rounding(BF16)
    assert not layer.pool.any()


def test_a_padded_row_and_a_missing_page_write_nothing(device: torch.device) -> None:
    layer = Layer(device, 4, 4, 2, 64)
    rotation = reference.angles(MAX_LEN, 64).to(device)
    layer.row_slots[:] = torch.tensor([0, -1, 1, 2])
    layer.positions[:] = torch.tensor([3, 0, 40, 5])
    layer.table[1, 40 // 16] = -1
    padding = layer.q[1].clone()
    layer.run(rotation=rotation)
    assert torch.equal(layer.q[1], padding)
    written = layer.keys.float().abs().sum((1, 3)).nonzero()
    pages = {(int(layer.table[0, 0]), 3), (int(layer.table[2, 0]), 5)}
    assert {(int(page), int(offset)) for page, offset in written} == pages


def test_what_is_too_large_for_fp8_saturates_and_a_nan_stays(device: torch.device) -> None:
    layer = Layer(device, 1, 1, 1, 16, dtype=FP32, cache=E4M3)
    layer.k[:] = 1e6
    layer.v[:] = -1e6
    layer.v[0, 0, 3] = torch.nan
    layer.run()
    page, offset = layer.table[layer.row_slots[0], layer.positions[0] // 16], layer.positions[0] % 16
    assert layer.keys[page, 0, offset].float().tolist() == [448.0] * 16
    value = layer.values[page, 0, offset].float()
    assert value.isnan().nonzero().tolist() == [[3]]
    assert value[4:].tolist() == [-448.0] * 12


def test_pages_beyond_two_billion_elements_are_reached(device: torch.device) -> None:
    layer = Layer(device, 1, 2, 1, 16, cache=E5M2, block=8)
    stride = 2**30 + 64
    pool = torch.empty(3 * stride + 4096, dtype=torch.int8, device=device).view(E5M2)
    layer.keys, layer.values = (pool.as_strided((4, 1, 8, 16), (stride, 128, 16, 1), at) for at in (0, 128))
    layer.table[:] = 3
    layer.positions[:] = 2
    layer.run()
    assert row_error(layer.keys[3, :, 2], layer.k[0]) <= rounding(E5M2)
    assert row_error(layer.values[3, :, 2], layer.v[0]) <= rounding(E5M2)


def test_slots_choose_among_rotations(device: torch.device) -> None:
    layer = Layer(device, 4, 2, 1, 16, dtype=FP32, cache=FP32)
    layer.row_slots[:] = torch.tensor([2, 0, -1, 1])
    rotations = torch.stack([reference.angles(MAX_LEN, 16, theta) for theta in (1e4, 1e2, 1e1)]).to(device)
    chosen = torch.tensor([0, 2, 1], dtype=torch.int32, device=device)
    expected = layer.q.clone()
    for row, which in ((0, 1), (1, 0), (3, 2)):
        angles = rotations[which, layer.positions[row : row + 1].long()]
        expected[row] = reference.rope(layer.q[row : row + 1], angles)[0]
    found = layer.run(rotation=rotations, rotation_of=chosen)
    assert row_error(found, expected) <= rounding()
    with pytest.raises(ValueError, match=r"rotation is \[96, 8, 2\] and rotation_of torch.int32 \[3\]"):
        layer.run(rotation=rotations[0], rotation_of=chosen)


def test_a_rows_result_does_not_depend_on_its_company(device: torch.device) -> None:
    layer = Layer(device, 5, 9, 3, 64)
    rotation = reference.angles(MAX_LEN, 64).to(device)
    weight = torch.randn(64, device=device)
    q, k, v = layer.q[2:3].clone(), layer.k[2:3].clone(), layer.v[2:3].clone()
    nothing = (None, None, None)
    where = (layer.row_slots[2:3], layer.positions[2:3])
    rope_and_store(q, k, v, *nothing, *where, rotation=rotation, query_norm=weight, key_norm=weight)
    layer.run(rotation=rotation, query_norm=weight, key_norm=weight, keep_keys=True)
    assert torch.equal(layer.q[2], q[0])
    assert torch.equal(layer.k[2], k[0])


def test_what_does_not_fit_together_is_refused(device: torch.device) -> None:
    layer = Layer(device, 2, 4, 2, 64)
    with pytest.raises(ValueError, match=r"turns 48 pairs of a head of 64: it has 32"):
        layer.run(rotation=torch.zeros(MAX_LEN, 48, 2, device=device))
    with pytest.raises(ValueError, match=r"query_norm is \[128\]: it has a weight for each of a head's 64"):
        layer.run(query_norm=torch.ones(128, device=device))
    with pytest.raises(ValueError, match="key_scale and value_scale go together"):
        layer.run(key_scale=torch.ones(1, device=device))
    layer.positions = layer.positions.long()
    with pytest.raises(ValueError, match=r"positions is torch.int64 \[2\], for 2 rows: give one int32 a row"):
        layer.run()

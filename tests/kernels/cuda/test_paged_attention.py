from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from slipway_kernels.attention import Workspace, bench, op, paged_attention, reference, workspace
from slipway_kernels.cuda.compare import rounding, row_error

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

# (queries, positions after the step) of each request, those of few queries first.
DECODES = ((1, 1), (1, 7), (1, 300), (1, 130))
CHUNKS = ((5, 5), (0, 9), (37, 70), (3, 140), (1, 33))
MIXED = ((1, 129), (1, 16), (40, 40), (1, 50), (9, 150))
VERIFIES = ((3, 130), (1, 300), (4, 4), (2, 257), (4, 131))

AXES: dict[str, Sequence[object]] = {
    "requests": (DECODES, CHUNKS, MIXED),
    "dtype": (FP32, BF16, FP16),
    "stored": (FP32, BF16, FP16, E4M3, E5M2),
    "heads": ((2, 2), (4, 1), (7, 1), (8, 1), (16, 1), (20, 1), (8, 2)),
    "head_dim": (16, 64, 80),
    "block": (8, 16, 32, 64, 128),
    "window": (0, 1, 20, 135),
    "softcap": (0.0, 2.0),
    "slopes": (False, True),
    "sinks": (False, True),
    "scales": (None, "one", "each"),
    "sms": (0, 132),
}


def pairwise(axes: dict[str, Sequence[object]]) -> list[dict[str, object]]:
    """Cases in which every two values of two axes meet at least once."""
    draw = random.Random(0)
    names = list(axes)
    open_pairs = {(a, x, b, y) for a, b in itertools.combinations(names, 2) for x in axes[a] for y in axes[b]}
    cases = []
    while open_pairs:
        a, x, b, y = min(open_pairs, key=repr)
        best: tuple[int, dict[str, object], set] = (0, {}, set())
        for _ in range(60):
            case = {name: draw.choice(values) for name, values in axes.items()} | {a: x, b: y}
            met = {(a, case[a], b, case[b]) for a, b in itertools.combinations(names, 2)} & open_pairs
            if len(met) > best[0]:
                best = (len(met), case, met)
        open_pairs -= best[2]
        cases.append(best[1])
    return cases


class Step:
    """Some requests whose keys lie in scattered pages; whatever must not be read is not a number."""

    def __init__(
        self,
        device: torch.device,
        requests: Sequence[tuple[int, int]],
        *,
        dtype: torch.dtype = FP32,
        stored: torch.dtype | None = None,
        heads: tuple[int, int] = (4, 2),
        head_dim: int = 16,
        block: int = 16,
        window: int = 0,
        softcap: float = 0.0,
        slopes: bool = False,
        sinks: bool = False,
        scales: str | None = None,
        sms: int = 132,
        decode_queries: int = 1,
        first: int = 0,
    ) -> None:
        self.requests, self.sms, self.decode_queries = requests, sms, decode_queries
        self.stored = stored or dtype
        (num_heads, kv_heads), count = heads, len(requests)
        self.longest = max(length for _, length in requests)
        self.max_query = max(queries for queries, _ in requests)
        blocks = -(-self.longest // block)
        pages = count * blocks
        pool = torch.full((pages + 1, 2, kv_heads, block, head_dim), torch.nan, device=device)
        self.table = torch.full((count + 2, blocks + 1), -1, dtype=torch.int32, device=device)
        self.slots = torch.randperm(count + 2, device=device)[:count].int()
        free = iter((torch.randperm(pages) + 1).tolist())
        for slot, (queries, length) in zip(self.slots.tolist(), requests, strict=True):
            begin = max(0, length - queries - window + 1) if window else 0
            for index in range(begin // block, -(-length // block)):
                page = next(free)
                self.table[slot, index] = page - 1
                known = slice(max(begin - index * block, 0), min(length - index * block, block))
                shape = (2, kv_heads, known.stop - known.start, head_dim)
                pool[page, :, :, known] = torch.randn(shape, device=device)
        pool = pool.to(self.stored)[1:]  # page −1 is there, and not a number
        self.keys, self.values = pool[:, 0], pool[:, 1]
        counts = torch.tensor([0, *(queries for queries, _ in requests)], device=device)
        self.query_start = counts.cumsum(0).int()
        self.lengths = torch.tensor([length for _, length in requests], dtype=torch.int32, device=device)
        tokens = int(self.query_start[-1])
        wide = torch.randn(tokens, num_heads + 3, head_dim, device=device).to(dtype)
        self.q = wide[:, 1 : num_heads + 1]
        self.out = torch.full((tokens + 2, num_heads, head_dim), 7.0, device=device, dtype=dtype)
        self.features: dict[str, object] = {
            "scale": 0.3,
            "window": window,
            "first": first,
            "softcap": softcap,
            "slopes": torch.rand(num_heads, device=device) if slopes else None,
            "sinks": torch.randn(num_heads, device=device) if sinks else None,
        }
        for name in ("key_scale", "value_scale"):
            size = {None: 0, "one": 1, "each": kv_heads}[scales]
            self.features[name] = 0.5 + torch.rand(size, device=device) if size else None

    def run(self, space: Workspace | None = None) -> Tensor:
        tokens, heads, head_dim = self.q.shape
        decodes = [queries <= self.decode_queries for queries, _ in self.requests]
        num_decodes = decodes.index(False) if False in decodes else len(decodes)
        if space is None:
            space = workspace(
                *(max(num_decodes, 1), heads, self.keys.shape[1], head_dim, self.longest, self.q.device),
                sms=self.sms,
                queries=self.decode_queries,
            )
        out = paged_attention(
            *(self.q, self.keys, self.values, self.table, self.slots, self.query_start, self.lengths),
            self.out[:tokens],
            **self.features,  # type: ignore[arg-type]
            num_decodes=num_decodes,
            decode_queries=self.decode_queries,
            max_query=self.max_query,
            max_length=self.longest,
            workspace=space,
            sms=self.sms,
        )
        assert (self.out[tokens:] == 7).all(), "rows of no request were written"
        return out

    def expected(self) -> Tensor:
        keys, values = (part.float().nan_to_num() for part in (self.keys, self.values))
        return reference.paged_attention(
            *(self.q, keys, values, self.table, self.slots, self.query_start, self.lengths),
            **self.features,  # type: ignore[arg-type]
        )

    def check(self) -> None:
        assert row_error(self.run(), self.expected()) <= self.bound()

    def bound(self) -> float:
        """Weights are rounded to the type of their product with values, and the result to its own.

        So are queries, where they are wider: it moves a score by what it moves the sum of their product with
        a key, whose deviation is the root of the head size, and a weight in proportion to that.
        """
        product = FP16 if self.stored.itemsize == 1 else self.stored
        error = rounding(product, self.q.dtype, terms=self.longest)
        if torch.finfo(product).eps > torch.finfo(self.q.dtype).eps:
            moved = self.features["scale"] * self.q.shape[2] ** 0.5
            if self.features["key_scale"] is not None:
                moved *= float(self.features["key_scale"].max())
            error += 2 * moved * rounding(product)
        return error


@pytest.mark.parametrize("case", pairwise(AXES), ids=lambda case: "-".join(map(str, case.values()))[-60:])
def test_attention_is_the_references(device: torch.device, case: dict[str, object]) -> None:
    Step(device, **case).check()  # type: ignore[arg-type]


VERIFYING = {name: values for name, values in AXES.items() if name not in ("requests", "block", "head_dim")}


@pytest.mark.parametrize(
    "case", pairwise(VERIFYING), ids=lambda case: "-".join(map(str, case.values()))[-60:]
)
def test_a_few_queries_share_the_splits_of_one(device: torch.device, case: dict[str, object]) -> None:
    """Also where a split ends between two queries, or holds nothing that the first of them sees."""
    Step(device, VERIFIES, decode_queries=4, **case).check()  # type: ignore[arg-type]


@pytest.mark.parametrize("stored", [FP32, E4M3])
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("first", [1, 3])
def test_keys_before_the_first_are_hidden_from_those_behind_it(
    device: torch.device, stored: torch.dtype, window: int, first: int
) -> None:
    requests = (*VERIFIES, (5, 5), (37, 70))
    Step(device, requests, stored=stored, decode_queries=4, window=window, first=first).check()


@pytest.mark.parametrize("head_dim", [8, 24, 96, 112, 128, 160, 192, 256])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_every_head_size_is_computed(device: torch.device, head_dim: int, dtype: torch.dtype) -> None:
    Step(device, ((1, 40), (6, 25)), dtype=dtype, head_dim=head_dim).check()


@pytest.mark.parametrize("stored", [E4M3, E5M2])
def test_eight_bits_are_read_where_the_device_does_not_know_them(
    device: torch.device, stored: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "arch_of", lambda device: 80)
    Step(device, MIXED, dtype=BF16, stored=stored, scales="each", softcap=3.0).check()
    Step(device, MIXED, dtype=FP16, stored=stored).check()


@pytest.mark.parametrize("stored", [E4M3, E5M2])
@pytest.mark.parametrize("requests", [DECODES, CHUNKS])
@pytest.mark.parametrize("sms", [0, 132])
def test_eight_bits_count_times_the_scales_of_their_heads(
    device: torch.device, stored: torch.dtype, requests: tuple[tuple[int, int], ...], sms: int
) -> None:
    """Scales far from 1, and from each other: of keys and values, and of one head and another."""
    step = Step(device, requests, dtype=BF16, stored=stored, heads=(6, 3), scales="each", sms=sms)
    step.features["key_scale"] = torch.tensor([0.02, 1.5, 0.3], device=device)
    step.features["value_scale"] = torch.tensor([7.0, 0.004, 90.0], device=device)
    step.check()


@pytest.mark.parametrize("name", ["key_scale", "value_scale"])
def test_keys_and_values_may_have_scales_alone(device: torch.device, name: str) -> None:
    step = Step(device, MIXED, stored=E4M3, scales="each")
    step.features[name] = None
    step.check()


def test_padding_and_empty_requests_write_nothing(device: torch.device) -> None:
    step = Step(device, MIXED)
    step.slots[[1, 2]] = -1
    expected = step.expected()
    out = step.run().clone()
    for request, rows in enumerate(step.query_start.tolist()[:-1]):
        rows = slice(rows, int(step.query_start[request + 1]))
        if request in (1, 2):
            assert (out[rows] == 7).all()
        else:
            assert row_error(out[rows], expected[rows]) <= step.bound()


def test_a_step_of_padding_alone_writes_nothing(device: torch.device) -> None:
    step = Step(device, DECODES)
    step.slots[:] = -1
    assert (step.run() == 7).all()


def test_prompts_may_have_all_rows_where_the_decodes_before_them_are_padding(device: torch.device) -> None:
    step = Step(device, (*((0, 0),) * 60, (70, 90), (9, 9)))
    step.slots[:60] = -1
    step.check()


@pytest.mark.parametrize("requests", [DECODES, CHUNKS])
def test_a_request_does_not_depend_on_its_company(
    device: torch.device, requests: tuple[tuple[int, int], ...]
) -> None:
    step = Step(device, requests, dtype=BF16, sms=0)
    together = step.run().clone()
    starts = step.query_start.tolist()
    for index in range(len(requests)):
        alone = Step(device, requests[index : index + 1], dtype=BF16, sms=0)
        rows = slice(starts[index], starts[index + 1])
        if rows.start == rows.stop:
            continue
        alone.q, alone.features = step.q[rows], step.features
        alone.keys, alone.values, alone.table = step.keys, step.values, step.table
        alone.slots, alone.max_query = step.slots[index : index + 1], step.max_query
        assert torch.equal(alone.run(), together[rows]), index


def test_a_smaller_workspace_means_fewer_splits_and_the_same_result(device: torch.device) -> None:
    step = Step(device, DECODES)
    many = step.run().clone()
    for places in (0, 4 * 4, 4 * 4 * 2):
        space = Workspace(torch.empty(places, 16, device=device), torch.empty(places, device=device))
        assert row_error(step.run(space), many) <= step.bound()


def test_pages_past_two_to_the_31_are_found(device: torch.device) -> None:
    step = Step(device, ((1, 40), (9, 20)), dtype=BF16, stored=E4M3, block=32)
    apart = 1 << 30  # bytes; all but the first few of each page are never touched
    flat = torch.empty(4 * apart, dtype=torch.uint8, device=device).view(E4M3)
    for place, name in enumerate(("keys", "values")):
        packed = getattr(step, name).contiguous()
        assert packed.shape[0] * apart > 2**31
        far = flat[place * packed[0].numel() :].as_strided(packed.shape, (apart, *packed.stride()[1:]))
        setattr(step, name, far.copy_(packed))
    step.check()


def test_what_cannot_be_computed_is_refused(device: torch.device) -> None:
    step = Step(device, DECODES)
    step.values = step.values.contiguous()
    with pytest.raises(ValueError, match="keys and values lie alike"):
        step.run()
    step = Step(device, DECODES)
    step.q = step.q[:, :3]
    with pytest.raises(ValueError, match=r"q is \[4, 3, 16\], out \[4, 4, 16\]"):
        step.run()
    step = Step(device, DECODES, block=16)
    step.keys, step.values = step.keys[:, :, :12], step.values[:, :, :12]
    with pytest.raises(ValueError, match="pages hold 12 positions: take a power of two"):
        step.run()
    step = Step(device, DECODES, scales="one", heads=(6, 3))
    step.features["value_scale"] = torch.ones(2, device=device)
    with pytest.raises(ValueError, match="the scales of keys and values have 1 and 2 numbers, there are 3"):
        step.run()
    step = Step(device, DECODES)
    with pytest.raises(ValueError, match="the workspace is for heads of 8, these have 16"):
        step.run(Workspace(torch.empty(99, 8, device=device), torch.empty(99, device=device)))


def small() -> Iterator[str]:
    yield from (case.name for case in bench.cases(torch.device("cpu"), "small"))


@pytest.mark.parametrize("name", list(small()))
def test_the_benchs_cases_are_the_references(device: torch.device, name: str) -> None:
    case = next(case for case in bench.cases(device, "small") if case.name == name)
    assert case.expected is not None
    assert row_error(case.run(), case.expected()) <= case.tolerance


@pytest.mark.parametrize(("kv_heads", "bound"), [(1, 132), (8, 17), (256, 1)])
def test_splits_are_bounded_however_long_contexts_are(kv_heads: int, bound: int) -> None:
    """By what keeps all processors busy with one request; graphs of long contexts run short ones, too."""
    counts = [op.split_count(256, kv_heads, 4, length, sms=132) for length in (100, 9000, 1 << 20, 1 << 24)]
    assert counts[0] == 1
    assert counts[-1] == max(counts) == bound

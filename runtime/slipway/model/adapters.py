"""Which of a model's matrices an adapter adds to, and by what: cut as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from slipway.load.adapter import Adapter, Factors
from slipway.load.arrays import Floats
from slipway.load.cut import ALL, WHOLE, Cut
from slipway.load.errors import LoadError
from slipway.load.expert_parameters import by_expert
from slipway.model.registry import Family
from slipway.model.roles import Entry, Place, expected, usual
from slipway.model.shard import WHOLE_MODEL, Shard
from slipway.model.spec import DecoderSpec

PRODUCTS = frozenset(
    ("q", "k", "v", "out", "gate", "up", "down", "shared_gate", "shared_up", "shared_down", "head")
)
"""Roles of matrices that adapters may add to, beside the embedding and those of experts."""
EXPERTS = {"gate_up_proj": ("expert_gate", "expert_up"), "down_proj": ("expert_down",)}
"""Roles of the matrices that lie beneath each other in a tensor of all experts."""
_ROLES = PRODUCTS.union(*EXPERTS.values())
EMBEDDING: Place = (-1, "embedding", -1)
HEAD: Place = (-1, "head", -1)


@dataclass(frozen=True, slots=True)
class Addition:
    """What one matrix and its bias get.

    a         [r, k], of an embedding [tokens, r]; None where only the bias is another
    b         [n, r], which has the scaling
    bias      [n], added
    new_bias  [n], instead of the matrix's own
    outputs   of n, those that b has the rows of
    A rank whose `Shard` deals the rows of a has its own, of all of which b has the columns.
    """

    a: Floats | None = None
    b: Floats | None = None
    bias: Floats | None = None
    new_bias: Floats | None = None
    outputs: slice = field(default_factory=lambda: ALL)


def additions(
    adapter: Adapter,
    spec: DecoderSpec,
    family: Family,
    cuts: Mapping[Place, Cut],
    shard: Shard = WHOLE_MODEL,
    added: int = 0,
) -> dict[Place, Addition]:
    """By place. Raises LoadError, with the name, for what the model has not.

    cuts  of the matrices: A has their columns, and B their rows; but those of the embedding and the head have
          all tokens, until it is known which rows are the adapter's own
    shard of those who share the model: the biases of what they add up are the first one's; and how they share
          what a cut leaves whole
    added tokens that the adapter adds: factors of the embedding and the head may have their rows, too
    """
    known = expected(spec, family)
    found: dict[Place, Addition] = {}
    factors_of = _one_by_one(adapter, family, known)
    for module in {**factors_of, **adapter.biases}:
        entry = _entry(module, spec, family, known)
        if entry is None or (entry.role not in _ROLES and entry.place != EMBEDDING):
            raise _no_target(adapter, module)
        factors, new = factors_of.get(module), adapter.biases.get(module)
        if entry.place in found:
            raise _twice(adapter, module)
        cut = WHOLE if entry.place in (EMBEDDING, HEAD) else cuts.get(entry.place, WHOLE)
        if added and factors is not None and entry.place in (EMBEDDING, HEAD):
            entry = replace(entry, shape=_widened(factors, entry, added))
        if new is not None:
            if f"{usual(module, family)}.bias" not in known or new.shape != entry.shape[:1]:
                raise adapter.wrong(
                    f"has a bias of {list(new.shape)} for {module}, which has none of that shape in the model"
                )
            new = new[cut.rows]
        addition = _addition(adapter, module, entry, factors, cut, spec, new)
        if not shard.adds_bias(entry.role):
            addition = replace(addition, bias=None, new_bias=None)
        found[entry.place] = _shared(addition, entry.role, shard)
    return found


def _one_by_one(adapter: Adapter, family: Family, known: Mapping[str, Entry]) -> dict[str, Factors]:
    """The factors by module, those of a tensor of all experts by expert."""
    found: dict[str, Factors] = {}
    for module, factors in adapter.factors.items():
        own = [(module, factors)]
        if factors.experts:
            own = list(_of_experts(adapter, module, factors, family, known))
        for name, part in own:
            if name in found:
                raise _twice(adapter, name)
            found[name] = part
    return found


def _of_experts(
    adapter: Adapter, module: str, factors: Factors, family: Family, known: Mapping[str, Entry]
) -> Iterator[tuple[str, Factors]]:
    path, _, parameter = usual(module, family).rpartition(".")
    names = [family.names.get(role, "") for role in EXPERTS[parameter]]
    layer = next((part for part in path.split(".") if part.isdecimal()), "")
    first = known.get(f"{names[0].format(layer, 0)}.weight")
    if first is None or not names[0].format(layer, 0).startswith(f"{path}.0."):
        raise _no_target(adapter, module)
    experts = sum(
        f"{names[0].format(layer, expert)}.weight" in known for expert in range(factors.experts + 1)
    )
    if experts != factors.experts:
        raise adapter.wrong(f"has factors for {factors.experts} experts in {module}, which the model has not")
    n, k = len(names) * first.shape[0], first.shape[1]
    found = len(factors.b), factors.a.shape[1]
    crossed = found == (k, n) and (n != k or factors.shrinks_output)
    if factors.embedding or factors.bias is not None or (found != (n, k) and not crossed):
        raise adapter.wrong(
            f"is for {module} of {list(found)} rows and columns, where each expert has {[n, k]}"
        )
    for expert, (a, b) in enumerate(by_expert(factors.a, factors.b, experts)):
        if crossed:
            a, b = b.T, a.T
        for name, rows in zip(names, np.split(b, len(names)), strict=True):
            yield name.format(layer, expert), replace(factors, a=a, b=rows, experts=0)


def _entry(module: str, spec: DecoderSpec, family: Family, known: Mapping[str, Entry]) -> Entry | None:
    """The matrix of a module; a head that is the embedding's matrix is a module of its own."""
    name = usual(module, family)
    if spec.tied_embedding and name == family.names["head"]:
        return Entry("head", (spec.vocab, spec.hidden))
    return known.get(f"{name}.weight")


def _addition(
    adapter: Adapter,
    module: str,
    entry: Entry,
    factors: Factors | None,
    cut: Cut,
    spec: DecoderSpec,
    new_bias: Floats | None,
) -> Addition:
    if factors is None:
        return Addition(new_bias=new_bias)
    n, k = len(factors.b), factors.a.shape[1]
    shape = (k, n) if factors.embedding else (n, k)
    if factors.embedding != (entry.place == EMBEDDING) or shape != entry.shape:
        raise adapter.wrong(
            f"is for {module} of {list(shape)} rows and columns, which has {list(entry.shape)}"
        )
    if factors.embedding:
        scaling = np.float32(factors.scaling * spec.embedding_scale)
        return Addition(np.ascontiguousarray(factors.a.T), factors.b * scaling, None, new_bias)
    bias = None if factors.bias is None else factors.bias[cut.rows] * np.float32(factors.scaling)
    b = factors.b[cut.rows] * np.float32(factors.scaling)
    return Addition(factors.a[:, cut.columns], b, bias, new_bias)


def _shared(addition: Addition, role: str, shard: Shard) -> Addition:
    a, b = addition.a, addition.b
    if a is not None and shard.deals(role):
        return replace(addition, a=a[shard.turns])
    if b is not None and shard.adds_parts(role):
        outputs = shard.run(len(b))
        return replace(addition, b=b[outputs], outputs=outputs)
    return addition


def _twice(adapter: Adapter, module: str) -> LoadError:
    return adapter.wrong(f"has factors for {module} twice, under two names")


def _widened(factors: Factors, entry: Entry, added: int) -> tuple[int, ...]:
    """The shape of the embedding or the head with rows of added tokens, where the factors have them."""
    rows, *others = entry.shape
    found = factors.a.shape[1] if factors.embedding else len(factors.b)
    return (rows + added if found == rows + added else rows, *others)


def _no_target(adapter: Adapter, module: str) -> LoadError:
    return adapter.wrong(
        f"is for {module}, and adapters add to the linear layers of attention and of feed-forward layers, "
        "those of experts among them, to the embedding and to the head",
        "Train it with other target_modules, or merge it into the model.",
    )

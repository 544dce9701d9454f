"""Replaces a torch model's matrix products: on CPU all, on a device those whose weights are quantized.

On CPU the rows of a product do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from slipway.load.quantized.form import Form
from slipway.load.quantized.on_the_fly import OnTheFly
from slipway.load.quantized.tensors import Unquantized
from slipway.load.torch_arrays import array, tensor, torch_type
from slipway.schemes.choice import SchemeChoice
from slipway.schemes.scheme import Scheme

if TYPE_CHECKING:
    from slipway.worker.device.products import DeviceScheme
    from slipway.worker.device.schemes import DeviceSchemes


Multiply = Callable[[Tensor, Tensor | None], Tensor]
"""x [m, k] and a bias [n] → x · Wᵀ + bias [m, n]"""


class PackedLinear(nn.Module):
    """x [..., k] → x · Wᵀ + bias [..., n] in the type of x.

    weight  shape and type of what is packed, for models that ask; it has no numbers
    """

    bias: Tensor | None  # [n]

    def __init__(self, multiply: Multiply, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._multiply = multiply
        self.weight = torch.empty_like(weight, device="meta")
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self._multiply(x.reshape(-1, x.shape[-1]), self.bias)
        return y.view(*x.shape[:-1], -1).to(x.dtype)


class PackedEmbedding(nn.Module):
    """Rows of a matrix that is also the head's: it is held once."""

    def __init__(self, scheme: Scheme, dtype: torch.dtype) -> None:
        super().__init__()
        self._scheme = scheme
        self._dtype = dtype

    def forward(self, ids: Tensor) -> Tensor:
        """ids [...] → [..., k]"""
        rows = tensor(self._scheme.rows(array(ids.flatten())))
        return rows.view(*ids.shape, -1).to(self._dtype)


class PackedExperts(nn.Module):
    """transformers' gated experts, summed in ascending order of the expert whoever else chose it."""

    def __init__(self, experts: nn.Module, pack: Callable[[Tensor], Multiply]) -> None:
        super().__init__()
        self._apply_gate: Callable[[Tensor], Tensor] = experts._apply_gate  # type: ignore[assignment]
        self.gate_up = [pack(matrix) for matrix in experts.get_parameter("gate_up_proj").detach()]
        self.down = [pack(matrix) for matrix in experts.get_parameter("down_proj").detach()]
        del experts.gate_up_proj, experts.down_proj  # the bound gate keeps the module alive

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """x [rows, hidden], chosen and weights [rows, top_k] → [rows, hidden]"""
        y = torch.zeros_like(x)
        for expert, (gate_up, down) in enumerate(zip(self.gate_up, self.down, strict=True)):
            row, place = (chosen == expert).nonzero(as_tuple=True)
            if len(row):
                inner = self._apply_gate(gate_up(x[row], None).to(x.dtype))
                result = down(inner, None).to(x.dtype) * weights[row, place, None]
                y.index_add_(0, row, result.to(y.dtype))
        return y


class Independent(TorchFunctionMode):
    """Makes what torch is left with independent of company too.

    For another number of rows torch may sum a product in another order, so each row is computed alone. And
    it computes the last numbers of a tensor, where they fill no vector, by functions that round otherwise:
    such tensors are padded.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        settings = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].numel():
            x, *rest = args
            if function is F.linear:
                rows = [function(row, *rest, **settings) for row in x.reshape(-1, x.shape[-1])]
                return torch.stack(rows).view(*x.shape[:-1], -1)
            if function in _ROUNDED_BY_PLACE and x.ndim and x.shape[-1] % VECTORS:
                padded = F.pad(x.flatten(), (0, -x.numel() % VECTORS))
                return function(padded, *rest, **settings)[: x.numel()].view(x.shape)
        return function(*args, **settings)


VECTORS = 64
"""Numbers that torch's vector loops take at once, whatever type and processor."""
_ROUNDED_BY_PLACE = frozenset(
    (torch.sigmoid, Tensor.sigmoid, F.silu, F.gelu, F.softplus)  # measured on torch 2.15
)


def pack_modules(
    model: transformers.PreTrainedModel,
    schemes: SchemeChoice,
    dtype: torch.dtype,
    conversion: OnTheFly | None = None,
) -> bool:
    """Pack every linear layer and all experts of `model`, each freed as its packed form is ready.

    conversion  quantizes them on the way, but for head and routers
    True where something is left that only `Independent` makes independent of company.
    """
    embeddings = {name: one for name, one in model.named_modules() if type(one) is nn.Embedding}
    tied = {one.weight.data_ptr() for one in embeddings.values()}
    shared: dict[int, Scheme] = {}
    widths: set[int] = set()

    def hold(matrix: Tensor, role: str = "expert") -> Multiply:
        place = matrix.data_ptr()
        scheme = shared.get(place)
        if scheme is None:
            widths.add(matrix.shape[0])
            form = conversion.form(role, tuple(matrix.shape)) if conversion else None
            scheme = _held(array(matrix), form, schemes)
            if place in tied:
                shared[place] = scheme
        return lambda x, bias: tensor(scheme.apply(array(x), None if bias is None else array(bias)))

    for name, module, role in _products(model):
        if role == "expert":
            model.set_submodule(name, PackedExperts(module, hold))
        else:
            matrix = _matrix(module)
            packed = PackedLinear(hold(matrix, role), matrix, _bias(module, torch.float32))
            model.set_submodule(name, packed)
            del matrix
    for name, embedding in embeddings.items():
        if scheme := shared.get(embedding.weight.data_ptr()):
            model.set_submodule(name, PackedEmbedding(scheme, dtype))
    looked_up = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    ragged = any(n % VECTORS for n in widths)
    return ragged or any(w.ndim > 1 and id(w) not in looked_up for w in model.parameters())


def quantize_modules(
    model: transformers.PreTrainedModel, schemes: DeviceSchemes, conversion: OnTheFly
) -> list[DeviceScheme]:
    """Hold on the schemes' device, as `conversion` has them, the linear layers and experts that it quantizes.

    The rest of `model` stays as it is, and where it is. Returns what holds those.
    """

    from slipway.worker.device.products import DeviceScheme, Rows  # imports Triton

    kind = torch_type(schemes.dtype)
    held: list[DeviceScheme] = []

    def hold(matrix: Tensor, role: str = "expert") -> Multiply:
        form = conversion.form(role, tuple(matrix.shape))
        scheme = cast(DeviceScheme, _held(matrix.to(schemes.device), form, schemes))
        held.append(scheme)
        return lambda x, bias: scheme.apply(Rows(x), bias)

    for name, module, role in _products(model):
        if role == "expert":
            model.set_submodule(name, PackedExperts(module, hold))
        elif conversion.form(role, tuple((matrix := _matrix(module)).shape)) is not None:
            model.set_submodule(name, PackedLinear(hold(matrix, role), matrix, _bias(module, kind)))
    return held


def _held(matrix: Any, form: Form | None, schemes: SchemeChoice) -> Scheme:
    """matrix [n, k], an array or on a device a tensor, in that form where there is one."""
    scheme = schemes.of(form)()
    scheme.create((matrix.shape[0], matrix.shape[1]))
    rows = np.arange(matrix.shape[0], dtype=np.int32)
    scheme.load(rows, matrix if form is None else Unquantized(matrix, form, schemes.dtype))
    scheme.finish()
    return scheme


def _products(model: transformers.PreTrainedModel) -> Iterator[tuple[str, Any, str]]:
    """Linear layers and gated experts, by name, with their role; each may be replaced, and is then let go."""
    find_head: Any = model.get_output_embeddings
    head = id(find_head())
    left = list(model.named_modules())[::-1]
    while left:
        name, module = left.pop()
        if isinstance(module, (nn.Linear, Conv1D)) and type(module).forward in _PLAIN:
            role = "head" if id(module) == head else "router" if name.endswith(_ROUTERS) else "linear"
            yield name, module, role
        elif _has_gated_experts(module):
            yield name, module, "expert"


def _matrix(module: nn.Linear | Conv1D) -> Tensor:
    """[n, k]"""
    weight = module.weight.detach()
    return weight.t() if isinstance(module, Conv1D) else weight


def _bias(module: nn.Linear | Conv1D, dtype: torch.dtype) -> Tensor | None:
    """[n]"""
    return None if module.bias is None else module.bias.detach().to(dtype)


_PLAIN = (nn.Linear.forward, Conv1D.forward)
"""Of subclasses that have left the product as it is."""
_ROUTERS = (".gate", ".router", ".shared_expert_gate")


def _has_gated_experts(module: nn.Module) -> bool:
    """Whether a module holds experts in transformers' usual form: [experts, gate then up, hidden]."""
    marks = {
        "has_gate": True,
        "is_concatenated": True,
        "is_transposed": False,
        "has_bias": False,
        "has_post_expert_norm": False,
    }
    return all(getattr(module, name, None) is value for name, value in marks.items())

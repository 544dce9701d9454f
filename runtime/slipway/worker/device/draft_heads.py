"""Heads on the target's rows, on the device."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from slipway.load.arrays import DType
from slipway.load.checkpoint import Checkpoint
from slipway.load.quantized.tensors import in_type
from slipway.load.torch_arrays import tensor
from slipway.schemes.fused import FusedLinear, stacked
from slipway.worker.device.batch import Batch
from slipway.worker.device.pages import DevicePages
from slipway.worker.device.products import Move, Rows, move_matrices, product, scheme_of
from slipway.worker.device.schemes import DeviceSchemes
from slipway.worker.device.transfer import Transfer
from slipway.worker.drafts.heads import HeadSpec
from slipway.worker.drafts.tensors import tensors_of
from slipway_kernels.rms_norm import rms_norm


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """The weights of heads by their names: matrices, and vectors in fp32."""

    matrices: Mapping[str, FusedLinear]
    vectors: Mapping[str, Tensor]

    @classmethod
    def read(
        cls, spec: HeadSpec, checkpoint: Checkpoint, element: DType, device: torch.device
    ) -> DeviceParts:
        """Raises LoadError where the checkpoint has others."""
        matrices: dict[str, FusedLinear] = {}
        vectors: dict[str, Tensor] = {}
        with closing(Transfer(device)) as transfer:
            schemes = DeviceSchemes(element, transfer)
            for name, stored in tensors_of(checkpoint, element, spec.place, spec.shapes()):
                if len(stored.shape) == 1:
                    vectors[name] = tensor(in_type(stored, element)).to(device, torch.float32)
                    continue
                matrix = stacked(stored.shape[1], {name: stored.shape[0]}, {name: schemes.of(None)})
                matrix.load(name, stored)
                matrix.finish(schemes.placed)
                matrices[name] = matrix
        return cls(matrices, vectors)


class DeviceHeads(ABC):
    """A `Guesser` without keys."""

    def __init__(self, parts: DeviceParts, told: Sequence[Tensor]) -> None:
        """told: the target's, as of `Guesser`"""
        self.told = told
        self._parts = parts

    def use(self, pages: DevicePages) -> None:
        return

    def move(self, to: Move) -> None:
        """Vectors stay: they are small."""
        move_matrices(self._parts.matrices.values(), to)

    @abstractmethod
    def hidden(self, batch: Batch, given: Sequence[Tensor], ahead: int) -> Tensor: ...
    @abstractmethod
    def logits(self, hidden: Tensor, slots: Tensor, ahead: int) -> Tensor: ...

    def _product(self, name: str, x: Tensor) -> Tensor:
        return product(self._parts.matrices[name], Rows(x))


class DeviceMedusa(DeviceHeads):
    """x += SiLU(W · x + b), so many times, of the same rows for all heads."""

    def __init__(
        self,
        parts: DeviceParts,
        told: Sequence[Tensor],
        blocks: Sequence[Sequence[str]],
        heads: Sequence[str],
    ) -> None:
        """
        blocks  [head, layer]  names of W and b, without .weight and .bias
        heads   [head]  names of the matrices that make logits
        """
        super().__init__(parts, told)
        self._blocks = blocks
        self._heads = heads

    def hidden(self, batch: Batch, given: Sequence[Tensor], ahead: int) -> Tensor:
        return given[0]

    def logits(self, hidden: Tensor, slots: Tensor, ahead: int) -> Tensor:
        x = hidden.float()
        for name in self._blocks[ahead]:
            branch = self._product(f"{name}.weight", x.to(hidden.dtype)).float()
            bias = self._parts.vectors.get(f"{name}.bias")
            x = x + functional.silu(branch if bias is None else branch + bias)
        return self._product(self._heads[ahead], x.to(hidden.dtype))


@dataclass(frozen=True, slots=True)
class StateHead:
    """Names of one head's tensors: the embedding, the state's matrix, its norm and that norm's bias, and the
    matrix of logits."""

    embedding: str
    proj: str
    norm: str
    norm_bias: str
    head: str


class DeviceSpeculator(DeviceHeads):
    """state = GELU(norm(W · state + c · E[token]) · w + b); logits are H · state."""

    def __init__(
        self,
        parts: DeviceParts,
        told: Sequence[Tensor],
        heads: Sequence[StateHead],
        *,
        token_weight: float,
        scaled: bool,
        eps: float,
    ) -> None:
        """token_weight: c; scaled: the target's rows are normed first, and divided by √2"""
        super().__init__(parts, told)
        self._heads = heads
        self._token_weight = token_weight
        self._scaled = scaled
        self._eps = eps

    def hidden(self, batch: Batch, given: Sequence[Tensor], ahead: int) -> Tensor:
        head, (before,), vectors = self._heads[ahead], given, self._parts.vectors
        if self._scaled and not ahead:
            weight = torch.full((before.shape[1],), math.sqrt(0.5), device=before.device)
            before = rms_norm(before, weight, self._eps, torch.empty_like(before))
        embedding = scheme_of(self._parts.matrices[head.embedding].parts[0])
        state = self._product(head.proj, before).float()
        state = torch.add(state, embedding.rows(batch.token_ids).float(), alpha=self._token_weight)
        rms_norm(state, vectors[head.norm], self._eps, state)
        return functional.gelu(state + vectors[head.norm_bias]).to(before.dtype)

    def logits(self, hidden: Tensor, slots: Tensor, ahead: int) -> Tensor:
        return self._product(self._heads[ahead].head, hidden)

"""Layers that go on from the target's rows, on the device, with keys of their own in its pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway.load.arrays import Ints
from slipway.load.torch_arrays import tensor
from slipway.model.kv import KVLayout
from slipway.model.rope import cos_sin
from slipway.model.spec import Attention, DecoderSpec, Mlp
from slipway.model.weights import MlpWeights
from slipway.schemes.fused import FusedLinear
from slipway.worker.device.any_decoder import AnyDecoder
from slipway.worker.device.attention import TritonAttention
from slipway.worker.device.batch import Batch
from slipway.worker.device.feed_forward import fed_forward
from slipway.worker.device.pages import DevicePages, LayerCache
from slipway.worker.device.products import Move, Rows, move_matrices, normed_for, product, scheme_of
from slipway.worker.device.row_drafts import few_rows
from slipway.worker.device.schemes import DeviceSchemes
from slipway.worker.drafts.eagle import Eagle
from slipway.worker.drafts.eagle3 import LAYER, Eagle3
from slipway.worker.drafts.layer import FIRST_ROW
from slipway.worker.drafts.mtp import Mtp
from slipway.worker.drafts.tensors import Tensors
from slipway_kernels.rms_norm import rms_norm
from slipway_kernels.rope import rope_and_store


@dataclass(frozen=True, slots=True)
class Beside:
    """What such layers stand beside, and how far they reach.

    kv        where they are in the target's pages
    length    tokens of a request that they read
    requests  of a step, and num_drafts of each, at most
    """

    target: AnyDecoder
    kv: KVLayout
    length: int
    requests: int
    num_drafts: int


class DeviceTensors:
    """Tensors of a checkpoint, which become matrices and vectors on the device as they are asked for."""

    def __init__(self, tensors: Tensors, schemes: DeviceSchemes) -> None:
        self._tensors = tensors
        self._schemes = schemes
        self.device = schemes.device
        self.ranks = schemes.ranks
        self.matrices: list[FusedLinear] = []

    def matrix(self, *names: str) -> FusedLinear:
        """Those of these names beneath each other, with their biases where they have some."""
        linear = self._tensors.linear(names, self._schemes)
        self.matrices.append(linear)
        return linear

    def own(self, name: str) -> FusedLinear | None:
        """A matrix that need not be there."""
        return self.matrix(name) if f"{name}.weight" in self._tensors else None

    def vector(self, name: str) -> Tensor:
        """In fp32."""
        return tensor(self._tensors.vector(name)).to(self.device)

    def indices(self, numbers: Ints) -> Tensor:
        return tensor(numbers).to(self.device, torch.int64)


class DeviceDraftLayer:
    """x += attention(inputs); x += mlp(norm(x)).   What `DraftLayer` is on CPU."""

    def __init__(self, decoder: DecoderSpec, tensors: DeviceTensors, name: str) -> None:
        """name: how its tensors begin"""
        self._ranks = tensors.ranks
        mlp = decoder.layers[0].mlp
        assert isinstance(mlp, Mlp), "families of heads have no experts"
        self._spec = decoder.layers[0].attention
        self._eps = decoder.norm_eps
        self._qkv = tensors.matrix(*(f"{name}.self_attn.{one}_proj" for one in "qkv"))
        self._out = tensors.matrix(f"{name}.self_attn.o_proj")
        gate_up = tensors.matrix(f"{name}.mlp.gate_proj", f"{name}.mlp.up_proj")
        self._mlp = MlpWeights(mlp, gate_up, tensors.matrix(f"{name}.mlp.down_proj"))
        self._norm = tensors.vector(f"{name}.post_attention_layernorm")

    def __call__(
        self,
        inputs: Tensor,
        x: Tensor,
        batch: Batch,
        cache: LayerCache,
        rotation: Tensor | None,
        attention: TritonAttention,
        first: int,
    ) -> Tensor:
        """inputs [rows, inputs · hidden], normed; x [rows, hidden], which is written; first: position of its
        first row, before which others go on from nothing"""
        spec = self._spec
        heads, kv_heads = spec.heads, spec.kv_heads
        qkv = product(self._qkv, Rows(inputs)).view(len(inputs), -1, spec.head_dim)
        queries = rope_and_store(
            qkv[:, :heads],
            qkv[:, heads : heads + kv_heads],
            qkv[:, heads + kv_heads :],
            cache.keys,
            cache.values,
            batch.tables[cache.group],
            batch.row_slots,
            batch.positions,
            rotation=rotation,
        )
        out = torch.zeros(queries.shape, dtype=qkv.dtype, device=qkv.device)  # padding's, too, are numbers
        attention.attend(queries, cache, batch, out, spec, None, first)
        branch = self._ranks.added_up(product(self._out, Rows(out.flatten(1))))
        normed = normed_for(self._mlp.gate_up, branch, self._norm, self._eps, residual=x)
        return x + self._ranks.added_up(fed_forward(self._mlp, normed, None))


class DeviceFollower(ABC):
    """A `Guesser` that keeps keys of its own."""

    def __init__(
        self,
        decoder: DecoderSpec,
        attentions: Sequence[Attention],
        tensors: DeviceTensors,
        beside: Beside,
        num_links: int = 1,
    ) -> None:
        self.told = beside.target.told
        self._eps = decoder.norm_eps
        self._matrices = tensors.matrices
        self._target = beside.target
        self._kv = beside.kv
        self._attentions = attentions
        self._attention = TritonAttention(
            attentions,
            beside.requests,
            few_rows(beside.num_drafts, num_links),
            beside.length + 1,
            tensors.device,
        )
        self._rotations: list[Tensor | None] = []
        """[link]"""
        rope = attentions[0].rope
        for first in range(FIRST_ROW, FIRST_ROW + num_links):
            if rope is None:
                self._rotations.append(None)
                continue
            angles = cos_sin(rope, beside.length + 1)
            angles[first:] = angles[:-first].copy()  # trained where the target's row stands, so far before
            self._rotations.append(tensor(angles).to(tensors.device))
        self._caches: list[LayerCache] = []

    def use(self, pages: DevicePages) -> None:
        self._caches = pages.sharing(self._kv).layers(self._attentions)

    def move(self, to: Move) -> None:
        move_matrices(self._matrices, to)

    @abstractmethod
    def hidden(self, batch: Batch, given: Sequence[Tensor], ahead: int) -> Tensor: ...
    @abstractmethod
    def logits(self, hidden: Tensor, slots: Tensor, ahead: int) -> Tensor: ...

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self._eps, torch.empty_like(x))

    def _layer(
        self, number: int, layer: DeviceDraftLayer, inputs: Tensor, x: Tensor, batch: Batch, link: int = 0
    ) -> Tensor:
        cache, rotation = self._caches[number], self._rotations[link]
        return layer(inputs, x, batch, cache, rotation, self._attention, FIRST_ROW + link)

    def _embedded(self, own: FusedLinear | None, batch: Batch) -> Tensor:
        """By an embedding of its own, else the target's."""
        if own is None:
            return self._target.embedded(batch.token_ids)
        return scheme_of(own.parts[0]).rows(batch.token_ids)


class DeviceEagle(DeviceFollower):
    """x = W · [E[token]; row]; then its layers, whose input but the first one's is normed; then a head."""

    def __init__(self, spec: Eagle, tensors: DeviceTensors, beside: Beside) -> None:
        super().__init__(spec.decoder, spec.attentions, tensors, beside)
        layers = range(len(spec.decoder.layers))
        self._joined = tensors.matrix("fc")
        self._embedding, self._head = tensors.own("embed_tokens"), tensors.own("lm_head")
        self._layers = [DeviceDraftLayer(spec.decoder, tensors, f"layers.{number}") for number in layers]
        self._norms = [tensors.vector(f"layers.{number}.input_layernorm") for number in layers[1:]]

    def hidden(self, batch: Batch, given: Sequence[Tensor], ahead: int) -> Tensor:
        embedded = self._embedded(self._embedding, batch)
        x = product(self._joined, Rows(torch.cat((embedded, *given), 1)))
        for number, layer in enumerate(self._layers):
            inputs = self._normed(x, self._norms[number - 1]) if number else x
            x = self._layer(number, layer, inputs, x, batch)
        return x

    def logits(self, hidden: Tensor, slots: Tensor, ahead: int) -> Tensor:
        if self._head is None:
            return self._target.logits(hidden, slots, None)
        return product(self._head, Rows(hidden))


class DeviceMtpLayer:
    """One of MTP's layers."""

    def __init__(self, decoder: DecoderSpec, tensors: DeviceTensors, name: str) -> None:
        """name: how its tensors begin"""
        self.joined = tensors.matrix(f"{name}.input_proj")
        self.layer = DeviceDraftLayer(decoder, tensors, name)
        self.row_norm = tensors.vector(f"{name}.hidden_layernorm")
        self.token_norm = tensors.vector(f"{name}.token_layernorm")
        self.norm = tensors.vector(f"{name}.input_layernorm")
        self.final_norm = tensors.vector(f"{name}.final_layernorm")


class DeviceMtp(DeviceFollower):
    """x = W · [norm(row); norm(E[token])], a layer, a norm; then the target's head. Layers take turns.

    The first row's embedding is zeros, and so are those before it.
    """

    def __init__(self, spec: Mtp, tensors: DeviceTensors, beside: Beside) -> None:
        super().__init__(spec.decoder, spec.attentions, tensors, beside, spec.num_links)
        self._layers = [DeviceMtpLayer(spec.decoder, tensors, name) for name in spec.names]

    def hidden(self, batch: Batch, given: Sequence[Tensor], ahead: int) -> Tensor:
        link = ahead % len(self._layers)
        own, blank = self._layers[link], (batch.positions <= FIRST_ROW + link)[:, None]
        embedded = self._embedded(None, batch).masked_fill(blank, 0.0)
        both = self._normed(given[0], own.row_norm), self._normed(embedded, own.token_norm)
        x = product(own.joined, Rows(torch.cat(both, 1)))
        x = self._layer(link, own.layer, self._normed(x, own.norm), x, batch, link)
        return self._normed(x, own.final_norm)

    def logits(self, hidden: Tensor, slots: Tensor, ahead: int) -> Tensor:
        return self._target.logits(hidden, slots, None)


class DeviceEagle3(DeviceFollower):
    """row = W · [the target's rows]; x = row + attention([norm(E[token]); norm(row)]), then an MLP."""

    def __init__(self, spec: Eagle3, tensors: DeviceTensors, beside: Beside, tokens: Ints | None) -> None:
        """tokens [draft_vocab]: the token of each row of the head; None: in order"""
        super().__init__(spec.decoder, spec.attentions, tensors, beside)
        self._joined = tensors.matrix("fc")
        self._embedding, self._head = tensors.own("embed_tokens"), tensors.matrix("lm_head")
        self._only = DeviceDraftLayer(spec.decoder, tensors, LAYER)
        self._token_norm = tensors.vector(f"{LAYER}.input_layernorm")
        self._row_norm = tensors.vector(f"{LAYER}.hidden_norm")
        self._norm = tensors.vector("norm")
        self._tokens = None if tokens is None else tensors.indices(tokens)
        self._vocab = spec.vocab
        self._norm_before_residual = spec.norm_before_residual

    def hidden(self, batch: Batch, given: Sequence[Tensor], ahead: int) -> Tensor:
        row = given[0] if ahead else product(self._joined, Rows(torch.cat([*given], 1)))
        normed = self._normed(row, self._row_norm)
        embedded = self._normed(self._embedded(self._embedding, batch), self._token_norm)
        x = normed if self._norm_before_residual else row
        return self._layer(0, self._only, torch.cat((embedded, normed), 1), x, batch)

    def logits(self, hidden: Tensor, slots: Tensor, ahead: int) -> Tensor:
        common = product(self._head, Rows(self._normed(hidden, self._norm)))
        if self._tokens is None:
            return common
        every = common.new_full((len(common), self._vocab), -torch.inf)
        return every.index_copy_(1, self._tokens, common)

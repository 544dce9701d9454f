"""A decoder on the device: the operations of a step, in the order of computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from slipway.load.torch_arrays import tensor
from slipway.model.own_rows import stretched
from slipway.model.rope import cos_sin
from slipway.model.spec import UNNORMED, DecoderSpec, Layer, Rope
from slipway.model.stage import Stage
from slipway.model.weights import LayerWeights, MlpWeights, ModelWeights, Vector
from slipway.schemes.fused import FusedLinear
from slipway.worker.device.attention import AttentionBackend
from slipway.worker.device.batch import Batch
from slipway.worker.device.feed_forward import Experts, fed_forward, with_stacked_experts
from slipway.worker.device.low_rank import LowRank, RowAdapters, SlotAdapters
from slipway.worker.device.offload import StreamedLayers, move
from slipway.worker.device.pages import DevicePages, LayerCache
from slipway.worker.device.products import Move, Rows, move_matrices, normed_for, product, scheme_of
from slipway.worker.device.ranks import Ranks
from slipway_kernels.embedding import softcap
from slipway_kernels.rms_norm import rms_norm
from slipway_kernels.rope import rope_and_store


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer, ready to run. `norms` by role, in fp32, sinks among them."""

    spec: Layer
    weights: LayerWeights
    norms: dict[str, Tensor]
    rotation: Tensor | None  # [max_len, rotary_dim / 2, 2] fp32; where factors are served, several
    mlp: MlpWeights | Experts

    def move(self, to: Move) -> None:
        """Put every matrix elsewhere; norms stay."""
        move(self.weights, self.mlp, to)


class Decoder:
    """Computes hidden states and logits of a batch, over the pages that it was last told to use."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: ModelWeights,
        attention: AttentionBackend,
        max_len: int,
        device: torch.device,
        on_host: Sequence[int],
        low_rank: LowRank | None,
        taps: Sequence[int],
        ranks: Ranks,
        tokens_from: Sequence[int],
        *,
        dtype: torch.dtype,
        stage: Stage,
    ) -> None:
        """spec: this rank's part of all layers, and the whole vocabulary. on_host: layers whose weights stay
        in host memory, ascending. low_rank: what adapters add. taps: as of `ModelPlan`. tokens_from: as of
        `Sharded`. dtype: of rows. stage: which layers are here."""
        self.spec = spec
        self._stage = stage
        self.ranks = ranks
        self._tokens_from = tokens_from
        self._taps = taps
        self.told = [torch.empty(0, spec.hidden) for _ in taps or range(not stage.is_last)]
        self.taken = [torch.empty(0, spec.hidden) for _ in range(not stage.is_first)]
        self.low_rank = low_rank
        self._weights = weights
        self._attention = attention
        self.graphs = attention.graphs
        self._device, self._dtype = device, dtype
        own = [spec.layers[number] for number in stage.layers]
        ropes = {layer.attention.rope for layer in own}
        factors = () if low_rank is None else low_rank.factors
        rotations: dict[Rope | None, Tensor] = {
            rope: _angles(rope, factors, max_len).to(device) for rope in ropes if rope
        }
        layers = [
            _Layer(
                layer,
                parts,
                {role: self._vector(norm) for role, norm in parts.norms.items()},
                rotations.get(layer.attention.rope),
                with_stacked_experts(parts.mlp, device),
            )
            for layer, parts in zip(own, weights.layers, strict=True)
        ]
        here = [number - stage.layers.start for number in on_host]
        self._layers = StreamedLayers(layers, here, device)
        self._caches: list[LayerCache] = []
        self._norm_weight = self._vector(weights.norm)

    def use(self, pages: DevicePages) -> None:
        self._caches = pages.layers([layer.spec.attention for layer in self._layers])

    def move(self, to: Move) -> None:
        """Put every matrix elsewhere; norms and angles stay."""
        for layer in self._layers:
            layer.move(to)
        move_matrices((self._weights.embedding, self._weights.head), to)

    def hidden(self, batch: Batch) -> Tensor:
        """The residual stream after the last layer, normed: [rows, hidden]. On a stage before another as it
        is there, which is what that one takes."""
        adapters = self._adapters_of(batch.row_slots, batch.adapters)
        first, rows = self._stage.is_first, len(batch.row_slots)
        residual = self._entered(batch, adapters) if first else self._taken(rows)
        branch: Tensor | None = None
        layers = zip(self._stage.layers, self._layers.in_turn(), self._caches, strict=True)
        for number, layer, cache in layers:
            norm, qkv = layer.norms["attention_norm"], layer.weights.qkv
            normed = self._join(residual, branch, norm, qkv, adapters)
            self._tell(number, residual)
            branch = self.ranks.added_up(self._attended(layer, cache, normed, batch, adapters))
            branch = self._post(layer, "attention_post_norm", branch)
            mlp, norm = layer.mlp, layer.norms["mlp_norm"]
            if isinstance(mlp, Experts):
                branch = mlp.apply(self._join(residual, branch, norm, None), batch.row_slots, adapters)
            else:
                branch = fed_forward(mlp, self._join(residual, branch, norm, mlp.gate_up, adapters), adapters)
            branch = self._post(layer, "mlp_post_norm", self.ranks.added_up(branch))
        if not self._stage.is_last:
            assert branch is not None, "a stage has layers"
            self._leave(0, residual.add_(branch))
            return residual
        hidden = self._join(residual, branch, self._norm_weight, None).plain
        self._tell(UNNORMED, residual)
        self._tell(len(self.spec.layers), hidden)
        return hidden

    def _entered(self, batch: Batch, adapters: RowAdapters | None) -> Tensor:
        """What the first layer begins with, of tokens and of rows that are given in their place."""
        spec = self.spec
        ids = batch.token_ids if batch.given is None else batch.token_ids.clamp(min=0)  # NO_TOKEN among them
        has_own = batch.adapters is not None and batch.adapters.own
        if has_own:
            ids = ids.clamp(max=spec.vocab - 1)
        residual = self.embedded(ids)
        if spec.embedding_scale != 1.0:  # the models multiply in their own type
            residual = residual * torch.tensor(spec.embedding_scale, dtype=residual.dtype)
        if adapters is not None:
            adapters.add_embedding(ids, residual)
            if has_own:
                adapters.enter_own(batch.token_ids, residual)
        if batch.given is not None:
            batch.given.enter(residual, batch)
        return residual

    def _taken(self, rows: int) -> Tensor:
        """What the stage before has given. The largest step comes before anything that remembers where."""
        if len(self.taken[0]) < rows:
            self.taken[0] = torch.zeros(rows, self.spec.hidden, dtype=self._dtype, device=self._device)
        return self.taken[0][:rows]

    def logits(self, hidden: Tensor, slots: Tensor, adapters: SlotAdapters | None) -> Tensor:
        """hidden [rows, hidden] → [rows, vocab] in the type of activations."""
        of_rows, cap = self._adapters_of(slots, adapters), self.spec.logit_softcap
        head = self._weights.head
        logits = self.ranks.joined(product(head, Rows(hidden)), self._tokens_from)
        if of_rows is not None:
            of_rows.add(head, hidden, logits)
        if cap:
            softcap(logits, cap)
        return logits if of_rows is None or not of_rows.step.own else of_rows.with_own(hidden, logits, cap)

    def embedded(self, token_ids: Tensor) -> Tensor:
        table = scheme_of(self._weights.embedding.parts[0])
        return self.ranks.looked_up(table, token_ids, self._tokens_from)

    def _tell(self, number: int, rows: Tensor) -> None:
        """Leave the rows before a layer where what guesses reads them, if it does."""
        if number in self._taps:
            self._leave(self._taps.index(number), rows)

    def _leave(self, place: int, rows: Tensor) -> None:
        if len(self.told[place]) < len(rows):  # of the largest step: no graph is captured before it
            self.told[place] = torch.empty_like(rows)
        self.told[place][: len(rows)].copy_(rows)

    def _adapters_of(self, slots: Tensor, adapters: SlotAdapters | None) -> RowAdapters | None:
        """Those of rows of these slots [rows]; None where the step has none."""
        return None if self.low_rank is None or adapters is None else self.low_rank.rows(slots, adapters)

    def _join(
        self,
        residual: Tensor,
        branch: Tensor | None,
        weight: Tensor,
        reader: FusedLinear | None,
        adapters: RowAdapters | None = None,
    ) -> Rows:
        """Add the branch, where there is one, to the residual stream; the norm of that, for its reader."""
        spec = self.spec
        x, onto = (residual, None) if branch is None else (branch, residual)
        return normed_for(
            reader, x, weight, spec.norm_eps, residual=onto, add_one=spec.norm_add_one, adapters=adapters
        )

    def _post(self, layer: _Layer, role: str, branch: Tensor) -> Tensor:
        """A sandwich's second norm."""
        if role not in layer.norms:
            return branch
        spec = self.spec
        return rms_norm(branch, layer.norms[role], spec.norm_eps, branch, add_one=spec.norm_add_one)

    def _attended(
        self, layer: _Layer, cache: LayerCache, x: Rows, batch: Batch, adapters: RowAdapters | None
    ) -> Tensor:
        """out(attend(rope(qkv(x))))"""
        attention = layer.spec.attention
        heads, kv_heads = attention.heads, attention.kv_heads
        qkv = product(layer.weights.qkv, x, adapters)
        qkv = qkv.view(qkv.shape[0], -1, attention.head_dim)  # [rows, all heads, head_dim]
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
        rope = partial(
            rope_and_store,
            row_slots=batch.row_slots,
            positions=batch.positions,
            rotation=layer.rotation,
            rotation_of=batch.adapters.rotations if batch.adapters and layer.rotation is not None else None,
            query_norm=layer.norms.get("q_norm"),
            key_norm=layer.norms.get("k_norm"),
            eps=self.spec.norm_eps,
            add_one=self.spec.norm_add_one,
        )
        if batch.kv_divisors is not None:
            rotated = k.clone()
            rope(rotated[:, :0], rotated, v, None, None, None)
            cache.find_scales(rotated, v, batch)
        queries = rope(
            q,
            k,
            v,
            cache.keys,
            cache.values,
            batch.tables[cache.group],
            key_scale=cache.key_scale,
            value_scale=cache.value_scale,
        )
        out = torch.empty(queries.shape, dtype=qkv.dtype, device=qkv.device)
        self._attention.attend(queries, cache, batch, out, attention, layer.norms.get("sinks"))
        return product(layer.weights.out, Rows(out.flatten(1)), adapters)

    def _vector(self, vector: Vector) -> Tensor:
        """Norm weights stay in fp32: they are small, and rounding them would cost accuracy."""
        return tensor(vector.values).to(self._device)


def _angles(rope: Rope, factors: Sequence[float], max_len: int) -> Tensor:
    """[max_len, rotary_dim / 2, 2], or the rope's and those of it stretched by each factor, side by side."""
    own = tensor(cos_sin(rope, max_len))
    others = [tensor(cos_sin(stretched(rope, factor), max_len)) for factor in factors]
    return torch.stack((own, *others)) if others else own

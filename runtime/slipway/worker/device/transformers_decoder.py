"""A model of transformers on a device: its code computes everything but attention and draws.

It is launched as it runs, and never captured as a graph: it may look at what it has computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from slipway.model.spec import Attention
from slipway.worker.device.attention import AttentionBackend
from slipway.worker.device.batch import Batch
from slipway.worker.device.low_rank import SlotAdapters
from slipway.worker.device.pages import DevicePages
from slipway.worker.device.products import DeviceScheme, Move
from slipway.worker.device.ranks import Alone, Ranks
from slipway.worker.fallback import Fallback
from slipway.worker.transformers_model import Attentions, by_row, scale_and_softcap
from slipway_kernels.rope import rope_and_store


class FallbackDecoder:
    """Computes hidden states and logits of a batch as `Decoder` does, by a module of transformers.

    The batch is one sequence, [1, rows], whatever requests the rows belong to. Hidden states are what the
    model's body makes; what lies behind it, mostly the head alone, turns them into logits.
    """

    graphs = False
    low_rank = None
    told: Sequence[Tensor] = ()
    taken: Sequence[Tensor] = ()

    def __init__(
        self,
        route: Fallback,
        model: transformers.PreTrainedModel,
        attention: AttentionBackend,
        dtype: torch.dtype,
        schemes: Sequence[DeviceScheme] = (),
    ) -> None:
        """schemes  those of the modules that are quantized"""
        # Weights without gradients: autograd notes nothing, in whatever mode a step runs.
        model.requires_grad_(False)
        self._model: Any = model.eval()  # type: ignore[no-untyped-call]
        body: Any = model.get_submodule(route.found.body)
        self._compute = body.forward
        body.forward = self._computed
        self._known: Any = None
        self._schemes = schemes
        self.ranks: Ranks = Alone()
        self._layers = route.attentions
        self.attention = attention
        self.dtype = dtype
        layers = [PagedLayer(self, *one) for one in enumerate(self._layers)]
        self._attentions = Attentions(model, zip(route.found.layers, layers, strict=True))

    def use(self, pages: DevicePages) -> None:
        self.caches = pages.layers(self._layers)

    def move(self, to: Move) -> None:
        for tensor in chain(self._model.parameters(), self._model.buffers()):
            tensor.data = to(tensor.data)
        for scheme in self._schemes:
            scheme.move(to)

    def hidden(self, batch: Batch) -> Tensor:
        """What the model's body makes of the rows: [rows, hidden]."""
        self.batch = batch
        with self._attentions.step():
            self._known = self._compute(
                input_ids=batch.token_ids.long()[None],
                position_ids=batch.positions.long()[None],
                use_cache=False,
            )
        hidden: Tensor = self._known.last_hidden_state[0]
        return hidden

    def logits(self, hidden: Tensor, slots: Tensor, adapters: SlotAdapters | None) -> Tensor:
        """hidden [rows, hidden] → [rows, vocab], as the model itself makes them: scaled, bound, whatever."""
        self._known = type(self._known)(last_hidden_state=hidden[None])
        nobody = torch.zeros((1, len(hidden)), dtype=torch.long, device=hidden.device)
        logits: Tensor = self._model(input_ids=nobody, use_cache=False).logits[0]
        return logits

    def embedded(self, token_ids: Tensor) -> Tensor:
        rows: Tensor = self._model.get_input_embeddings()(token_ids.long())
        return rows

    def _computed(self, *given: object, **named: object) -> object:
        """Stands where the model calls its body: what that has made before."""
        return self._known


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """One layer's attention over the pages, of the batch that its decoder computes."""

    decoder: FallbackDecoder
    number: int
    spec: Attention

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        settings: Mapping[str, Any],
    ) -> Tensor:
        """query, key, value [1, heads, rows, head_dim] → [1, rows, heads, value_dim]"""
        decoder, batch, cache = self.decoder, self.decoder.batch, self.decoder.caches[self.number]
        scale, softcap = scale_and_softcap(query, settings)
        queries, keys, values = (by_row(x.to(decoder.dtype), self.spec.head_dim) for x in (query, key, value))
        cache.find_scales(keys, values, batch)
        rope_and_store(
            keys[:, :0],  # queries come rotated
            keys,
            values,
            cache.keys,
            cache.values,
            batch.tables[cache.group],
            batch.row_slots,
            batch.positions,
            key_scale=cache.key_scale,
            value_scale=cache.value_scale,
        )
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        spec = replace(self.spec, scale=scale, softcap=softcap)
        decoder.attention.attend(queries, cache, batch, out, spec, None)
        return out[None, ..., : value.shape[-1]].to(query.dtype)

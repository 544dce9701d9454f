"""How a model runs, as it is known before its weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from slipway.engine.config import EngineConfig
from slipway.load.adapter import AdapterLimits
from slipway.load.arrays import ELEMENTS, DType
from slipway.load.checkpoint import Checkpoint, open_checkpoint
from slipway.load.progress import Progress
from slipway.load.prompt_adapter import PromptAdapterLimits
from slipway.load.quantized.kv_scales import KVDivisors, KVScales
from slipway.model.kv import KVLayout
from slipway.worker.pool import Pooler
from slipway.worker.proposer import DraftPlan
from slipway.worker.route import NewModel, Route
from slipway_kernels.cpu import PageMemory, Ranks, Slots, Threads
from slipway_kernels.cpu.step import Stepper

AnyStepper = TypeVar("AnyStepper", bound=Stepper)


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What is known of a model before its weights: how it runs, and what it needs."""

    checkpoint: Checkpoint
    route: Route
    kv: KVLayout
    max_model_len: int
    element: DType
    """Of weights and activations."""
    kv_dtype: DType
    """Of the KV cache."""
    kv_scales: KVScales = field(default_factory=dict)
    """What keys and values of each layer of the stage are divided by where the cache is fp8, at first; empty
    where it is not."""
    kv_divisors: KVDivisors | None = None
    """How the first step finds the scales that keys and values have from then on; None: it does not."""
    adapters: AdapterLimits | None = None
    """Of those that requests may ask for; None: there are none."""
    prompt_adapters: PromptAdapterLimits | None = None
    """Of those that stand before prompts; None: there are none."""
    pooler: Pooler | None = None
    """What makes answers of final rows; None: the model generates."""
    warnings: list[str] = field(default_factory=list)
    """What the model made us decide otherwise than asked, in sentences."""
    draft: DraftPlan | None = None
    """The model that guesses for it; their layers share the pages."""
    taps: Sequence[int] = ()
    """Layers before which its rows are told to that one; behind the last one they are normed, but as
    `spec.UNNORMED`."""
    own_len: int = 0
    """The longest request whose adapter does not stretch the context."""
    vocab: int = 0
    """Tokens that it may draw, from 0 on, where these are not all that it has."""

    @property
    def stored_bytes(self) -> int:
        """Of all weights, as they are stored."""
        return self.checkpoint.total_bytes + (self.draft.stored_bytes if self.draft and self.draws else 0)

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn here, and guessed: not on a stage before another."""
        return self.route.stage is None or self.route.stage.is_last

    def close(self) -> None:
        """Let go of the files."""
        self.checkpoint.close()
        if self.draft:
            self.draft.checkpoint.close()

    @property
    def hidden_size(self) -> int:
        """Numbers in a token's embedding, where native code says it; else 0."""
        return 0 if self.route.spec is None else self.route.spec.hidden

    def length_in(self, pages: int) -> int:
        """The longest request that so many pages hold."""
        length = self.max_model_len
        return length if pages >= self.kv.pages_for(length) else self.kv.tokens_in(pages)

    def read(self, threads: Threads, progress: Progress, ranks: Ranks | None = None) -> NewModel:
        """Read the weights, for a CPU. Raises LoadError where checkpoint and configuration disagree."""
        progress("load", 0, self.checkpoint.total_bytes)
        return self.route.on_cpu(self, threads, ranks)

    def opened_again(self, config: EngineConfig, progress: Progress) -> ModelPlan:
        """The same plan over the models' files as they are now. Raises LoadError where they have gone."""
        draft = self.draft.opened_again(progress) if self.draft else None
        return replace(self, checkpoint=opened_again(self.checkpoint, config, progress), draft=draft)

    def stepper(
        self,
        kind: type[AnyStepper],
        threads: Threads,
        slots: Slots,
        pages: PageMemory,
        max_tokens: int,
        max_top: int,
    ) -> AnyStepper:
        """What computes a step on a CPU, over these slots and pages."""
        stepper = kind(
            slots,
            max_tokens,
            ELEMENTS[self.element],
            threads,
            self.vocab or self.route.vocab,
            max_top,
            pages,
            self.kv.block_sizes,
            ELEMENTS[self.kv_dtype],
        )
        for layer, (keys, values) in self.kv_scales.items():
            stepper.scale_kv(self.kv.layer_place[layer], keys, values)
        return stepper


def opened_again(checkpoint: Checkpoint, config: EngineConfig, progress: Progress) -> Checkpoint:
    """The files that `config` names as they are now.

    Of a repository on the hub the snapshot that was read, whatever has been published since.
    """
    folder = checkpoint.folder
    where = config if folder is None else msgspec.structs.replace(config, model=str(folder))
    return open_checkpoint(where, progress)

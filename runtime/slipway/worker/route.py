"""The two ways to run a model, seen from outside: what each says beforehand, and what it becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from slipway.engine.plan import Masks
from slipway.load.adapter import Adapter
from slipway.load.arrays import ELEMENTS, DType, Ints
from slipway.load.checkpoint import Checkpoint
from slipway.load.config import Config
from slipway.load.quantized.form import Form
from slipway.load.quantized.kv_scales import KVScales
from slipway.load.quantized.on_the_fly import OnTheFly
from slipway.model.kv import KVLayout, KVShape
from slipway.model.spec import DecoderSpec
from slipway_kernels.cpu import PageMemory, Slots, StepResult, Threads
from slipway_kernels.cpu.step import Stepper

if TYPE_CHECKING:
    from slipway.worker.device.place import DevicePlace
    from slipway.worker.device.worker import AnyDecoder

AnyStepper = TypeVar("AnyStepper", bound=Stepper)


class Model(Protocol):
    """What the worker on a CPU runs."""

    def step(
        self, slots: Ints, num_new: Ints, num_drafts: Ints | None = None, masks: Masks | None = None
    ) -> StepResult:
        """Compute num_new tokens of each slot, draw where a slot has caught up, append and advance.

        num_drafts  of these, the most that verify drafts
        """

    def find_kv_scales(self, key_divisor: float, value_divisor: float) -> None:
        """Have the next step find the scales of keys and values: `slipway_kernels.cpu.step` has the rule."""


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """What a model on CPU computes in: the worker's slots, pages and threads, and how long a step may be."""

    slots: Slots
    pages: PageMemory
    kv: KVLayout
    dtype: DType
    max_tokens: int
    max_top: int
    threads: Threads
    kv_dtype: DType
    kv_scales: KVScales

    def stepper(self, kind: type[AnyStepper], vocab: int) -> AnyStepper:
        """A program over these slots and pages."""
        program = kind(
            self.slots,
            self.max_tokens,
            ELEMENTS[self.dtype],
            self.threads,
            vocab,
            self.max_top,
            self.pages,
            self.kv.block_sizes,
            ELEMENTS[self.kv_dtype],
        )
        for layer, (keys, values) in self.kv_scales.items():
            program.scale_kv(self.kv.layer_place[layer], keys, values)
        return program


class Route(Protocol):
    """A model before its weights: native code or the fallback."""

    @property
    def config(self) -> Config:
        """The configuration, with what the family takes where it is silent."""

    @property
    def spec(self) -> DecoderSpec | None:
        """None where transformers' code runs the model."""

    @property
    def architecture(self) -> str: ...
    @property
    def vocab(self) -> int: ...
    @property
    def windows(self) -> tuple[int, ...]:
        """[layer]  tokens a query sees, 0 for all"""

    @property
    def kv_shapes(self) -> tuple[KVShape, ...]:
        """[layer]"""

    def without_windows(self) -> Route:
        """The same model, every layer seeing all tokens."""

    def converting(self, conversion: OnTheFly) -> Route:
        """The same model, its plain matrices quantized as they are read."""

    def forms(self, checkpoint: Checkpoint) -> Sequence[Form]:
        """How the quantized matrices are stored, or converted. Raises LoadError where their tensors do not
        fit each other."""

    def layer_bytes(self, checkpoint: Checkpoint, dtype: DType) -> Sequence[int]:
        """What each layer's matrices take on a device; nothing where they cannot lie elsewhere."""

    def on_cpu(
        self, checkpoint: Checkpoint, dtype: DType, threads: Threads, adapters: Sequence[Adapter]
    ) -> Callable[[CpuPlace], Model]:
        """Read the weights; what comes back makes the model in a place.

        Raises LoadError where they are not exactly what the model has.
        """

    def on_device(self, checkpoint: Checkpoint, place: DevicePlace) -> AnyDecoder:
        """The same on an accelerator. Raises LoadError also where the model cannot run there."""

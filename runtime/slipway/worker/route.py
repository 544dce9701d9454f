"""The two ways to run a model, seen from outside: what each says beforehand, and what it becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from slipway.engine.plan import Masks
from slipway.load.arrays import DType, Ints
from slipway.load.checkpoint import Checkpoint
from slipway.load.config import Config
from slipway.load.quantized.form import Form
from slipway.model.spec import Attention, DecoderSpec
from slipway_kernels.cpu import PageMemory, Slots, StepResult, Threads

if TYPE_CHECKING:
    from slipway.worker.device.attention import NewBackend
    from slipway.worker.device.schemes import DeviceSchemes
    from slipway.worker.device.worker import AnyDecoder
    from slipway.worker.plan import ModelPlan

MAX_HEAD_DIM = 256
HEAD_DIM_UNIT = 8
"""Head sizes that the attention kernels can compute: multiples of 8 up to 256."""


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


NewModel = Callable[[Slots, PageMemory, int, int], Model]
"""Makes the model that computes over slots and pages.

It is also told the most tokens of a step, and the most alternatives that log-probabilities report.
"""


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
    def attentions(self) -> Sequence[Attention]:
        """[layer]"""

    def without_windows(self) -> Route:
        """The same model, every layer seeing all tokens."""

    def forms(self, checkpoint: Checkpoint) -> Sequence[Form]:
        """How the quantized matrices are stored, or converted. Raises LoadError where their tensors do not
        fit each other."""

    def layer_bytes(self, checkpoint: Checkpoint, dtype: DType) -> Sequence[int]:
        """What each layer's matrices take on a device; nothing where they cannot lie elsewhere."""

    def on_cpu(self, plan: ModelPlan, threads: Threads) -> NewModel:
        """Read the weights. Raises LoadError where they are not exactly what the model has."""

    def on_device(self, plan: ModelPlan, schemes: DeviceSchemes, attention: NewBackend) -> AnyDecoder:
        """The same on an accelerator. Raises LoadError also where the model cannot run there."""

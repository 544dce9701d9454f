"""The two ways to run a model, seen from outside: what each says beforehand, and what it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from slipway.engine.plan import Masks
from slipway.load.arrays import DType, Floats, Ints
from slipway.load.checkpoint import Checkpoint
from slipway.load.config import Config
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.model.shard import Shard
from slipway.model.spec import Attention, DecoderSpec
from slipway.model.stage import Stage
from slipway.worker.adapters import AdapterPlaces
from slipway_kernels.cpu import Edits, PageMemory, Ranks, Slots, StepResult, Threads, Weight

if TYPE_CHECKING:
    from slipway.worker.device.any_decoder import AnyDecoder
    from slipway.worker.device.attention import NewBackend
    from slipway.worker.device.schemes import DeviceSchemes
    from slipway.worker.plan import ModelPlan

MAX_HEAD_DIM = 256
HEAD_DIM_UNIT = 8
"""Head sizes that the attention kernels can compute: multiples of 8 up to 256."""


def one_rank(architecture: str, kind: str, shard: Shard) -> None:
    """Raises LoadError where what runs a model knows no ranks."""
    if shard.size > 1:
        raise LoadError(
            "UnsupportedModel",
            f"--tensor-parallel-size {shard.size}: {architecture} is {kind}, whose layers are not shared.",
            hint="Leave the argument out; --data-parallel-size serves more requests at a time.",
            argument="tensor_parallel_size",
        )


def check_heads(architecture: str, layers: Iterable[Attention], hint: str, argument: str) -> None:
    """Raises LoadError with UnsupportedModel where heads have a size that the kernels do not compute."""
    for layer in layers:
        size = layer.head_dim
        if size % HEAD_DIM_UNIT or size > MAX_HEAD_DIM:
            raise LoadError(
                "UnsupportedModel",
                f"{architecture} has heads of {size} numbers, and the attention kernel wants a multiple of "
                f"{HEAD_DIM_UNIT} up to {MAX_HEAD_DIM}.",
                hint=hint,
                argument=argument,
            )


def one_stage(architecture: str, kind: str, count: int) -> LoadError:
    """What runs a model knows no stages."""
    return LoadError(
        "UnsupportedModel",
        f"--pipeline-parallel-size {count}: {architecture} is {kind}, whose layers are not dealt to stages.",
        hint="Leave the argument out; --data-parallel-size serves more requests at a time.",
        argument="pipeline_parallel_size",
    )


class Model(Protocol):
    """What the worker on a CPU runs."""

    def step(
        self,
        slots: Ints,
        num_new: Ints,
        num_drafts: Ints | None = None,
        masks: Masks | None = None,
        edits: Edits | None = None,
    ) -> StepResult:
        """Compute num_new tokens of each slot, draw where a slot has caught up, append and advance.

        num_drafts  of these, the most that verify drafts
        """

    def kv_scale(self, place: tuple[int, int]) -> tuple[float, float]:
        """What keys and values of a layer are divided by, which has that KV group and that index there."""

    @property
    def taken(self) -> Sequence[Floats]:
        """[most tokens, hidden]: of a stage behind another, the rows that a step begins with."""

    @property
    def told(self) -> Sequence[Floats]:
        """[most tokens, hidden] each: rows of the last step, as `ModelPlan.taps` asks for what guesses; of a
        stage before another, those that it ends with."""

    @property
    def embedding(self) -> Weight | None:
        """The table that tokens are read from: for what guesses and has none; None of transformers' code."""

    @property
    def output(self) -> Weight | None:
        """The matrix that makes logits of rows: the same."""

    @property
    def tokens_from(self) -> Sequence[int] | None:
        """[ranks + 1]  of which tokens each rank has the rows of both; None: of all."""

    def find_kv_scales(self, key_divisor: float, value_divisor: float) -> None:
        """Have the next step find the scales of keys and values: `slipway_kernels.cpu.step` has the rule."""


NewModel = Callable[[Slots, PageMemory, int, int], tuple[Model, AdapterPlaces | None]]
"""Makes the model that computes over slots and pages, and what knows its places for adapters, if it has some.

It is also told the most tokens of a step, and the most alternatives that log-probabilities report.
"""


class Route(Protocol):
    """A model before its weights: native code or the fallback."""

    @property
    def config(self) -> Config:
        """The configuration, with what the family takes where it is silent."""

    @property
    def spec(self) -> DecoderSpec | None:
        """None where transformers' code runs the model, and of an encoder."""

    @property
    def native(self) -> bool:
        """Whether our own code runs the model."""

    @property
    def architecture(self) -> str: ...
    @property
    def vocab(self) -> int: ...
    @property
    def attentions(self) -> Sequence[Attention]:
        """[layer]"""

    @property
    def chunk(self) -> int:
        """The least stretch of tokens that a layer attends in; 0: none does."""

    def without_windows(self) -> Route:
        """The same model, every layer seeing all tokens."""

    def on_rank(self, checkpoint: Checkpoint, shard: Shard, dtype: DType) -> Route:
        """The part of a rank, whose weights are of this type. Raises LoadError where there is none."""

    @property
    def stage(self) -> Stage | None:
        """Whose layers are computed; None: all are."""

    def on_stage(self, number: int, count: int, partition: Sequence[int], *, embeds: bool) -> Route:
        """A stage's part of it; `attentions` stay those of all layers.

        partition  layers of each stage; empty: as even as can be
        embeds     the last stage has the embedding as well
        Raises LoadError where it has no such stages.
        """

    def forms(self, checkpoint: Checkpoint) -> Sequence[Form]:
        """How the quantized matrices are stored, or converted. Raises LoadError where their tensors do not
        fit each other."""

    def layer_bytes(self, checkpoint: Checkpoint, dtype: DType) -> Sequence[int]:
        """What each layer's matrices take on a device; nothing where they cannot lie elsewhere."""

    def on_cpu(self, plan: ModelPlan, threads: Threads, ranks: Ranks | None = None) -> NewModel:
        """Read the weights. Raises LoadError where they are not exactly what the model has.

        ranks  with whom they are shared, as `on_rank` parts them
        """

    def on_device(self, plan: ModelPlan, schemes: DeviceSchemes, attention: NewBackend) -> AnyDecoder:
        """The same on an accelerator. Raises LoadError also where the model cannot run there."""

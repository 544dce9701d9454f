"""Which layers of a model a rank has, where its layers are dealt to stages that compute one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipway.load.errors import LoadError
from slipway.model.roles import Entry


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's layers. What tokens become lies on the first, what draws them on the last."""

    layers: range
    is_first: bool = True
    is_last: bool = True
    embeds: bool = True
    """It has the embedding: the first, and the last where that is the head, too, or what guesses reads it."""

    @classmethod
    def of(
        cls,
        number: int,
        count: int,
        num_layers: int,
        partition: Sequence[int] = (),
        *,
        tied: bool = False,
    ) -> Stage:
        """The stage of this number, from 0 on.

        partition  layers of each stage; empty: `even`
        tied       the embedding is the head, or is wanted on the last stage
        Raises LoadError where a stage would have no layer, or the partition is not of this model.
        """
        sizes = list(partition) or even(num_layers, count)
        if partition:
            _check(partition, count, num_layers)
        elif min(sizes) < 1:
            raise LoadError(
                "UnsupportedModel",
                f"--pipeline-parallel-size {count}: the model has {num_layers} layers, and each stage "
                "computes at least one.",
                hint=f"The largest that fits is {num_layers}.",
                argument="pipeline_parallel_size",
            )
        first, is_first, is_last = sum(sizes[:number]), number == 0, number == count - 1
        return cls(range(first, first + sizes[number]), is_first, is_last, is_first or (is_last and tied))

    @classmethod
    def whole(cls, num_layers: int) -> Stage:
        return cls(range(num_layers))

    @property
    def is_whole(self) -> bool:
        return self.is_first and self.is_last

    def has(self, entry: Entry) -> bool:
        """Whether a tensor of the model lies on this stage."""
        if entry.layer >= 0:
            return entry.layer in self.layers
        return self.embeds if entry.role == "embedding" else self.is_last


def even(num_layers: int, count: int) -> list[int]:
    """Layers of each stage. What is left over goes to the stages before the last, from behind, as vLLM deals
    it: the last one has the head as well, and the first one the embedding."""
    each, left = divmod(num_layers, count)
    return [each + (count - 1 - left <= number < count - 1) for number in range(count)]


def _check(partition: Sequence[int], count: int, num_layers: int) -> None:
    told = ",".join(map(str, partition))
    fits = ",".join(map(str, even(num_layers, count)))
    faults = {
        f"names {len(partition)} stages, and --pipeline-parallel-size is {count}": len(partition) != count,
        "has a stage without layers": min(partition) < 1,
        f"deals {sum(partition)} layers, and the model has {num_layers}": sum(partition) != num_layers,
    }
    fault = next((fault for fault, there in faults.items() if there), None)
    if fault is not None:
        raise LoadError(
            "UnsupportedModel",
            f"VLLM_PP_LAYER_PARTITION={told} {fault}.",
            hint=f"As even as can be is {fits}; without the variable that is taken."
            if num_layers >= count
            else f"The largest --pipeline-parallel-size that fits is {num_layers}.",
            argument="pipeline_parallel_size",
        )

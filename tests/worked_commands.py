"""Command lines that people use, of vLLM's guides; the parallel ones also as a small machine runs them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from slipway.args import resolve
from slipway.args.resolved import Resolved

SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
MOST_RANKS = 4
ASKS_FOR_RANKS = (*SIZES, "distributed_executor_backend", "enable_expert_parallel", "enable_eplb")


@dataclass(frozen=True, slots=True)
class Command:
    """What stands after `slipway serve`, and the variables that its guide sets."""

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)

    def resolved(self, *more: str) -> Resolved:
        return resolve([*self.argv, *more], self.env)

    @property
    def is_parallel(self) -> bool:
        return not self.resolved().given.isdisjoint(ASKS_FOR_RANKS)

    @property
    def refused(self) -> dict[str, str]:
        """Flags that a real start refuses, with what they ask for, as far as can be told without a model."""
        return {argument.flag: sentence for argument, sentence in self.resolved().unbuilt()}

    def cut(self, model: Path | str) -> list[str]:
        """The command on another model, smaller: of at most four ranks, and as long a context as it has.

        The number of stages stays, since fewer would be another feature.
        """
        resolved = self.resolved()
        stages, copies = resolved["pipeline_parallel_size"], resolved["data_parallel_size"]
        devices = min(resolved["tensor_parallel_size"], MOST_RANKS // (stages * copies))
        replaced = {"--tensor-parallel-size": str(devices), "--max-model-len": "auto", "--model": str(model)}
        words = [*self.argv]
        if not words[0].startswith("-"):
            words[0] = str(model)
        for index, word in enumerate(words):
            if word in replaced:
                words[index + 1] = replaced[word]
        return words


COMMANDS = [
    Command(**row) for row in json.loads((Path(__file__).parent / "args" / "commands.json").read_text())
]
PARALLEL = [command for command in COMMANDS if command.is_parallel]

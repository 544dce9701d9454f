"""How ranks stand: copies of an engine, stages of a copy, and ranks that share the matrices of a stage."""

from __future__ import annotations

from dataclasses import dataclass

from slipway.engine.config import EngineConfig
from slipway.model.shard import Shard


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks are counted through copies, then stages, then ranks of a stage, as the field does."""

    dp: int = 1
    """Copies: engines of their own that share the requests."""
    pp: int = 1
    """Stages, each with some of the layers."""
    tp: int = 1
    """Ranks of a stage, each with a part of every matrix."""

    @classmethod
    def of(cls, config: EngineConfig) -> Mesh:
        """The ranks of one engine."""
        return cls(1, config.pipeline_parallel_size, config.tensor_parallel_size)

    @property
    def size(self) -> int:
        return self.dp * self.pp * self.tp

    def shard(self, rank: int) -> Shard:
        """Its place among the ranks of its stage."""
        return Shard(rank % self.tp, self.tp)

    @property
    def drawing(self) -> int:
        """The rank that draws tokens: the first one of the last stage."""
        return (self.pp - 1) * self.tp

    def stage(self, rank: int) -> int:
        return rank // self.tp % self.pp

    def stage_ranks(self, rank: int) -> range:
        """The ranks that share the matrices of its stage, itself among them."""
        first = rank - rank % self.tp
        return range(first, first + self.tp)

    def name(self, rank: int) -> str:
        """As messages call it: a rank of one engine, or one of several engines."""
        if self.dp > 1:
            return f"engine {rank // (self.pp * self.tp)} of {self.dp}"
        where = [f"stage {self.stage(rank)}"] * (self.pp > 1) + [f"tensor rank {rank % self.tp}"] * (
            self.tp > 1
        )
        return f"rank {rank}" + (f" ({', '.join(where)})" if self.pp > 1 < self.tp else "")

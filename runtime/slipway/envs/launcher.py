"""What an outside launcher, such as torchrun, tells the processes that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipway.envs.environment import BY_NAME, VARIABLES
from slipway.envs.variable import InvalidEnvironment

BACKEND = "--distributed-executor-backend external_launcher"


@dataclass(frozen=True, slots=True)
class Launched:
    """This process among all that were started together; an attribute is a variable's name in lower case."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Launched:
        """Raises InvalidEnvironment where a variable is missing, malformed or contradicts another."""
        names = [variable.name for variable in VARIABLES if variable.of_launcher]
        values: dict[str, Any] = {name: BY_NAME[name].parse(environ.get(name)) for name in names}
        missing = [name for name in names if values[name] is None]
        if missing:
            raise InvalidEnvironment(
                missing[0],
                f"{BACKEND} is told by variables which rank this is, and {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} not set. Start this command with a launcher that "
                "sets them, as torchrun does, or use mp.",
            )
        launched = cls(**{name.lower(): value for name, value in values.items()})
        if launched.rank >= launched.world_size:
            raise InvalidEnvironment(
                "RANK",
                f"RANK={launched.rank} is none of WORLD_SIZE={launched.world_size}: they count from 0 to "
                f"{launched.world_size - 1}. Correct what the launcher sets.",
            )
        return launched

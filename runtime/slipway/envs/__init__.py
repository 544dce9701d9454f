"""Environment variables, declared once: for the server, the operator's firewall and the manual.

`read` gives the typed values of those that have an effect; `check` says, for every other one that is
set, why it has none.
"""

from slipway.envs.environment import (
    BY_NAME,
    PREFIXES,
    UNBOUND,
    VARIABLES,
    Environment,
    bound_cpus,
    check,
    near_names,
    read,
    unknown,
)
from slipway.envs.launcher import Launched
from slipway.envs.variable import (
    Action,
    Category,
    ClusterRule,
    InvalidEnvironment,
    Status,
    Today,
    Value,
    Variable,
)

__all__ = [
    "BY_NAME",
    "PREFIXES",
    "UNBOUND",
    "VARIABLES",
    "Action",
    "Category",
    "ClusterRule",
    "Environment",
    "InvalidEnvironment",
    "Launched",
    "Status",
    "Today",
    "Value",
    "Variable",
    "bound_cpus",
    "check",
    "near_names",
    "read",
    "unknown",
]

"""What each process of the API does before anything else."""

from __future__ import annotations

from slipway import plugins
from slipway.api.configure import Arguments
from slipway.api.logs import configure_logging
from slipway.call_trace import trace_calls
from slipway.envs import Environment


def begin(arguments: Arguments, environment: Environment, prefix: str = "") -> None:
    """Configures the logs, whose lines begin with `prefix`, and loads what the environment names."""
    configure_logging(arguments, environment, prefix)
    if environment.trace_function:
        trace_calls()
    plugins.load(environment.plugins or ())

"""What each process of a server does before anything else."""

from __future__ import annotations

from slipway import plugins
from slipway.call_trace import trace_calls
from slipway.envs import Environment
from slipway.logs import configure_logging


def begin(log_config_file: str | None, environment: Environment, process: str = "") -> None:
    """Configures the logs, whose lines name the `process`, and loads what the environment names."""
    configure_logging(log_config_file, environment, process)
    if environment.trace_function:
        trace_calls()
    plugins.load(environment.plugins or ())

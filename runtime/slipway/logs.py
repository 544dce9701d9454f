"""Logging of the server's processes."""

from __future__ import annotations

import logging
import logging.config
from pathlib import Path
from typing import Any

from slipway.envs import Environment
from slipway.exits import BAD_ARGUMENTS, Exit


def configure_logging(config_file: str | None, environment: Environment, process: str = "") -> None:
    """As --log-config-file says, else VLLM_LOGGING_CONFIG_PATH, else one line for each record.

    There the line names the `process`, where there are several.

    Raises Exit where the file cannot be read or is no logging configuration.
    """
    path = config_file or environment.logging_config_path
    if path is not None:
        _from_file(Path(path).expanduser())
    elif environment.configure_logging:
        prefix = environment.logging_prefix or ""
        logging.basicConfig(
            level=environment.logging_level.upper(),
            format=f"{prefix}%(levelname)s %(asctime)s {process}%(name)s: %(message)s",
            datefmt="%m-%d %H:%M:%S",
        )


def _from_file(path: Path) -> None:
    try:
        # Loggers are made as modules are imported: those that the file does not name would fall silent.
        logging.config.dictConfig({"disable_existing_loggers": False} | _parsed(path))
    except (OSError, ValueError, TypeError, AttributeError, ImportError) as error:
        message = f"The logging configuration {path} cannot be used: {error}."
        raise Exit(BAD_ARGUMENTS, message, argument="log_config_file") from None


def _parsed(path: Path) -> dict[str, Any]:
    """JSON, of which YAML is a superset."""
    import yaml

    try:
        value = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value

"""What `adapter_config.json` says of a prompt adapter, for those who read none of its numbers."""

from __future__ import annotations

from pathlib import Path

from slipway.load.config import WrongField, integer, positive
from slipway.load.errors import LoadError
from slipway.load.folder import read_json

KINDS = ("PROMPT_TUNING", "P_TUNING")
"""Of PEFT, whose files have a row for each virtual token; those of prefix tuning have keys and values."""


def unfit(
    name: str, folder: Path, why: str, hint: str = "Save it again by PEFT, or leave it out."
) -> LoadError:
    """The error for a prompt adapter that cannot be served."""
    message = f"The prompt adapter {name} in {folder} {why}."
    return LoadError("BadCheckpoint", message, hint=hint, argument="prompt_adapters")


def count_virtual_tokens(name: str, folder: Path) -> int:
    """Tokens that it puts before each prompt. Raises LoadError for what is no prompt adapter of KINDS."""
    path = folder / "adapter_config.json"
    if not path.is_file():
        raise unfit(name, folder, f"has no {path.name}", "Name a folder that PEFT saved.")
    config = read_json(path)
    if (kind := config.get("peft_type")) not in KINDS:
        why = f"is of the kind {kind}; {' and '.join(KINDS)} are served as prompt adapters"
        raise unfit(name, folder, why, "Name a LORA adapter in --lora-modules, and leave others out.")
    try:
        parts = integer(config, "num_transformer_submodules", 1)
        count = positive(config, "num_virtual_tokens")
    except WrongField as error:
        raise unfit(name, folder, f"has an {path.name} that {error.told}") from None
    if parts != 1:
        raise unfit(name, folder, f"is for {parts} parts of a model; a decoder has one")
    return count

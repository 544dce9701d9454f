"""What processes take that answer HTTP: they have the tokenizer, and no part of the model."""

from __future__ import annotations

from slipway.load.checkpoint import Checkpoint

INTERPRETER = 41 << 20
"""Of Python, the HTTP server and their heaps, measured at 40 to 42 MiB."""
PARENT = 15 << 20
"""Of the process that starts several, and imports little: measured at 14.6 MiB."""
OF_FILE = 11
"""Times the size of tokenizer.json that a tokenizer takes: 11.3 with 32,000 tokens, 10.9 with 128,000."""
OF_TOKEN = 500
"""Bytes of a tokenizer out of a GGUF file, for each of its tokens: 24 MiB of 49,152."""


def frontend_bytes(checkpoint: Checkpoint, vocab: int, processes: int) -> int:
    """vocab: tokens of the model, where no tokenizer.json says how many it has."""
    file = checkpoint.folder / "tokenizer.json" if checkpoint.folder else None
    tokenizer = OF_FILE * file.stat().st_size if file is not None and file.is_file() else OF_TOKEN * vocab
    parent = PARENT if processes > 1 else 0
    return parent + processes * (INTERPRETER + tokenizer)

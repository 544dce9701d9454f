"""A tokenizer that joins two texts, for models that compare them."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from factory import write_tokenizer


def write_pair_tokenizer(folder: Path) -> None:
    """The factory's tokenizer, joining texts as BERT's does: `[CLS] one [SEP] other [SEP]`, with types."""
    write_tokenizer(folder)
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    begin, end = "<|im_start|>", "<|im_end|>"
    tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B:1 {end}:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in (begin, end)],
    )
    tokenizer.save(str(file))

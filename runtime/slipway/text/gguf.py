"""The tokenizer that a GGUF file carries in its metadata, as llama.cpp tokenizes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from slipway.text import tokenizer
from slipway.text.fast import FastVocabulary
from slipway.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer

_SPECIAL_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",  # the format's own spelling
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}
_END_NAMES = ("eos_token_id", "eot_token_id", "eom_token_id")
_ENDS = frozenset(
    {
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>"),
        *("<|calls|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<end_of_utterance>"),
        *("<｜end▁of▁sentence｜>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"),
    }
)
"""Texts of tokens that end an answer whatever ids the file names, as llama.cpp knows them (llama-vocab.cpp).
Converters have left ids out, or named that of another token."""
_HARMONY = frozenset({"<|end|>", "<|return|>", "<|call|>"})
"""Of a vocabulary that has all three, the first ends a message within an answer."""
_TEMPLATE = "tokenizer.chat_template"


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, for each token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def load(path: Path) -> tokenizer.Tokenizer:
    """Read the tokenizer of a `.gguf` file."""
    from slipway.load.gguf import header

    return from_metadata(header.read(path).metadata)


def from_metadata(metadata: Mapping[str, Any]) -> tokenizer.Tokenizer:
    """Build the tokenizer from `tokenizer.*` keys. Raises ValueError for a kind that is not known."""
    ggml = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    tokens: list[str] = list(ggml.get("tokens", ()))
    kind = ggml.get("model")
    if not tokens or kind is None:
        raise ValueError(
            "The GGUF file has no tokenizer (tokenizer.ggml.model and tokenizer.ggml.tokens). "
            "Name a tokenizer of the same model with --tokenizer."
        )
    types: Sequence[int] = ggml.get("token_type") or [TokenType.NORMAL] * len(tokens)
    if kind == "gpt2":
        pre = _pre_tokenizer(ggml.get("pre", "default"))
        built, add_bos = _byte_level(tokens, ggml.get("merges"), pre), pre.add_bos
    elif kind == "llama":
        prefixed = ggml.get("add_space_prefix", True)
        built, add_bos = _sentencepiece(tokens, types, ggml.get("scores"), prefixed), True
    else:
        raise ValueError(
            f'The GGUF file\'s tokenizer kind "{kind}" is not supported: only gpt2 (byte-level BPE) and '
            "llama (SentencePiece) are. Name a tokenizer of the same model with --tokenizer."
        )
    _add_tokens(built, tokens, types)
    ids = {name: int(ggml[key]) for name, key in _SPECIAL_NAMES.items() if key in ggml}
    special = {name: tokens[i] for name, i in ids.items() if i < len(tokens)}
    _add_ends(built, special, ggml.get("add_bos_token", add_bos), ggml.get("add_eos_token", False))
    ends = [int(ggml[name]) for name in _END_NAMES if name in ggml and ggml[name] < len(tokens)]
    ends += _ends_by_text(tokens)
    return tokenizer.Tokenizer(
        FastVocabulary(built),
        special_tokens=special,
        eos_token_ids=tuple(dict.fromkeys(ends)),
        chat_templates=_chat_templates(metadata),
    )


def _ends_by_text(tokens: Sequence[str]) -> list[int]:
    """Ids of the tokens in `_ENDS`."""
    found = {token: number for number, token in enumerate(tokens) if token in _ENDS}
    if found.keys() >= _HARMONY:
        del found["<|end|>"]
    return list(found.values())


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    templates = {
        key.removeprefix(f"{_TEMPLATE}."): value
        for key, value in metadata.items()
        if key.startswith(f"{_TEMPLATE}.")
    }
    if _TEMPLATE in metadata:
        templates["default"] = metadata[_TEMPLATE]
    return templates


def _pre_tokenizer(name: str) -> PreTokenizer:
    if name not in PRE_TOKENIZERS:
        raise ValueError(
            f'The GGUF file\'s pre-tokenizer "{name}" is not known, so its texts would be cut wrongly. '
            "Name a tokenizer of the same model with --tokenizer."
        )
    return PRE_TOKENIZERS[name]


def _byte_level(tokens: Sequence[str], merges: Sequence[str] | None, pre: PreTokenizer) -> Tokenizer:
    if merges is None:
        raise ValueError(
            "The GGUF file's tokenizer has no tokenizer.ggml.merges, which a gpt2 tokenizer needs. "
            "Name a tokenizer of the same model with --tokenizer."
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # A space can begin a token but not end one: the first after it parts the two. The library panics at some
    # merges that are of no token.
    pairs = [
        (left, right)
        for merge in merges
        if (cut := merge.find(" ", 1)) > 0
        and (left := merge[:cut]) in vocabulary
        and (right := merge[cut + 1 :]) in vocabulary
        and left + right in vocabulary
    ]
    built = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=pre.whole_words))
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    built.decoder = decoders.ByteLevel()
    return built


def _sentencepiece(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float] | None, prefixed: bool
) -> Tokenizer:
    """Best-scored neighbours merge first, which a list of merges in the order of scores says too."""
    if scores is None:
        raise ValueError(
            "The GGUF file's tokenizer has no tokenizer.ggml.scores, which a llama tokenizer needs. "
            "Name a tokenizer of the same model with --tokenizer."
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    ranked: list[tuple[float, int, str, str]] = []
    for index, (token, type_) in enumerate(zip(tokens, types, strict=True)):
        if type_ in (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED):
            ranked += (
                (-scores[index], index, token[:cut], token[cut:])
                for cut in range(1, len(token))
                if token[:cut] in vocabulary and token[cut:] in vocabulary
            )
    ranked.sort(key=lambda merge: merge[:2])
    unknown = next((t for t, type_ in zip(tokens, types, strict=True) if type_ == 2), None)
    built = Tokenizer(
        models.BPE(
            vocabulary,
            [(left, right) for _, _, left, right in ranked],
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    built.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefixed else spaces
    built.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if prefixed else []),
        ]
    )
    return built


def _add_tokens(built: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    special = (TokenType.CONTROL, TokenType.UNKNOWN)
    built.add_tokens(
        [
            AddedToken(token, normalized=False, special=type_ in special)
            for token, type_ in zip(tokens, types, strict=True)
            if type_ in (*special, TokenType.USER_DEFINED)
        ]
    )


def _add_ends(built: Tokenizer, special: Mapping[str, str], bos: bool, eos: bool) -> None:
    before = [special["bos_token"]] if bos and "bos_token" in special else []
    after = [special["eos_token"]] if eos and "eos_token" in special else []
    if before or after:
        built.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", "$B", *after],
            special_tokens=[(token, built.token_to_id(token)) for token in {*before, *after}],
        )

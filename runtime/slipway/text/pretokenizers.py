"""How byte-level vocabularies cut a text into words: facts, by the names that GGUF files use.

Each entry is a list of patterns applied in turn: every one cuts the parts that the former left, and what
lies between its matches stays a part. Source: llama.cpp's table of pre-tokenizers.
"""

from __future__ import annotations

from dataclasses import dataclass

_ENGLISH = r"'s|'t|'re|'ve|'m|'ll|'d"
_ENGLISH_ANY_CASE = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"

_GPT2 = rf"{_ENGLISH}| ?\p{{L}}+| ?\p{{N}}+|{_SYMBOLS}|{_SPACES}"


def _cl100k(digits: str) -> str:
    """The pattern family of Llama 3 and Qwen 2, which differ in how many digits stay together."""
    return rf"(?:{_ENGLISH_ANY_CASE})|{_WORD}|{digits}|{_SYMBOLS}[\r\n]*|{_LINES}|{_SPACES}"


def _o200k(digits: str, suffix: str) -> str:
    """The pattern family of GPT-4o and Tekken: words also end where lower case turns to upper."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"
        rf"|{digits}|{_SYMBOLS}[\r\n/]*|{_LINES}|{_SPACES}"
    )


_CJK = r"[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}|{_SPACES}"
)
_SINGLE_DIGITS = (r"\p{N}", _GPT2)
_LLAMA3 = (_cl100k(r"\p{N}{1,3}"),)
_QWEN2 = (_cl100k(r"\p{N}"),)
_O200K = (_o200k(r"\p{N}{1,3}", rf"(?:{_ENGLISH_ANY_CASE})?"),)
_BLOOM = (r" ?[^(\s|.,!?…。，、।۔،)]+",)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to cut a text."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    """A word that is itself a token becomes that token, even where no merges lead to it."""
    add_bos: bool = False
    """Prompts begin with the BOS token, unless the file says otherwise."""


_BY_CONTENT: tuple[tuple[PreTokenizer, str], ...] = (
    (
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
        "default",
    ),
    (
        PreTokenizer((_GPT2,)),
        "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code gigachat a.x-4.0 mellum "
        "modern-bert roberta-bpe mpt olmo jais trillion granite-docling exaone4",
    ),
    (
        PreTokenizer(_SINGLE_DIGITS),
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    ),
    (
        PreTokenizer(_LLAMA3, whole_words=True, add_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (PreTokenizer(_LLAMA3), "dbrx smaug-bpe chatglm-bpe"),
    (PreTokenizer(_LLAMA3, whole_words=True), "glm4 glm5"),
    (
        PreTokenizer(_QWEN2),
        "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2",
    ),
    (
        PreTokenizer(
            (
                rf"(?:{_ENGLISH_ANY_CASE})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}|{_SPACES}",
            )
        ),
        "qwen35",
    ),
    (PreTokenizer(_O200K), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (
        PreTokenizer((_o200k(r"\p{N}", ""),), whole_words=True, add_bos=True),
        "tekken",
    ),
    (
        PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK_WORDS)),
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    ),
    (
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
        "deepseek-coder",
    ),
    (
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
        "falcon",
    ),
    (PreTokenizer(_BLOOM), "bloom gpt3-finnish poro-chat"),
    (PreTokenizer((*_BLOOM, r"\p{N}")), "viking"),
    (
        PreTokenizer(
            (
                rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}"
                rf"|{_SYMBOLS}[\r\n]*|\s*[\r\n]|{_SPACES}",
            )
        ),
        "bailingmoe bailingmoe2 llada-moe",
    ),
    (
        PreTokenizer(
            (
                rf"(?:{_ENGLISH_ANY_CASE})|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+"
                rf"|{_LINES}|{_SPACES}",
            )
        ),
        "seed-coder",
    ),
)

PRE_TOKENIZERS = {name: entry for entry, names in _BY_CONTENT for name in names.split()}

"""Small tokenizers of every kind of decoder, and the reference each is compared with."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import sentencepiece
from texts import texts
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CORPUS = [text for _, text in texts()] + ["Hello world, how are you? The cat isn't here. " * 5]


def _finished(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("two words", normalized=False)])
    return tokenizer


def trained_once(train: Callable[[], Tokenizer]) -> Callable[[], Tokenizer]:
    """What is made anew for each caller, who may change it, is a copy: training TIME."""
    written = cache(lambda: train().to_str())

    @wraps(train)
    def made() -> Tokenizer:
        return Tokenizer.from_str(written())

    return made


@trained_once
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.get_vocab_size())]
    )
    return _finished(tokenizer)


@trained_once
def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finished(tokenizer)


@trained_once
def word_ends() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finished(tokenizer)


@trained_once
def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=900, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finished(tokenizer)


def no_decoder() -> Tokenizer:
    tokenizer = metaspace()
    tokenizer.decoder = None
    return tokenizer


@cache
def sentencepiece_model(dummy_prefix: bool = True) -> bytes:
    """A SentencePiece BPE model with byte fallback, as Llama 2 and Mistral have."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in CORPUS for line in text.split("\n") if line.strip("\0")),
        model_writer=out,
        vocab_size=900,
        model_type="bpe",
        byte_fallback=True,
        add_dummy_prefix=dummy_prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        character_coverage=0.98,
        minloglevel=2,
        num_threads=1,
    )
    return out.getvalue()


def processor(dummy_prefix: bool = True) -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(dummy_prefix))


def sentencepiece_metadata(dummy_prefix: bool = True) -> dict[str, Any]:
    """What a GGUF file would hold for that model."""
    sp = processor(dummy_prefix)
    ids = range(sp.vocab_size())
    kinds: list[tuple[Callable[[int], bool], int]] = [
        (sp.is_unknown, 2),
        (sp.is_control, 3),
        (sp.is_byte, 6),
        (sp.is_unused, 5),
    ]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [sp.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [sp.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [next((t for is_, t in kinds if is_(i)), 1) for i in ids],
        "tokenizer.ggml.add_space_prefix": dummy_prefix,
        "tokenizer.ggml.bos_token_id": sp.bos_id(),
        "tokenizer.ggml.eos_token_id": sp.eos_id(),
        "tokenizer.ggml.unknown_token_id": sp.unk_id(),
    }

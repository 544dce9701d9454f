"""Tiny random models of every architecture, made on the spot and saved as real ones are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

VOCABULARY = 512
ARCHITECTURES = (
    "llama",
    "mistral",
    "ministral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "opt",
    "gpt2",
    "phi3",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_DECODER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_MOE = {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}
_OVERRIDES: dict[str, dict[str, Any]] = {
    "llama": {**_DECODER, "head_dim": 16},
    "mistral": {**_DECODER, "head_dim": 20, "sliding_window": 24},
    "qwen2": _DECODER,
    "qwen3": {**_DECODER, "head_dim": 20},
    "gemma2": {**_DECODER, "head_dim": 20, "query_pre_attn_scalar": 20, "sliding_window": 24},
    "gemma3_text": {
        **_DECODER,
        "num_hidden_layers": 4,
        "head_dim": 20,
        "query_pre_attn_scalar": 20,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "ministral": {
        **_DECODER,
        "head_dim": 24,
        "sliding_window": 24,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "mixtral": {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**_DECODER, **_MOE, "shared_expert_intermediate_size": 80},
    "qwen3_moe": {**_DECODER, **_MOE, "head_dim": 20, "norm_topk_prob": True},
    "opt": {
        "hidden_size": 64,
        "ffn_dim": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "word_embed_proj_dim": 64,
    },
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "phi3": _DECODER,
}


def model_folders(root: Path, variants: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Callable[[str], Path]:
    """Finds the folder of a variant, an architecture with sizes; each is made when it is first asked for."""

    def folder(variant: str) -> Path:
        architecture, overrides = variants[variant]
        place = root / variant
        return place if place.exists() else make_model(architecture, place, **overrides)

    return folder


def make_model(
    architecture: str,
    folder: Path,
    *,
    seed: int = 0,
    dtype: str = "float32",
    shards: int = 1,
    safetensors: bool = True,
    head: str = "ForCausalLM",
    **overrides: Any,
) -> Path:
    """Write a random model with its tokenizer, and return `folder`.

    shards     least number of weight files, with an index where there are several
    head       of the class: ForCausalLM, ForSequenceClassification or "" for none
    overrides  fields of the transformers configuration (hidden 64, 2 to 4 layers, GQA 4/2)
    """
    import torch
    import transformers
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    # The usual 0.02 would leave the layers without influence on the logits at this size.
    common["init_std" if architecture == "opt" else "initializer_range"] = 0.08
    config = AutoConfig.for_model(architecture, **{**common, **_OVERRIDES[architecture], **overrides})
    torch.manual_seed(seed)
    model = getattr(transformers, f"AutoModel{head}").from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim == 1:  # norms at exactly 1 and biases at 0 would hide mistakes
                weights.add_(torch.randn(weights.shape) * 0.1)
            elif "lm_head" in name and not config.tie_word_embeddings:
                weights.mul_(4)
    if model.can_generate():
        model.generation_config.eos_token_id = [2]
    model.to(getattr(torch, dtype))
    folder.mkdir(parents=True, exist_ok=True)
    size = sum(weights.numel() * weights.element_size() for weights in model.parameters())
    if safetensors:
        model.save_pretrained(folder, max_shard_size=-(-size // shards) + 1)
    else:
        config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Save a byte-level BPE tokenizer of 512 tokens, with a chat template, into `folder`."""
    (folder / "tokenizer.json").write_text(_tokenizer())
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[2],
        "pad_token": _SPECIAL[0],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


@cache
def _tokenizer() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = [Path(json.__file__).read_text(), Path(__file__).read_text()] * 2
    tokenizer.train_from_iterator(corpus, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise AssertionError(f"the corpus gives {tokenizer.get_vocab_size()} tokens only")
    text: str = tokenizer.to_str()
    return text

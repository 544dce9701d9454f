"""The architectures that GGUF files may hold, and what their tensors are called in transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slipway.load.errors import LoadError
from slipway.load.gguf.header import Header

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_DENSE = {
    **_ATTENTION,
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SANDWICH = {
    **_DENSE,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# `{}` is the expert: GGUF stacks all of a layer in one tensor.
_QWEN_EXPERTS = {
    **_DENSE,
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_MIXTRAL = {
    **_ATTENTION,
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}


@dataclass(frozen=True, slots=True)
class Family:
    """How one architecture's GGUF files differ from the Hugging Face checkpoint."""

    model_type: str
    architecture: str
    """The class in transformers."""
    blocks: Mapping[str, str]
    """Names inside a layer: GGUF's → the checkpoint's."""
    paired_rope: bool = False
    """Rows of Q and K are ordered for a rotation of neighbours, not of halves."""
    norm_plus_one: bool = False
    """Norms are stored as the factor 1 + w and not as w."""

    def rename(self, name: str) -> str | None:
        """The checkpoint's name (`{}` for the expert), or None where the name is unknown."""
        stem, _, suffix = name.rpartition(".")
        if stem in _TOP:
            return f"{_TOP[stem]}.{suffix}"
        match = re.fullmatch(r"blk\.(\d+)\.(\w+?)(?:\.(\d+))?", stem)
        if match is None:
            return None
        layer, inner, expert = match.groups()
        # Files from before experts were stacked name each: blk.0.ffn_gate.7.weight.
        target = self.blocks.get(inner if expert is None else f"{inner}_exps")
        if target is None:
            return None
        return f"model.layers.{layer}.{target.format('{}' if expert is None else expert)}.{suffix}"


_FAMILIES = {
    "llama": Family("llama", "LlamaForCausalLM", _DENSE, paired_rope=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", _DENSE),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", _DENSE),
    "qwen2moe": Family("qwen2_moe", "Qwen2MoeForCausalLM", _QWEN_EXPERTS),
    "qwen3moe": Family("qwen3_moe", "Qwen3MoeForCausalLM", _QWEN_EXPERTS),
    "gemma": Family("gemma", "GemmaForCausalLM", _DENSE, norm_plus_one=True),
    "gemma2": Family("gemma2", "Gemma2ForCausalLM", _SANDWICH, norm_plus_one=True),
    "gemma3": Family("gemma3_text", "Gemma3ForCausalLM", _SANDWICH, norm_plus_one=True),
}
_MISTRAL = Family("mistral", "MistralForCausalLM", _DENSE, paired_rope=True)
_MIXTRAL_FAMILY = Family("mixtral", "MixtralForCausalLM", _MIXTRAL, paired_rope=True)


def family(header: Header) -> Family:
    """The family of a file. Raises LoadError where its architecture is not supported."""
    name = header.architecture
    if name in ("llama", "mistral"):  # llama.cpp writes Mistral and Mixtral as `llama`
        if header.get("expert_count"):
            return _MIXTRAL_FAMILY
        if header.get("attention.sliding_window"):
            return _MISTRAL
        return _FAMILIES["llama"]
    if name not in _FAMILIES:
        raise LoadError(
            "UnsupportedModel",
            f"{header.path} holds a model of the architecture {name!r}, "
            "which is not supported from GGUF yet.",
            hint=f"Use its safetensors checkpoint, or a GGUF of {', '.join(_FAMILIES)}.",
        )
    return _FAMILIES[name]

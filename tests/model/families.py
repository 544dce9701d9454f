"""Every causal architecture of the installed transformers, tiny and at random: served natively, served by
transformers' code, or refused; and where it is served, how far log-probabilities are from transformers'.

    python tests/model/families.py

writes docs/reference/families.md; KINDS behind it are tried and printed instead.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from local_engine import LocalEngine
from slipway.engine.params import SamplingParams
from slipway.load.errors import LoadError

BOUND = 1e-3
"""Of the difference of log-probabilities, in fp32."""
LENGTH, DRAWN, STEP = 60, 4, 16
"""Tokens of a prompt, beyond every window and chunk; those drawn behind it; and those of a step at most."""
TABLE = Path(__file__).parents[2] / "docs/reference/families.md"
LARGEST = 60_000_000
"""Parameters of a model that is tried."""
LONGEST = 200
"""Characters of a reason."""
VOCABULARY = 256
LOCAL = 16
"""Window and chunk."""

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 255,
    "pad_token_id": 0,
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 512,
    "n_ctx": 512,
    "rotary_dim": 8,
    "ffn_dim": 128,
    "word_embed_proj_dim": 64,
    "dff": 128,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_shared_experts": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "sliding_window": LOCAL,
    "window_size": LOCAL,
    "attention_chunk_size": LOCAL,
    "attention_window_size": LOCAL,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_num_shared_experts": 1,
    "moe_topk": 2,
    "shared_intermediate_size": 64,
    "moe_layer_start_index": 0,
    "intermediate_size_mlp": 128,
    "lru_width": 64,
    "depth": 2,
    "num_heads": 4,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_target_positions": 512,
    "max_source_positions": 512,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 256,
}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
_INDEXER = {
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "indexer_head_dim": 16,
    "indexer_kv_heads": 1,
    "indexer_n_heads": 4,
    "ngram_vocab_size_base": 256,
    "split_ngram_parts": 4,
}
_OWN: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "layer_types": [_SLIDING, _FULL] * 2,
        "rope_parameters": {_FULL: _ROPE, _SLIDING: _ROPE},
    },
    "gemma3n_text": {
        "activation_sparsity_pattern": [0.0] * 4,
        "altup_num_inputs": 2,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "layer_types": [_SLIDING, _FULL] * 2,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 256,
    },
    "gemma4_text": {
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 8,
        "layer_types": [_SLIDING, _FULL] * 2,
        "vocab_size_per_layer_input": 256,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    "inkling2_loop_text": {"unpadded_vocab_size": 256},
    "inkling2_text": {"unpadded_vocab_size": 256},
    "lfm2_moe": {"layer_types": ["conv", _FULL] * 2},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"expand": 2, "head_dim": 16, "n_groups": 1, "num_heads": 8, "state_size": 16},
    "qwen4_exp_text": _INDEXER,
    "zamba": {"attn_layer_offset": 2, "attn_layer_period": 3, "num_hidden_layers": 8},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
"""Kinds → what else makes them tiny."""

_HEAD = """<!-- Generated from tests/model/families.py by `make families`. -->
# Families

What becomes of each causal architecture of transformers {version}, by its `model_type`. A tiny model of
each, with random weights in float32, answers prompts beyond every window and chunk, cold and after a hit of
the prefix cache; the difference is the largest of any log-probability to transformers' own. A larger model
of a family may ask for what the tiny one does not: then its server refuses it at the start, with the reason.

"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a family.

    how         native, transformers or refused; untried where no tiny model of it can be made here
    difference  the largest, of log-probabilities of the prompt and of what is drawn, cold and after a hit
    reason      why it is refused or untried, or what is less than transformers serves
    """

    how: str
    difference: float = 0.0
    reason: str = ""


def kinds() -> list[str]:
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tried(kind: str) -> Verdict:
    try:
        model = tiny(kind)
    except Exception as error:  # whatever transformers raises
        return Verdict("untried", reason=_said(error))
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        model.save_pretrained(folder)
        del model
        try:
            return compared(Path(folder))
        except LoadError as error:
            return Verdict("refused", reason=" ".join(error.message.split())[:LONGEST])


def tiny(kind: str) -> Any:
    """A model with random weights whose layers all have some influence."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**_sizes(CONFIG_MAPPING[kind]) | _OWN.get(kind, {}))
    with torch.device("meta"):
        shape: Any = AutoModelForCausalLM.from_config(config)
    if (size := sum(one.numel() for one in shape.parameters())) > LARGEST:
        raise ValueError(f"the tiny model has {size:,} parameters")
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.12)
    return model


def _sizes(kind: type[Any]) -> dict[str, Any]:
    """What makes a configuration tiny, and those within it."""
    usual = kind()
    known = {*vars(usual), *getattr(usual, "attribute_map", {})}
    sizes = {name: value for name, value in _SIZES.items() if name in known}
    for name in ("sliding_window", "q_lora_rank"):
        if name in sizes and getattr(usual, name, None) is None:
            del sizes[name]
    if "kv_lora_rank" in sizes:
        sizes.pop("head_dim", None)
        sizes["num_key_value_heads"] = 4
    for name in getattr(kind, "sub_configs", {}):
        if (within := getattr(usual, name, None)) is not None:
            sizes[name] = _sizes(type(within)) | {"model_type": within.model_type}
    return sizes


def compared(folder: Path) -> Verdict:
    """The saved model, served, against transformers. Raises LoadError where it is refused."""
    greedy = SamplingParams(DRAWN, temperature=0.0, num_logprobs=1, num_prompt_logprobs=1)
    again = SamplingParams(DRAWN, temperature=0.0, num_logprobs=1)
    with LocalEngine(folder, dtype="float32", max_num_batched_tokens=STEP, max_num_seqs=2) as engine:
        plan, longest = engine.start.plan, engine.start.size.max_model_len
        length = min(LENGTH, longest - DRAWN)
        prompt = torch.randint(2, 250, (length,), generator=torch.Generator().manual_seed(1)).tolist()
        other = [*prompt[: length - 7], *prompt[:7]]  # which hits what the first left
        (cold,) = engine.run([(prompt, greedy)])
        hit, beside = engine.run([(prompt, again), (other, again)])
        assert hit.num_cached_tokens or length <= plan.kv.groups[0].block_size
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    worst = 0.0
    for tokens, output in ((prompt, cold), (prompt, hit), (other, beside)):
        ids = [*tokens, *output.tokens]
        wanted = model(torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(-1)
        for place, given in enumerate(output.prompt_logprobs[1:], 1):
            worst = max(worst, abs(given.logprob - wanted[place - 1, ids[place]].item()))
        for place, given in enumerate(output.logprobs, len(tokens)):
            worst = max(worst, abs(given.logprob - wanted[place - 1, ids[place]].item()))
    limits = f"up to {longest} tokens" if length < LENGTH else ""
    return Verdict("native" if plan.route.native else "transformers", worst, limits)


def _said(error: Exception) -> str:
    return str(error).splitlines()[0][:LONGEST] if str(error) else type(error).__name__


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    def over(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def row(kind: str, found: Verdict) -> str:
    difference = f"{found.difference:.0e}" if found.how in ("native", "transformers") else ""
    reason = found.reason.replace("|", "\\|").replace("<", "\\<")
    return f"| {kind} | {found.how} | {difference} | {reason} |"


def quiet() -> None:
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)


def main(names: list[str]) -> int:
    quiet()
    rows = ["| model_type | served | difference | |", "| --- | --- | --- | --- |"]
    wrong = 0
    for kind in names or kinds():
        with within(120):
            found = tried(kind)
        wrong += found.difference > BOUND
        rows.append(row(kind, found))
        print(rows[-1], flush=True)
    if not names:
        TABLE.write_text(_HEAD.format(version=transformers.__version__) + "\n".join(rows) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Models of real shapes with random weights, to compare servers on; only the demo's tokens are fetched.

    python bench/models.py FOLDER [135m 1b]

FOLDER/NAME is a checkpoint in bf16, FOLDER/NAME.bf16.gguf has the same weights. What is there is kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import gguf
import torch
from gpu.checkpoints import write_plain
from safetensors import safe_open
from transformers import AutoTokenizer

from slipway.load.demo import fetch

SHAPES: dict[str, dict[str, int]] = {
    "135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
"""SmolLM2-135M, and Llama-3.2-1B with the tokens of the former: 1.07e9 weights."""
HEAD_DIM, VOCABULARY, CONTEXT = 64, 49152, 8192
EPSILON, ROPE_THETA = 1e-5, 100000.0
COMMON: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": EPSILON,
    "rope_theta": ROPE_THETA,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def checkpoint(folder: Path, name: str) -> Path:
    """The folder FOLDER/NAME of safetensors, made unless it is there."""
    place = folder / name
    if (place / "tokenizer.json").exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({**COMMON, **SHAPES[name]}, indent=1))
    write_plain(place, torch.device("cpu"))
    demo = fetch()
    AutoTokenizer.from_pretrained(demo.parent, gguf_file=demo.name).save_pretrained(place)
    return place


def plain_gguf(folder: Path, name: str) -> Path:
    """The same weights as FOLDER/NAME.bf16.gguf, made unless it is there."""
    path = folder / f"{name}.bf16.gguf"
    if path.exists():
        return path
    place, shape = checkpoint(folder, name), SHAPES[name]
    writer = gguf.GGUFWriter(path.with_suffix(".unfinished"), "llama")
    for key, item in gguf.GGUFReader(fetch()).fields.items():
        if key.startswith("tokenizer."):
            writer.add_key_value(key, item.contents(), item.types[0], *item.types[1:2])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(VOCABULARY)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, shape["num_hidden_layers"])
    for part in sorted(place.glob("*.safetensors")):
        with safe_open(part, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118
                tensor = tensors.get_tensor(key)
                to = names.get_name(key, try_suffixes=(".weight",))
                assert to is not None, key
                if tensor.ndim == 1:
                    writer.add_tensor(to, tensor.float().numpy())
                else:
                    raw = tensor.view(torch.uint8).numpy()
                    writer.add_tensor(to, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".unfinished").rename(path)
    return path


EXPERTS_ONLY = {"MXFP4": "MXFP4_MOE"}
"""Forms that the quantizer gives to experts alone, unless all matrices are to have one form."""


def quantized_gguf(folder: Path, name: str, form: str, quantizer: Path) -> Path:
    """The same in a form that llama.cpp's quantizer knows, made unless it is there."""
    path = folder / f"{name}.{form}.gguf"
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        words = ["--pure"] if form in EXPERTS_ONLY else []
        words += [str(plain_gguf(folder, name)), str(unfinished), EXPERTS_ONLY.get(form, form)]
        subprocess.run([quantizer, *words], check=True, capture_output=True)
        unfinished.rename(path)
    return path


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(SHAPES))
    arguments = parser.parse_args()
    for name in arguments.names:
        print(plain_gguf(arguments.folder, name))


if __name__ == "__main__":
    main()

"""Random heads that follow a target, and what they draft by the definition.

Written as papers have it: at position i is the row of i beside the token at i + 1, and everything
is computed anew for each draft.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from factory import VOCABULARY
from random_heads import Array, Draw, drawing, silu
from slipway.engine.config import DraftConfig
from tensor_files import Tensors, save

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 64, 4, 2, 24, 80
EPS, THETA = 1e-5, 5000.0
SCALE = 0.15
"""Of random weights."""


def norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + np.float32(EPS)) * weight


def layer_tensors(random: Draw, name: str, inputs: int = 1) -> Tensors:
    width = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    tensors = {
        f"{name}.self_attn.{one}_proj.weight": random(rows, inputs * HIDDEN) for one, rows in width.items()
    }
    return tensors | {
        f"{name}.self_attn.o_proj.weight": random(HIDDEN, width["q"]),
        f"{name}.mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN),
        f"{name}.mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
        f"{name}.mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE),
        f"{name}.post_attention_layernorm.weight": 1 + random(HIDDEN),
    }


def rotated(x: Array) -> Array:
    """Heads [positions, heads, size] from position 0 on."""
    half = HEAD_DIM // 2
    angles = np.arange(len(x))[:, None] * THETA ** (-np.arange(half) / half)
    cos, sin = (part.astype(np.float32)[:, None] for part in (np.cos(angles), np.sin(angles)))
    first, second = x[..., :half], x[..., half:]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


def attended(q: Array, k: Array, v: Array) -> Array:
    """What each position [positions, heads, size] takes from those up to itself."""
    scores = np.einsum("qhd,khd->hqk", q, k) / np.float32(math.sqrt(HEAD_DIM))
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)


def layer(tensors: Tensors, name: str, x: Array, normed: Array) -> Array:
    """x [positions, hidden] behind a layer that makes queries of `normed`."""

    def linear(matrix: str, of: Array) -> Array:
        return of @ tensors[f"{name}.{matrix}.weight"].T + tensors.get(f"{name}.{matrix}.bias", 0)

    q, k, v = (linear(f"self_attn.{one}_proj", normed).reshape(len(x), -1, HEAD_DIM) for one in "qkv")
    k, v = (np.repeat(one, HEADS // KV_HEADS, 1) for one in (rotated(k), v))
    x = x + linear("self_attn.o_proj", attended(rotated(q), k, v).reshape(len(x), -1))
    normed = norm(x, tensors[f"{name}.post_attention_layernorm.weight"])
    return x + linear("mlp.down_proj", silu(linear("mlp.gate_proj", normed)) * linear("mlp.up_proj", normed))


@dataclass
class Target:
    """A model by transformers' code, which needs torch."""

    model: Any
    found: dict[tuple[int, ...], tuple[Array, ...]] = field(default_factory=dict)
    unnormed: dict[tuple[int, ...], Array] = field(default_factory=dict)
    """[positions, hidden]  what the final norm has made the last of these rows of"""

    @classmethod
    def of(cls, folder: Path) -> Target:
        from transformers import AutoModelForCausalLM

        return cls(AutoModelForCausalLM.from_pretrained(folder).eval())

    @cached_property
    def embedding(self) -> Array:
        return self.model.model.embed_tokens.weight.detach().numpy()

    @cached_property
    def head(self) -> Array:
        return self.model.lm_head.weight.detach().numpy()

    def rows(self, tokens: list[int]) -> tuple[Array, ...]:
        """[positions, hidden] each, before the first layer and behind each; the last ones are normed."""
        import torch

        key = tuple(tokens)
        if key not in self.found:
            body = self.model.model
            keep = body.norm.register_forward_pre_hook(
                lambda _, inputs: self.unnormed.update({key: inputs[0][0].numpy()})
            )
            with torch.inference_mode():
                states = body(torch.tensor([tokens]), output_hidden_states=True).hidden_states
            keep.remove()
            self.found[key] = tuple(one[0].numpy() for one in states)
        return self.found[key]

    def rows_before_norm(self, tokens: list[int]) -> Array:
        """[positions, hidden]"""
        self.rows(tokens)
        return self.unnormed[tuple(tokens)]


class Eagle:
    """As Li et al. 2024 have it, in their code's names."""

    method = "eagle"
    config: ClassVar[dict[str, Any]] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "max_position_embeddings": 512,
    }

    def tensors(self, random: Draw) -> Tensors:
        return layer_tensors(random, "layers.0") | {"fc.weight": random(HIDDEN, 2 * HIDDEN)}

    def __call__(self, tensors: Tensors, target: Target, known: list[int], said: list[int]) -> Array:
        """Logits of what follows what it has said behind these tokens."""
        rows = target.rows(known[:-1])[-1]
        for count in range(len(said) + 1):
            tokens = known[1:] + said[:count]
            embedded = tensors.get("embed_tokens.weight", target.embedding)[tokens]
            x = np.concatenate((embedded, rows), -1) @ tensors["fc.weight"].T + tensors.get("fc.bias", 0)
            x = layer(tensors, "layers.0", x, x)
            if "layers.1.input_layernorm.weight" in tensors:
                x = layer(tensors, "layers.1", x, norm(x, tensors["layers.1.input_layernorm.weight"]))
            rows = np.concatenate((rows, x[-1:]))
        return tensors.get("lm_head.weight", target.head) @ rows[-1]


class DeepEagle(Eagle):
    """Two layers, with an embedding, a head and a bias of its own, described as a wrapper does."""

    config: ClassVar[dict[str, Any]] = {
        "architectures": ["EagleLlamaForCausalLM"],
        "model_type": "eagle",
        "model": Eagle.config | {"num_hidden_layers": 2},
    }

    def tensors(self, random: Draw) -> Tensors:
        second = {"layers.1.input_layernorm.weight": 1 + random(HIDDEN)} | layer_tensors(random, "layers.1")
        words = {name: random(VOCABULARY, HIDDEN) for name in ("embed_tokens.weight", "lm_head.weight")}
        return super().tensors(random) | second | words | {"fc.bias": random(HIDDEN)}


class Eagle3:
    """As Li et al. 2025 have it, in their code's names, over the rows of all three layers' inputs."""

    method = "eagle3"
    config: ClassVar[dict[str, Any]] = Eagle.config | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": 160,
    }
    norm_before_residual = False

    def tensors(self, random: Draw) -> Tensors:
        tokens = np.sort(np.random.default_rng(160).permutation(VOCABULARY)[:160])
        vectors = ("midlayer.input_layernorm", "midlayer.hidden_norm", "norm")
        return (
            layer_tensors(random, "midlayer", inputs=2)
            | {f"{name}.weight": 1 + random(HIDDEN) for name in vectors}
            | {
                "fc.weight": random(HIDDEN, 3 * HIDDEN),
                "lm_head.weight": random(160, HIDDEN),
                "d2t": tokens - np.arange(160),
                "t2d": np.isin(np.arange(VOCABULARY), tokens),
            }
        )

    def __call__(self, tensors: Tensors, target: Target, known: list[int], said: list[int]) -> Array:
        name = next(one.partition(".")[0] for one in tensors if "hidden_norm" in one)
        name = "midlayer" if name == "midlayer" else "layers.0"
        rows = np.concatenate(target.rows(known[:-1])[:3], -1) @ tensors["fc.weight"].T
        for count in range(len(said) + 1):
            tokens = known[1:] + said[:count]
            embedded = tensors.get("embed_tokens.weight", target.embedding)[tokens]
            normed = norm(rows, tensors[f"{name}.hidden_norm.weight"])
            both = np.concatenate((norm(embedded, tensors[f"{name}.input_layernorm.weight"]), normed), -1)
            x = layer(tensors, name, normed if self.norm_before_residual else rows, both)
            rows = np.concatenate((rows, x[-1:]))
        few = tensors["lm_head.weight"] @ norm(rows[-1], tensors["norm.weight"])
        logits = np.full(VOCABULARY, -np.inf, np.float32)
        logits[np.arange(len(few)) + tensors.get("d2t", 0)] = few
        return logits


class OtherEagle3(Eagle3):
    """All tokens, an embedding of its own, norms before the residual, as another trainer describes it."""

    config: ClassVar[dict[str, Any]] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": VOCABULARY,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "transformer_layer_config": {
            key: value for key, value in Eagle.config.items() if key != "architectures"
        },
    }
    norm_before_residual = True

    def tensors(self, random: Draw) -> Tensors:
        found = {name.replace("midlayer", "layers.0"): one for name, one in super().tensors(random).items()}
        del found["d2t"], found["t2d"]
        words = {name: random(VOCABULARY, HIDDEN) for name in ("embed_tokens.weight", "lm_head.weight")}
        return found | words


@dataclass
class Mtp:
    """MiMo's layers, in its names: row i of a layer is made of row i of the one before it, and of the token
    that is so much further on."""

    num_layers: int
    method = "mtp"

    @property
    def config(self) -> dict[str, Any]:
        named = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"}
        return Eagle.config | named | {"num_nextn_predict_layers": self.num_layers}

    def tensors(self, random: Draw) -> Tensors:
        tensors: Tensors = {}
        for number in range(self.num_layers):
            name = f"model.mtp_layers.{number}"
            norms = ("token_layernorm", "hidden_layernorm", "input_layernorm", "final_layernorm")
            tensors |= layer_tensors(random, name) | {
                f"{name}.{norm}.weight": 1 + random(HIDDEN) for norm in norms
            }
            tensors[f"{name}.input_proj.weight"] = random(HIDDEN, 2 * HIDDEN)
            for one, rows in {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}.items():
                tensors[f"{name}.self_attn.{one}_proj.bias"] = random(rows * HEAD_DIM)
        return tensors

    def __call__(self, tensors: Tensors, target: Target, known: list[int], said: list[int]) -> Array:
        guessed: list[Array] = []
        for count in range(len(said) + 1):
            turns, last = divmod(count, self.num_layers)
            standing_in = guessed[: turns * self.num_layers]  # where the target's rows are not known
            rows = np.concatenate((target.rows_before_norm(known[:-1]), *standing_in))
            for number in range(last + 1):
                tokens = (known + said)[number + 1 :][: len(rows)]
                rows = self._layer(tensors, number, rows, target.embedding[tokens])
            guessed.append(rows[-1:])
        return target.head @ rows[-1]

    def _layer(self, tensors: Tensors, number: int, rows: Array, embedded: Array) -> Array:
        name = f"model.mtp_layers.{number}"

        def normed(x: Array, which: str) -> Array:
            return norm(x, tensors[f"{name}.{which}_layernorm.weight"])

        embedded = np.concatenate((np.zeros_like(embedded[:1]), embedded[1:]))
        joined = np.concatenate((normed(rows, "hidden"), normed(embedded, "token")), -1)
        x = joined @ tensors[f"{name}.input_proj.weight"].T
        return normed(layer(tensors, name, x, normed(x, "input")), "final")


KINDS = {"eagle": Eagle(), "deep eagle": DeepEagle(), "eagle3": Eagle3(), "other eagle3": OtherEagle3()} | {
    "mtp": Mtp(1),
    "two mtp layers": Mtp(2),
    "three mtp layers": Mtp(3),
}
NAMED = {"eagle": "EagleLlamaForCausalLM", "eagle3": "Eagle3LlamaForCausalLM"}
SOME = [*NAMED, "two mtp layers"]


def write_follower(kind: str, folder: Path) -> Path:
    """A random checkpoint of a kind, for a tiny Llama."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(KINDS[kind].config))
    save(KINDS[kind].tensors(drawing(len(kind), SCALE)), folder / "model.safetensors")
    return folder


def guessing(kind: str, folder: Path, num_drafts: int, **fields: Any) -> dict[str, object]:
    """An engine's settings with such drafts."""
    config = DraftConfig(method=KINDS[kind].method, model=str(folder), **fields)
    return {"draft": config, "num_drafts": num_drafts}

"""The definition of a decoder in plain torch: whole sequences, no cache, nothing fused.

Tests compare with it. Weights are by key, see `roles.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from slipway.load.arrays import DType
from slipway.load.checkpoint import Checkpoint
from slipway.load.quantized.tensors import in_type
from slipway.load.torch_arrays import tensor
from slipway.model.registry import families
from slipway.model.rope import cos_sin
from slipway.model.spec import Activation, Attention, DecoderSpec, Layer, Mlp, Moe, Rope
from slipway.model.weights import entries


def read_reference(spec: DecoderSpec, checkpoint: Checkpoint, dtype: DType) -> Reference:
    """Load all weights as they are. Raises LoadError as `load_weights` does."""
    family = families()[spec.architecture]
    stream = entries(spec, family, checkpoint.stored(dtype))
    weights = {entry.key: tensor(in_type(stored.read(), dtype)).clone() for entry, stored in stream}
    return Reference(spec, weights)


class Reference:
    """Computes logits of whole sequences in the type of its weights; norms and softmax in fp32."""

    def __init__(self, spec: DecoderSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec = spec
        self.weights = weights

    @torch.inference_mode()
    def logits(self, tokens: Tensor) -> Tensor:
        """tokens [length] → logits [length, vocab] in fp32."""
        spec = self.spec
        x = self.weights["embedding.weight"][tokens]  # [length, hidden]
        x = x * torch.tensor(spec.embedding_scale, dtype=x.dtype)
        for number, layer in enumerate(spec.layers):
            x = self._layer(x, layer, number)
        head = self.weights["embedding.weight" if spec.tied_embedding else "head.weight"]
        logits = F.linear(self._norm(x, "norm"), head, self.weights.get("head.bias")).float()
        return _capped(logits, spec.logit_softcap)

    def _layer(self, x: Tensor, layer: Layer, number: int) -> Tensor:
        y = self._attention(self._norm(x, f"{number}.attention_norm"), layer.attention, number)
        x = x + (self._norm(y, f"{number}.attention_post_norm") if self.spec.sandwich else y)
        y = self._norm(x, f"{number}.mlp_norm")
        if isinstance(layer.mlp, Moe):
            y = self._moe(y, layer.mlp, number)
        else:
            y = self._mlp(y, layer.mlp, number, ("gate", "up", "down"))
        return x + (self._norm(y, f"{number}.mlp_post_norm") if self.spec.sandwich else y)

    def _attention(self, x: Tensor, attention: Attention, number: int) -> Tensor:
        length = x.shape[0]
        q, k, v = (
            self._linear(x, f"{number}.{role}").view(length, -1, attention.head_dim) for role in "qkv"
        )  # [length, heads, head_dim]
        if attention.qk_norm:
            q, k = self._norm(q, f"{number}.q_norm"), self._norm(k, f"{number}.k_norm")
        if attention.rope is not None:
            q, k = _rotated(q, attention.rope), _rotated(k, attention.rope)
        shared = attention.heads // attention.kv_heads
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k).float() * attention.scale
        distance = torch.arange(length)[:, None] - torch.arange(length)  # [query, key]
        if self.spec.both_ways:
            distance = distance.abs()
        hidden = (distance < 0) | (distance >= (attention.window or length))
        scores = _capped(scores, attention.softcap)
        if attention.alibi:
            scores = scores - torch.tensor(attention.slopes)[:, None, None] * distance
        scores = scores.masked_fill(hidden, -torch.inf)
        if attention.sinks:
            sinks = self.weights[f"{number}.sinks.weight"].float()[:, None, None]
            scores = torch.cat((scores, sinks.expand(-1, length, 1)), dim=-1)
        y = torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1)[..., :length].to(v.dtype), v)
        return self._linear(y.reshape(length, -1), f"{number}.out")

    def _mlp(self, x: Tensor, mlp: Mlp, number: int, roles: tuple[str, str, str]) -> Tensor:
        gate, up, down = (f"{number}.{role}" for role in roles)
        return self._linear(_activated(self._linear(x, gate), mlp.activation) * self._linear(x, up), down)

    def _moe(self, x: Tensor, moe: Moe, number: int) -> Tensor:
        chances = self._linear(x, f"{number}.router").float().softmax(dim=-1)
        weights, chosen = chances.topk(moe.top_k, dim=-1)  # [length, top_k]
        if moe.normalize_top_k:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        y = torch.zeros_like(x)
        for expert in range(moe.experts):
            token, place = (chosen == expert).nonzero(as_tuple=True)
            gate, up, down = (
                self.weights[f"{number}.expert_{role}.{expert}.weight"] for role in ("gate", "up", "down")
            )
            inner = _activated(F.linear(x[token], gate), moe.activation) * F.linear(x[token], up)
            y[token] += (F.linear(inner, down) * weights[token, place, None]).to(y.dtype)
        if moe.shared is not None:
            shared = self._mlp(x, moe.shared, number, ("shared_gate", "shared_up", "shared_down"))
            y = y + torch.sigmoid(self._linear(x, f"{number}.shared_scale")) * shared
        return y

    def _linear(self, x: Tensor, key: str) -> Tensor:
        return F.linear(x, self.weights[f"{key}.weight"], self.weights.get(f"{key}.bias"))

    def _norm(self, x: Tensor, key: str) -> Tensor:
        weight = self.weights[f"{key}.weight"].float() + (1.0 if self.spec.norm_add_one else 0.0)
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.spec.norm_eps)
        return (y * weight).to(x.dtype)


def _rotated(x: Tensor, rope: Rope) -> Tensor:
    """x [length, heads, head_dim]: pairs (i, i + rotary_dim / 2) turned by their position's angle."""
    angles = torch.from_numpy(cos_sin(rope, x.shape[0]))[:, None].to(
        x.dtype
    )  # [length, 1, rotary_dim / 2, 2]
    cos, sin = angles.unbind(dim=-1)
    half = rope.rotary_dim // 2
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def _capped(x: Tensor, cap: float) -> Tensor:
    return torch.tanh(x / cap) * cap if cap else x


def _activated(x: Tensor, activation: Activation) -> Tensor:
    if activation == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")

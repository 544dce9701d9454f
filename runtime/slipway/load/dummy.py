"""Random weights: a model's speed and memory without its files."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import torch


def dummy(
    shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, seed: int, device: torch.device
) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights by name: matrices N(0, 0.02²), norms 1, biases 0.

    Matrices are drawn on `device`, where billions take seconds; the rest is on the host, as if it had been
    read. A tensor's values depend on seed, name, shape and the kind of device alone.
    """
    for name, shape in shapes.items():
        if len(shape) >= 2:
            random = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
            weights = torch.empty(shape, dtype=dtype, device=device).normal_(0.0, 0.02, generator=random)
        else:
            weights = torch.full(shape, 0.0 if name.endswith("bias") else 1.0, dtype=dtype)
        yield name, weights

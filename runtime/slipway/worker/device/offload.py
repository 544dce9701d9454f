"""Weights in host memory, which come to the device layer by layer in every step (`--cpu-offload-gb`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from slipway.load.arrays import DType
from slipway.load.quantized.form import Form
from slipway.model.roles import Place
from slipway.model.spec import DecoderSpec
from slipway.model.weights import Builder, LayerWeights, MlpWeights
from slipway.schemes.fused import FusedLinear
from slipway.worker.cache_size import GIB
from slipway.worker.device.feed_forward import Experts, with_stacked_experts
from slipway.worker.device.pinned import HostMemory
from slipway.worker.device.products import Move, move_matrices
from slipway.worker.device.schemes import DeviceSchemes
from slipway.worker.device.transfer import Transfer
from slipway.worker.plan import ModelPlan

log = logging.getLogger("slipway.engine")

WEIGHTS = HostMemory(
    "weights", "cpu_offload_gb", "Lower --cpu-offload-gb, or give the container more memory."
)
BUFFERS = 2
"""Layers that the device has room for: one is computed while the next one arrives."""
_ALIGNMENT = 256
"""Bytes that the address of a matrix is a multiple of, as torch's own are at least."""


class Movable(Protocol):
    """A layer of which every matrix can be put elsewhere."""

    def move(self, to: Move) -> None:
        """Have `to(tensor)` in the place of each tensor that it multiplies by."""


L = TypeVar("L", bound=Movable)


class StreamedLayers(Generic[L]):
    """A model's layers, some of which lie in host memory and are copied to the device when their turn comes.

    A copied layer's tensors are views of one of two buffers, at addresses that never change: so its layers
    are computed like any other, in a CUDA graph too, which holds the copies as well. They run on a stream of
    their own, each as soon as the layer that its buffer held has been computed. Every step copies all of
    them, so that steps know nothing of each other.
    """

    def __init__(self, layers: list[L], on_host: Sequence[int], device: torch.device) -> None:
        """Moves the layers of these numbers, ascending. Raises Exit where the host's memory is not pinned."""
        self._layers = layers
        self._turns = {number: turn for turn, number in enumerate(on_host)}
        sizes = [_bytes(layers[number].move) for number in on_host]
        self._host = torch.empty(sum(sizes), dtype=torch.uint8)
        largest = max(sizes, default=0)
        buffers = [
            torch.empty(largest, dtype=torch.uint8, device=device) for _ in range(min(BUFFERS, len(sizes)))
        ]
        self._copies: list[tuple[Tensor, Tensor]] = []
        """[turn]  a layer in host memory, and its place on the device"""
        for turn, (size, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
            pair = self._host[end - size : end], buffers[turn % BUFFERS][:size]
            layers[on_host[turn]].move(_into(*pair))
            self._copies.append(pair)
        self._stream: torch.cuda.Stream | None = None
        if sizes and device.type == "cuda":
            WEIGHTS.pin(self._host, self)
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._arrived = [torch.cuda.Event() for _ in sizes]  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[L]:
        """Each layer, wherever it lies now."""
        return iter(self._layers)

    def in_turn(self) -> Iterator[L]:
        """Each layer when it can be computed; it has been, or is launched, when the next one is asked for."""
        for turn in range(min(BUFFERS, len(self._copies))):
            self._fetch(turn)
        for number, layer in enumerate(self._layers):
            turn = self._turns.get(number, -1)
            if turn >= 0 and self._stream is not None:
                torch.cuda.current_stream().wait_event(self._arrived[turn])
            yield layer
            if 0 <= turn < len(self._copies) - BUFFERS:
                self._fetch(turn + BUFFERS)

    def _fetch(self, turn: int) -> None:
        """Copy a layer, after all that was launched: the last reader of its buffer is among that."""
        source, target = self._copies[turn]
        if self._stream is None:
            target.copy_(source)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            self._arrived[turn].record()


def layers_on_host(plan: ModelPlan, limit: int) -> tuple[int, ...]:
    """The layers whose weights stay in host memory, where they may take `limit` bytes, by their numbers in
    the model; the log says what.

    Raises Exit where the host has no room for them.
    """
    if not limit:
        return ()
    sizes = plan.route.layer_bytes(plan.checkpoint, plan.element)
    if not sizes:
        model = plan.route.architecture
        why = f"{model} is an encoder" if plan.route.native else f"transformers' code runs {model}"
        log.warning("--cpu-offload-gb has no effect: %s, and its weights stay on the device.", why)
        return ()
    layers = chosen(sizes, limit)
    if not layers:
        log.warning(
            "--cpu-offload-gb %.2f keeps no weights in host memory: each layer takes up to %.2f GiB, and the "
            "device needs room for %d of them whatever is copied, so that more than those must fit.",
            *(limit / GIB, max(sizes) / GIB, BUFFERS),
        )
        return ()
    taken, room = sum(sizes[one] for one in layers), BUFFERS * max(sizes[one] for one in layers)
    WEIGHTS.check(taken)
    log.info(
        "%d of %d layers stay in host memory, %.2f GiB of weights%s; on the device two buffers for them take "
        "%.2f GiB",
        *(len(layers), len(sizes), taken / GIB),
        ", which is less than --cpu-offload-gb allows" if sum(sizes) < limit else "",
        room / GIB,
    )
    first = 0 if plan.route.stage is None else plan.route.stage.layers.start
    return tuple(first + layer for layer in layers)


def chosen(sizes: Sequence[int], limit: int) -> tuple[int, ...]:
    """As many layers as take `limit` bytes together; none where the buffers would take what that frees.

    sizes  bytes of each layer
    They are spread evenly: a copy runs while the layers are computed that lie between the last one of its
    buffer and its own, and neighbours would have none of those. Each is the last of its run, so that the
    first copies of a step have layers before them, too.
    """
    for count in range(len(sizes), 0, -1):
        layers = tuple(place * len(sizes) // count - 1 for place in range(1, count + 1))
        taken = [sizes[one] for one in layers]
        if sum(taken) <= limit:
            return layers if sum(taken) > BUFFERS * max(taken) else ()
    return ()


def layer_bytes(spec: DecoderSpec, forms: Mapping[Place, Form], dtype: DType) -> list[int]:
    """What each layer's matrices take on the device; found from their shapes, before any of them is read.

    forms  of those that are quantized
    """
    nowhere = torch.device("meta")
    builder = Builder(spec, DeviceSchemes(dtype, Transfer(nowhere)), forms)
    weights = builder.build()
    builder.finish()
    layers = [(layer, with_stacked_experts(layer.mlp, nowhere)) for layer in weights.layers]
    return [_bytes(partial(move, layer, mlp)) for layer, mlp in layers]


def move(weights: LayerWeights, mlp: MlpWeights | Experts | None, to: Move) -> None:
    """Put every matrix of a layer elsewhere."""
    linears: list[FusedLinear | None] = [weights.qkv, weights.out]
    if isinstance(mlp, Experts):
        mlp.gate_up.move(to)
        mlp.down.move(to)
        linears += mlp.weights.router, mlp.weights.shared_scale
        mlp = mlp.weights.shared
    if mlp is not None:
        linears += mlp.gate_up, mlp.down
    move_matrices(filter(None, linears), to)


def _into(host: Tensor, buffer: Tensor) -> Move:
    """Copies tensors to `host`, one after another; in their place come the same bytes of `buffer`."""
    begin = 0

    def copy(tensor: Tensor) -> Tensor:
        nonlocal begin
        end = begin + tensor.nbytes
        here, there = (part[begin:end].view(tensor.dtype).view(tensor.shape) for part in (host, buffer))
        here.copy_(tensor)
        begin = _aligned(end)
        return there

    return copy


def _bytes(move: Callable[[Move], None]) -> int:
    """What `_into` would take."""
    sizes: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        sizes.append(_aligned(tensor.nbytes))
        return tensor

    move(count)
    return sum(sizes)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT

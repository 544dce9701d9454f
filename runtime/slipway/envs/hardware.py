"""Variables that mean something on one kind of device only."""

from __future__ import annotations

from functools import partial

from slipway.envs.variable import Today, Variable, allow_on, implemented, no_effect

_Device = partial(Variable, category="other-hardware")


def _not_on(device: str) -> Today:
    return no_effect(f"Slipway serves on CPU and CUDA, not on {device}")


HARDWARE = (
    _Device(
        "VLLM_CPU_KVCACHE_SPACE",
        "float",
        None,
        "Memory for the KV cache on CPU.",
        allow_on("cpu", "counts against the pod's memory"),
        implemented(),
        unit="GiB",
        effective_default=(
            "what --max-num-seqs requests of --max-model-len can use, at most a quarter of what the "
            "weights leave of the container's memory"
        ),
        minimum=0,
        harmless=(0.0,),
    ),
    _Device(
        "VLLM_CPU_MOE_PREPACK",
        "bool",
        True,
        "Packs the weights of experts at load.",
        allow_on("cpu", "CPU only"),
        no_effect("weights are always packed at load"),
    ),
    _Device(
        "VLLM_CPU_OMP_THREADS_BIND",
        "str",
        "auto",
        "Cores that compute, a thread on each, such as 0-3 or 0-3|4-7 (one list for each engine or rank); "
        "nobind or all: threads go where the system moves them.",
        allow_on("cpu", "it needs the static CPU policy, and may not name other pods' cores"),
        implemented(),
        effective_default=(
            "an equal part of the cores that the container has, a thread for each, bound to it from eight "
            "cores on; as many threads as its CPU quota has cores, free to move, where that is less"
        ),
    ),
    _Device(
        "VLLM_OPENVINO_CPU_KV_CACHE_PRECISION",
        "str",
        "auto",
        "Number format of the KV cache in OpenVINO.",
        allow_on("openvino", "OpenVINO only"),
        _not_on("OpenVINO"),
    ),
    _Device(
        "VLLM_OPENVINO_DEVICE",
        "str",
        "CPU",
        "Device that OpenVINO uses.",
        allow_on("openvino", "OpenVINO only"),
        _not_on("OpenVINO"),
    ),
    _Device(
        "VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS",
        "bool",
        False,
        "Compresses weights when OpenVINO exports a model.",
        allow_on("openvino", "OpenVINO only"),
        _not_on("OpenVINO"),
    ),
    _Device(
        "VLLM_OPENVINO_KVCACHE_SPACE",
        "int",
        0,
        "Memory for the KV cache in OpenVINO.",
        allow_on("openvino", "OpenVINO only"),
        _not_on("OpenVINO"),
        unit="GB",
    ),
    _Device(
        "VLLM_ROCM_FP8_PADDING",
        "bool",
        True,
        "Pads FP8 weights to 256 bytes.",
        allow_on("rocm", "ROCm only"),
        _not_on("ROCm"),
    ),
    _Device(
        "VLLM_TPU_DISABLE_TOPK_TOPP_OPTIMIZATION",
        "bool",
        False,
        "Turns the short way for top-k and top-p off.",
        allow_on("tpu", "TPU only"),
        _not_on("TPUs"),
    ),
    _Device(
        "VLLM_USE_HPU_CONTIGUOUS_CACHE_FETCH",
        "bool",
        True,
        "Fetches the KV cache in one piece.",
        allow_on("hpu", "Gaudi only"),
        _not_on("Gaudi"),
    ),
    _Device(
        "VLLM_XLA_CACHE_PATH",
        "path",
        "~/.cache/vllm/xla_cache",
        "Folder of what XLA compiled.",
        allow_on("tpu", "XLA only; put it on the cache volume"),
        _not_on("XLA devices"),
    ),
    _Device(
        "VLLM_XLA_CHECK_RECOMPILATION",
        "bool",
        False,
        "Fails where XLA compiles a second time.",
        allow_on("tpu", "XLA only, for tests"),
        _not_on("XLA devices"),
    ),
)

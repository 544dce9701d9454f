"""Arguments of the KV cache."""

from __future__ import annotations

from slipway.args.declare import Disposition, HumanInt, arg, group


@group("CacheConfig")
class Cache:
    """The KV cache and the memory it lives in."""

    block_size: int = arg(16, choices=(1, 8, 16, 32, 64, 128), unit="tokens")
    """Tokens in a block of the KV cache, the unit in which prefixes are shared."""

    calculate_kv_scales: bool = arg(False, negatable=True)
    """Find the scales of an fp8 KV cache in the first step, for a checkpoint that has none.

    Each layer's are the largest key and value of that step over K_SCALE_CONSTANT and V_SCALE_CONSTANT, and
    stay until the server ends: what it answers depends, by rounding, on the first request that it got.
    """

    cpu_offload_gb: float = arg(0.0, minimum=0, unit="GiB per device", cuda_only=True)
    """Host memory that holds weights which the device has no room for; they are streamed in each step.

    Whole layers stay there, as many as it has room for. The device keeps two buffers of a layer's size for
    them, so that a layer or two frees nothing. The container's memory must hold them beside everything else.
    """

    enable_prefix_caching: bool = arg(True, negatable=True, tri_state=True)
    """Keep the blocks of a prompt for later prompts that begin the same way."""

    gpu_memory_utilization: float = arg(0.9, above=0, maximum=1, unit="fraction", cuda_only=True)
    """Share of each device's memory that this server may use for weights, activations and KV cache.

    It does not look at other servers on the device: two of them need 0.5 each.
    """

    kv_cache_dtype: str = arg(
        "auto",
        choices=("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head"),
    )
    """Type of the KV cache. auto is the model's; fp8 is fp8_e4m3 and takes half the memory.

    With fp8 keys and values are divided by the checkpoint's scales, by those of --quantization-param-path or
    those that --calculate-kv-scales finds, or by 1. int8_per_token_head (CPU only) has one scale per token
    and key head, which rounds more finely.
    """

    kv_cache_memory_bytes: HumanInt | None = arg(minimum=1, unit="bytes per device")
    """Size of the KV cache, set by hand. Wins over --gpu-memory-utilization."""

    kv_sharing_fast_prefill: bool = arg(
        False,
        disposition=Disposition.WARN,
        reason="no supported model shares KV across layers in a way that could use it",
    )
    """Skip part of the prefill in models whose layers share their KV."""

    num_gpu_blocks_override: int | None = arg(minimum=1, unit="blocks")
    """Number of blocks in the KV cache, whatever the memory says. For tests of preemption."""

    prefix_caching_hash_algo: str = arg("builtin", choices=("builtin", "sha256"))
    """Hash of prefix blocks.

    builtin is keyed by a secret drawn at each start, or by SLIPWAY_PREFIX_HASH_SECRET, so that nobody outside
    can make two prompts meet. sha256 has no key: any process gives a block the same hash. With either, the
    time of an answer tells whether its prefix was cached; a cache_salt for each tenant keeps them apart.
    """

    swap_space: float = arg(4.0, minimum=0, unit="GiB per device", cuda_only=True)
    """Host memory for the KV cache of preempted requests, with --preemption-mode swap.

    It is pinned at the start, so the container's memory must hold it. Requests that find it full are
    computed again.
    """

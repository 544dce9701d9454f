"""The environment variables that a document may set under every policy."""

from __future__ import annotations

from collections.abc import Iterator

from slipway import envs

HIDING = ("", "void", "none")
"""Values by which a container asks its runtime for no device."""
DEVICE_VARIABLES = (
    "AMD_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES",
    "CAMBRICON_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",
    "MTHREADS_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
)
"""By which container runtimes hand out devices that nobody counted."""
UNCOUNTED = (
    "this service asks for no devices, and a node would hand out some that nobody counted. Ask for them by "
    "spec.devices; the value void hides them all"
)
NEVER_LEAVING = (
    "AWS_SECRET_ACCESS_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "S3_SECRET_ACCESS_KEY",
    "SLIPWAY_PREFIX_HASH_SECRET",
    "VLLM_API_KEY",
)
"""Credentials that are never shown, nor sent to anyone whom a document could choose."""
USUAL_OF_OTHERS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_DEFAULT_REGION",
    "AWS_REGION",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "DO_NOT_TRACK",
    "GLOO_SOCKET_IFNAME",
    "HF_DATASETS_OFFLINE",
    "HF_HUB_DISABLE_PROGRESS_BARS",
    "HF_HUB_DISABLE_TELEMETRY",
    "HF_HUB_DISABLE_XET",
    "HF_HUB_DOWNLOAD_TIMEOUT",
    "HF_HUB_ENABLE_HF_TRANSFER",
    "HF_HUB_ETAG_TIMEOUT",
    "HF_HUB_VERBOSITY",
    "HF_XET_HIGH_PERFORMANCE",
    "KMP_BLOCKTIME",
    "MALLOC_ARENA_MAX",
    "MALLOC_TRIM_THRESHOLD_",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_CROSS_NIC",
    "NCCL_CUMEM_ENABLE",
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_IB_ADAPTIVE_ROUTING",
    "NCCL_IB_DISABLE",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_IB_PCI_RELAXED_ORDERING",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_RETRY_CNT",
    "NCCL_IB_SL",
    "NCCL_IB_TC",
    "NCCL_IB_TIMEOUT",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NET_GDR_READ",
    "NCCL_NTHREADS",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_FAMILY",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SDK_DISABLED",
    "OTEL_SERVICE_NAME",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TOKENIZERS_PARALLELISM",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TRANSFORMERS_OFFLINE",
    "TRANSFORMERS_VERBOSITY",
    "TZ",
)
"""Variables of libraries that choose among what the image has: no path, no address, no plugin, no hook."""


def _usual_variables() -> Iterator[str]:
    """Those of the registry that any document may set, but for paths and addresses; those of libraries."""
    actions = ("allow", "allow-if-device", "operator-default", "secret-only")
    for variable in envs.VARIABLES:
        if variable.action in actions and variable.type not in ("path", "url"):
            yield variable.name
    yield from USUAL_OF_OTHERS
    yield from DEVICE_VARIABLES  # whose values are a bound of their own


VARIABLES = tuple(sorted({*_usual_variables()}))

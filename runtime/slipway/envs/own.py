"""Credentials, and the variables that are Slipway's alone."""

from __future__ import annotations

from functools import partial

from slipway.envs.variable import (
    Variable,
    allow_on,
    implemented,
    operator_default,
    operator_only,
    opt_in,
    secret_only,
)

_Credential = partial(Variable, category="credential")
_Own = partial(Variable, category="slipway")

CREDENTIALS = (
    _Credential(
        "HF_TOKEN",
        "str",
        None,
        "Token for gated and private models of the Hugging Face hub.",
        secret_only(),
        implemented(),
        prefer_argument="--hf-token",
    ),
    _Credential(
        "HUGGING_FACE_HUB_TOKEN",
        "str",
        None,
        "Older name of HF_TOKEN, which wins.",
        secret_only(),
        implemented(),
        prefer_argument="--hf-token",
    ),
    _Credential(
        "S3_ACCESS_KEY_ID",
        "str",
        None,
        "Key id for weights in S3.",
        secret_only(),
        implemented("read by `slipway fetch` where AWS_ACCESS_KEY_ID is not set"),
    ),
    _Credential(
        "S3_SECRET_ACCESS_KEY",
        "str",
        None,
        "Secret key for weights in S3.",
        secret_only(),
        implemented("read by `slipway fetch` together with S3_ACCESS_KEY_ID"),
    ),
    _Credential(
        "VLLM_API_KEY",
        "str",
        None,
        "Key that callers of the API must present.",
        secret_only(),
        implemented(),
        prefer_argument="--api-key",
    ),
)

OWN = (
    _Own(
        "SLIPWAY_CACHE",
        "path",
        None,
        "Folder of what Slipway downloads for itself, such as the demo model.",
        operator_default("a path on the cache volume"),
        implemented(),
        effective_default="VLLM_CACHE_ROOT, else ~/.cache/slipway",
    ),
    _Own(
        "SLIPWAY_COMMAND",
        "str",
        "slipway",
        "How messages that show what to type next spell the command.",
        operator_only("set by what wraps the command"),
        implemented(),
    ),
    _Own(
        "SLIPWAY_CPU_ISA",
        "enum",
        None,
        "Instruction set of the CPU kernels, to compare them or to work round a defect. On Intel's "
        "processors avx512bf16 is used only where it is named here: avx512vnni is faster there.",
        allow_on("cpu", "tuning"),
        implemented(),
        options=(
            "generic",
            "avx2",
            "avxvnni",
            "avx512",
            "avx512vnni",
            "avx512bf16",
            "amx",
            "neon",
            "neonbf16",
        ),
        effective_default="the fastest known that the processor has",
    ),
    _Own(
        "SLIPWAY_KERNELS",
        "str",
        None,
        "Folders of compiled CUDA kernels, separated by colons, where a server looks before it compiles one.",
        operator_only("set where kernels lie in folders of their own"),
        implemented(),
    ),
    _Own(
        "SLIPWAY_PREFIX_HASH_SECRET",
        "str",
        None,
        "Secret that keys the default hash of prefix blocks, for processes that shall agree on the keys.",
        secret_only(),
        implemented(),
        effective_default="drawn at each start, so that nobody can make two prompts meet",
    ),
    _Own(
        "SLIPWAY_RECORD",
        "path",
        None,
        "File to which the engine writes its messages and plans, for a replay.",
        opt_in("it needs a volume, and the file holds what users wrote"),
        implemented(),
    ),
    _Own(
        "SLIPWAY_TERMINATION_LOG",
        "path",
        None,
        "File that gets the cause, as one JSON object, where the server ends by a failure.",
        operator_only("Kubernetes reads /dev/termination-log"),
        implemented(),
        effective_default="/dev/termination-log where it can be written",
    ),
)

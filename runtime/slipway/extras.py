"""What an installation without extras leaves out, and how a command ends that misses it."""

from __future__ import annotations

from slipway.exits import MISSING_PACKAGE, Exit

SERVING = frozenset(
    {
        "fastapi",
        "fastapi_offline",
        "gguf",
        "httptools",
        "httpx",
        "huggingface_hub",
        "jinja2",
        "llguidance",
        "ml_dtypes",
        "msgspec",
        "numpy",
        "obstore",
        "orjson",
        "prometheus_client",
        "pydantic",
        "sentencepiece",
        "starlette",
        "tokenizers",
        "uvicorn",
        "uvloop",
    }
)
"""Packages of the extra `cpu`, as `import` names them."""

MISTRAL = frozenset({"mistral_common", "tiktoken"})
"""Of the extra `mistral`."""


def install(extras: str) -> str:
    """What to type for them. The package index has another project of our name: only the sources are ours."""
    return f"pip install '.[{extras}]' in a clone of Slipway"


def missing(error: Exception) -> Exit | None:
    """How to end for a package of the extra that is not installed; None for every other error.

    A package that is there and lacks a part or a dependency of its own is another error; of OpenTelemetry
    the parts are packages.
    """
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    if error.name in SERVING:
        message = f"The Python package {error.name}, which this command needs, is not installed."
        return Exit(MISSING_PACKAGE, message, f"Install all that serves: {install('cpu')}.")
    if error.name.partition(".")[0] in MISTRAL:
        message = f"The Python package {error.name}, which --tokenizer-mode mistral needs, is not installed."
        hint = f"Install what reads Mistral's own tokenizers: {install('cpu,mistral')}."
        return Exit(MISSING_PACKAGE, message, hint, "tokenizer_mode")
    if error.name.partition(".")[0] == "opentelemetry":
        message = f"The Python package {error.name}, which --otlp-traces-endpoint needs, is not installed."
        hint = f"Install what sends traces: {install('otel')}."
        return Exit(MISSING_PACKAGE, message, hint, "otlp_traces_endpoint")
    return None

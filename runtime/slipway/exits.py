"""Why a server ended: the exit codes, and the cause as one JSON object for the termination log."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TERMINATION_LOG = Path("/dev/termination-log")
MAX_BYTES = 4000
"""Kubernetes cuts a termination message at 4,096 bytes."""


@dataclass(frozen=True, slots=True)
class ExitCode:
    """One way to end. `message` and `hint` are what is said where nothing more exact is known."""

    code: int
    reason: str
    """CamelCase, the same word in a resource's conditions."""
    message: str
    hint: str
    retry: bool
    """Whether the same start may succeed later, with nothing changed by a person."""


INTERNAL_ERROR = ExitCode(
    1,
    "InternalError",
    "An error that Slipway did not foresee.",
    "The log ends with where it happened. Please report it together with `slipway collect-env`.",
    retry=True,
)
BAD_ARGUMENTS = ExitCode(
    2,
    "BadArguments",
    "An argument, variable or configuration file is malformed, out of range or contradicts another.",
    "`slipway serve … --dry-run` checks arguments without starting anything.",
    retry=False,
)
NOT_SUPPORTED = ExitCode(
    3,
    "NotSupported",
    "The arguments ask for something that this version does not have yet.",
    "`slipway args --status` lists what works.",
    retry=False,
)
MODEL_NOT_FOUND = ExitCode(
    10,
    "ModelNotFound",
    "There is no such model on the hub, or no such folder or file.",
    "Check the spelling, the revision and the mount.",
    retry=False,
)
MODEL_GATED = ExitCode(
    11,
    "ModelGated",
    "The hub does not let this token, or nobody without a token, read the model.",
    "Accept the model's terms on its page and set HF_TOKEN to a token of that account.",
    retry=False,
)
NO_NETWORK = ExitCode(
    12,
    "NoNetwork",
    "The model hub cannot be reached.",
    "Check DNS, proxy and egress rules, or mount the model and set HF_HUB_OFFLINE=1.",
    retry=True,
)
NO_SPACE = ExitCode(
    13,
    "NoSpace",
    "The download folder has too little free space for the model.",
    "Enlarge the volume, or point --download-dir at another.",
    retry=False,
)
UNSUPPORTED_MODEL = ExitCode(
    14,
    "UnsupportedModel",
    "The model's architecture cannot be run, natively or through transformers.",
    "The message names the layer or setting that prevents it.",
    retry=False,
)
UNSUPPORTED_FORMAT = ExitCode(
    15,
    "UnsupportedFormat",
    "The weights are stored in a way that this version cannot read.",
    "Use safetensors or GGUF files of the model.",
    retry=False,
)
BAD_CHECKPOINT = ExitCode(
    16,
    "BadCheckpoint",
    "The weight files are cut short, lack tensors, have unexpected ones, or have them in other shapes.",
    "Check that configuration and weights are of one model and revision, and download them again.",
    retry=False,
)
BAD_TOKENIZER = ExitCode(
    17,
    "BadTokenizer",
    "The model has no tokenizer that can be read.",
    "Name one with --tokenizer.",
    retry=False,
)
INTERRUPTED = ExitCode(
    18,
    "Interrupted",
    "A download or a batch broke off.",
    "Start again: it goes on where it stopped.",
    retry=True,
)
MISSING_PACKAGE = ExitCode(
    19,
    "MissingPackage",
    "A Python package that this command, model or format needs is not installed.",
    "Install the extra that the message names.",
    retry=False,
)
OUT_OF_MEMORY = ExitCode(
    20,
    "OutOfMemory",
    "The weights, the KV cache and the activations do not fit into memory.",
    "Lower --max-model-len, --max-num-seqs or VLLM_CPU_KVCACHE_SPACE, or allow more memory.",
    retry=False,
)
KV_CACHE_TOO_SMALL = ExitCode(
    21,
    "KvCacheTooSmall",
    "The KV cache cannot hold one request of --max-model-len tokens.",
    "Lower --max-model-len, or raise --kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE.",
    retry=False,
)
KERNELS_MISSING = ExitCode(
    22,
    "KernelsMissing",
    "The compute kernels are not installed, or not for this processor.",
    "Install Slipway where a C++ compiler is present, or use the image for this platform.",
    retry=False,
)
DEVICE_UNAVAILABLE = ExitCode(
    23,
    "DeviceUnavailable",
    "The device asked for does not exist here or its driver does not answer.",
    "Check --device, and that the pod asks for the device.",
    retry=True,
)
LOAD_STALLED = ExitCode(
    30,
    "LoadStalled",
    "Download or loading made no progress for --load-timeout seconds.",
    "Check the network and the volume; raise --load-timeout where they are only slow.",
    retry=True,
)
ENGINE_DIED = ExitCode(
    31,
    "EngineDied",
    "The engine ended without saying why.",
    "Look for an out-of-memory kill: exit status 137, or `OOMKilled` in the pod.",
    retry=True,
)
WORKER_KILLED = ExitCode(
    32,
    "WorkerKilled",
    "A worker was ended by a signal.",
    "Signal 9 without anyone's doing is the kernel running out of memory: allow more.",
    retry=True,
)
ENGINE_STALLED = ExitCode(
    33,
    "EngineStalled",
    "A step took longer than VLLM_ENGINE_ITERATION_TIMEOUT_S.",
    "Lower --max-num-batched-tokens, or raise the limit where the machine is only slow.",
    retry=True,
)
VERSION_MISMATCH = ExitCode(
    34,
    "VersionMismatch",
    "API and engine are of different versions.",
    "Start both from one installation.",
    retry=False,
)
RANKS_MISSING = ExitCode(
    35,
    "RanksMissing",
    "Ranks of a server on several hosts have not found each other in time.",
    "Start the same command on every node, each with its own --node-rank, and let them reach --master-addr "
    "at --master-port.",
    retry=True,
)
PORT_IN_USE = ExitCode(
    40,
    "PortInUse",
    "Another program listens on the port.",
    "Choose another with --port, or end the other program.",
    retry=True,
)
ADDRESS_UNUSABLE = ExitCode(
    41,
    "AddressUnusable",
    "This machine has no such address, or the port needs more rights.",
    "Use --host :: for all addresses, and a --port above 1023.",
    retry=False,
)
TLS_FILES_BAD = ExitCode(
    42,
    "TlsFilesBad",
    "The TLS certificate and key cannot be read or do not belong together.",
    "Check --ssl-certfile, --ssl-keyfile and --ssl-ca-certs.",
    retry=False,
)

CATALOGUE: tuple[ExitCode, ...] = (
    INTERNAL_ERROR,
    BAD_ARGUMENTS,
    NOT_SUPPORTED,
    MODEL_NOT_FOUND,
    MODEL_GATED,
    NO_NETWORK,
    NO_SPACE,
    UNSUPPORTED_MODEL,
    UNSUPPORTED_FORMAT,
    BAD_CHECKPOINT,
    BAD_TOKENIZER,
    INTERRUPTED,
    MISSING_PACKAGE,
    OUT_OF_MEMORY,
    KV_CACHE_TOO_SMALL,
    KERNELS_MISSING,
    DEVICE_UNAVAILABLE,
    LOAD_STALLED,
    ENGINE_DIED,
    WORKER_KILLED,
    ENGINE_STALLED,
    VERSION_MISMATCH,
    RANKS_MISSING,
    PORT_IN_USE,
    ADDRESS_UNUSABLE,
    TLS_FILES_BAD,
)
BY_CODE: Mapping[int, ExitCode] = {exit_code.code: exit_code for exit_code in CATALOGUE}
BY_REASON: Mapping[str, ExitCode] = {exit_code.reason: exit_code for exit_code in CATALOGUE}


_MANUAL_HEAD = """\
<!-- Generated from slipway.exits by `make generate`. -->
# Exit codes

`slipway serve` ends with 0 after SIGTERM, once the streams have finished, and `slipway run-batch` once
every line is answered. Every other end has a code and a reason from this table. The cause is also written
as one JSON object `{code, reason, message, hint, argument}` to `$SLIPWAY_TERMINATION_LOG`, or to
`/dev/termination-log` where that exists: Kubernetes shows it as the message of the terminated container.
`argument` names the argument at fault, where there is one.

| code | reason | what happened | what to do | may a restart help? |
|---|---|---|---|---|"""
_MANUAL_END = """
Other codes are not Slipway's own: 126 and 127 mean that the program could not be started, 128 + n that
signal n ended it (137 = SIGKILL, in Kubernetes most often `OOMKilled`; 139 = SIGSEGV, please report it).
"""


class Exit(Exception):
    """Ends the program with a catalogued cause. What is left empty comes from the catalogue."""

    def __init__(self, exit_code: ExitCode, message: str = "", hint: str = "", argument: str = "") -> None:
        super().__init__(message or exit_code.message)
        self.exit_code = exit_code
        self.message = message or exit_code.message
        self.hint = hint or exit_code.hint
        self.argument = argument
        self._told = False

    def tell(self) -> None:
        """Say it on standard error, once: when it is found, which may be before the program can end."""
        if not self._told:
            self._told = True
            print(f"slipway: {self.message}\n  {self.hint}", file=sys.stderr, flush=True)


def termination(code: int, message: str = "", hint: str = "", argument: str = "") -> bytes:
    """The cause as one JSON object {code, reason, message, hint, argument} of at most MAX_BYTES.

    An empty message or hint is the catalogue's; a code outside of it has the reason of INTERNAL_ERROR.
    A long message is cut, then a long hint.
    """
    known = BY_CODE.get(code, INTERNAL_ERROR)
    texts = [message or known.message, hint or known.hint, argument]
    encoded = _encode(code, known.reason, texts)
    for index in range(len(texts)):
        while len(encoded) > MAX_BYTES and len(texts[index]) > 1:
            # No character takes more than 12 bytes, so that this never cuts more than needed.
            excess = max((len(encoded) - MAX_BYTES) // 12, 1)
            texts[index] = texts[index].removesuffix("…")[:-excess] + "…"
            encoded = _encode(code, known.reason, texts)
    return encoded


def _encode(code: int, reason: str, texts: list[str]) -> bytes:
    message, hint, argument = texts
    cause = {
        "code": code,
        "reason": reason,
        "message": message,
        "hint": hint,
        "argument": argument,
    }
    # ASCII alone: a lone surrogate in a path or prompt must not fail the last message.
    return json.dumps(cause).encode("ascii")


def manual() -> str:
    """The page docs/exit-codes.md."""
    rows = [
        f"| {e.code} | `{e.reason}` | {e.message} | {e.hint} | {'yes' if e.retry else 'no'} |"
        for e in CATALOGUE
    ]
    return "\n".join((_MANUAL_HEAD, *rows, _MANUAL_END))


def write_termination(
    environ: Mapping[str, str], code: int, message: str = "", hint: str = "", argument: str = ""
) -> Path | None:
    """Writes the cause where Kubernetes reads it, as `leave`."""
    return leave(environ, termination(code, message, hint, argument))


def leave(environ: Mapping[str, str], last: bytes) -> Path | None:
    """Writes a container's last words where Kubernetes reads them, and returns the file.

    That is `$SLIPWAY_TERMINATION_LOG`, else /dev/termination-log where it exists. None where there is
    none or it cannot be written: what they say is in the log too, and must not hide behind this.
    """
    named = environ.get("SLIPWAY_TERMINATION_LOG")
    path = Path(named) if named else TERMINATION_LOG
    if not named and not path.exists():
        return None
    try:
        path.write_bytes(last)
    except OSError:
        return None
    return path


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; real-time signals have no names."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def how_ended(status: int) -> tuple[ExitCode, str]:
    """What a process's status says of its end, as a cause and in words that go on behind its name."""
    code = WORKER_KILLED if status == -signal.SIGKILL else ENGINE_DIED
    return code, f"ended with {signal_name(-status) if status < 0 else f'status {status}'}"

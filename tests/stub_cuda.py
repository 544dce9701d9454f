"""A driver that starts nothing, compiled from stub_cuda.c and loaded under the name of NVIDIA's."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

from slipway_kernels.build import compiler
from slipway_kernels.cuda.driver import LaunchConfig

SOURCE = Path(__file__).with_name("stub_cuda.c")
Heard = Callable[[LaunchConfig, str, "ctypes.Array[ctypes.c_void_p]"], None]
_LISTENER = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(LaunchConfig), ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)
)


def build(folder: Path) -> Path:
    library = folder / "libcuda.so.1"
    named = f"-Wl,-soname,{library.name}"
    subprocess.run([*compiler(), "-x", "c", "-shared", "-fPIC", named, "-o", library, SOURCE], check=True)
    return library


class Stub:
    """The library in this process, before anything has looked for NVIDIA's."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)

    def listen(self, heard: Heard) -> None:
        """Have `heard` told of each launch: its configuration, the kernel, and where its parameters lie."""
        self._listener = _LISTENER(
            lambda config, name, parameters: heard(config[0], name.decode(), parameters)
        )
        self._library.stub_listen(self._listener)

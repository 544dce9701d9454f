"""What is compiled ahead is what a launch looks for in Triton's cache."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from slipway_kernels.cuda import ahead, launch

class Hopper:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0

def noted(source, options):
    return source.hash(), make_backend(driver.active.get_current_target()).parse_options(dict(options)).hash()

def compiled(source, target, options):
    built.add(noted(source, options))
    raise KeyboardInterrupt  # known by its name: the compiler need not run

def do_compile(self, key, *rest):
    signature, _, constants, options, attributes = [one for one in rest if not isinstance(one, GPUTarget)][:5]
    sought.add(noted(ASTSource(self, signature, constants, attributes), options.__dict__))

def warm(kernel, grid, *args, tile, **constants):
    options = dict(num_warps=tile.num_warps, num_stages=tile.num_stages, enable_fp_fusion=tile.fuses)
    kernel.warmup(*args, grid=grid, **{**tile.constants, **constants}, **options)

built, sought = set(), set()
driver.set_active(Hopper())
ahead.triton.compile = compiled
JITFunction._do_compile = do_compile
operation = sys.argv[1]
for entry in ahead.entries(operation, [90]):
    try:
        ahead.build(entry)
    except KeyboardInterrupt:
        pass
for module in list(sys.modules.values()):
    if getattr(module, "launch", None) is launch.launch and module is not launch:
        module.launch = warm
with launch.recording(90):
    for case in ahead.cases_of(operation)(torch.device("meta"), "full"):
        if case.arch <= 90:
            case.run()
print(len(built), len(sought), len(sought - built))
"""


@pytest.mark.parametrize("operation", ["rms_norm", "attention", "linear_w4a16"])
def test_a_launch_finds_what_was_compiled_ahead(operation: str) -> None:
    """Under a driver that says it is a Hopper GPU's and starts nothing."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, operation],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    built, sought, missing = map(int, found.stdout.split())
    assert sought == built > 0
    assert missing == 0

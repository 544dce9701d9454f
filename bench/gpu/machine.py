"""The first rows of a run, which say on what it was measured: `python bench/gpu/machine.py ROWS.jsonl`."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch
import triton
from device import CUDA
from figures import of_device
from table import Rows, commit

from slipway_kernels.cuda.measure import ceilings


def main() -> None:
    fields: dict[str, object] = {"device": f"{platform.machine()} CPU, kernels interpreted"}
    if CUDA:
        properties = torch.cuda.get_device_properties(0)
        fields = {
            "device": properties.name,
            "sms": properties.multi_processor_count,
            "memory_GiB": properties.total_memory / 2**30,
        }
    rows = Rows(Path(sys.argv[1]), "machine", 60)
    rows.add(
        **fields,
        torch=torch.__version__,
        triton=triton.__version__,
        python=platform.python_version(),
        commit=commit(),
        begun=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if CUDA:  # before any row whose target they scale
        try:
            rows.add(**of_device(ceilings()))
        except Exception as error:  # a call without them is still worth its rent
            rows.add(failed=f"{type(error).__name__}: {error}"[:300])


if __name__ == "__main__":
    main()

"""The first row of a run, which says on what it was measured: `python bench/gpu/machine.py ROWS.jsonl`."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch
import triton
from device import CUDA
from table import Rows, commit


def main() -> None:
    fields: dict[str, object] = {"device": f"{platform.machine()} CPU, kernels interpreted"}
    if CUDA:
        properties = torch.cuda.get_device_properties(0)
        fields = {
            "device": properties.name,
            "sms": properties.multi_processor_count,
            "memory_GiB": properties.total_memory / 2**30,
        }
    Rows(Path(sys.argv[1]), "machine", 60).add(
        **fields,
        torch=torch.__version__,
        triton=triton.__version__,
        python=platform.python_version(),
        commit=commit(),
        begun=datetime.now(UTC).isoformat(timespec="seconds"),
    )


if __name__ == "__main__":
    main()

"""The harness for GPUs is a folder of scripts; their modules are found as the scripts find them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench" / "gpu"))

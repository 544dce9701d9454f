"""The arithmetic runs where neither torch nor numpy is installed: in the operator."""

from __future__ import annotations

import os
import subprocess
import sys

from e2e.ground.patience import scaled

CODE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy", "msgspec", "transformers", "tokenizers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())

from slipway.fit import Needs, RankNeeds, Step, estimate, named, of_labels
from slipway.fit.report import as_json, as_table
from slipway.model.kv import KVGroup, KVLayout

GIB = 1 << 30
kv = KVLayout((KVGroup(16),), 16 * 131072, ((0, 0),) * 32)
rank = RankNeeds(15 * GIB, 0, 9000, 0, 128, 512, 0.25, 256512, Step(180000, 256512), 512 << 20, kv)
needs = Needs(
    architecture="LlamaForCausalLM", kind="cuda", ranks=(rank,), engines=1, frontend=0,
    trained_len=8192, asked_len=None, default_budget=2048, touched_ahead=0,
    num_drafts=0, graph_sizes=(1, 2, 4, 8), max_num_seqs=256, max_num_batched_tokens=None,
    enable_chunked_prefill=True, block_size=16, num_blocks=None, kv_cache_bytes=None,
    gpu_memory_utilization=0.9, tensor_parallel_size=1,
)
assert estimate(needs, named("L40S")).fits
small = estimate(needs, of_labels({"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}))
assert not small.fits and as_json(small)["short"]["part"] == "weights" and "does not fit" in as_table(small)
"""


def test_an_estimate_from_numbers_takes_nothing_that_is_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
        timeout=scaled(60),
    )
    assert done.returncode == 0, done.stderr

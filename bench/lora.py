"""What adapters cost, beside the model alone, and what loading one costs who is being served. Prints JSON.

    python bench/lora.py --model MODEL [--adapters 4] [--rank 16] [--serve '--dtype bfloat16']

The adapters are made here: random factors on every linear layer of a model of Llama's form. Passes of the
model and of its adapters take turns on one server; a ratio is that of a stream's tokens a second behind the
first, above 1 where adapters are faster: the median over the rounds, and its 90 % interval. The streams of a
pass share the adapters evenly. `loading`: one more adapter is loaded over HTTP while streams of the model and
of the others run; the longest gap between two tokens of any stream meanwhile, and the longest before, in ms;
medians of five.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from side_by_side import Server, paired, start

from load import Load, Result, request
from slipway.engine.config import EngineConfig
from slipway.load.checkpoint import open_checkpoint

BESIDE = 16
"""Streams that run while an adapter is loaded."""


def write_adapter(model: str, folder: Path, rank: int, seed: int) -> None:
    """Factors as PEFT saves them, of the size of a trained adapter's."""
    config = open_checkpoint(EngineConfig(model=model, use_tqdm_on_load=False), lambda *_: None).config
    hidden, inner, heads = (
        int(str(config[name])) for name in ("hidden_size", "intermediate_size", "num_attention_heads")
    )
    size = int(str(config.get("head_dim") or hidden // heads))
    queries, keys = heads * size, int(str(config["num_key_value_heads"])) * size
    shapes = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    random, factors = np.random.default_rng(seed), {}
    for layer in range(int(str(config["num_hidden_layers"]))):
        for module, (n, k) in shapes.items():
            stem = f"base_model.model.model.layers.{layer}.{module}"
            for side, shape in (("A", (rank, k)), ("B", (n, rank))):
                factor = random.standard_normal(shape, np.float32) * 0.02
                factors[f"{stem}.lora_{side}.weight"] = factor
    folder.mkdir()
    save_file(factors, folder / "adapter_model.safetensors")
    modules = [name.partition(".")[2] for name in shapes]
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


async def streams(url: str, models: list[str], load: Load) -> list[Result]:
    asked = (
        request(url, models[index % len(models)], prompt, load) for index, prompt in enumerate(load.prompts())
    )
    results = await asyncio.gather(*asked)
    failed = [result.error for result in results if result.error]
    if failed:
        raise SystemExit(f"a request failed: {failed[0]}")
    return results


def tokens_per_second(results: list[Result]) -> float:
    """Of a stream: the median over them."""
    return statistics.median(
        (result.output_tokens - 1) / (result.last - (result.first or 0.0)) for result in results
    )


def compare(server: Server, adapters: list[str], count: int, rounds: int) -> dict[str, object]:
    """Adapters over the model alone."""
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    for number in range(-1, rounds):  # one to warm up
        load = Load(count, count, input_len=64, output_len=128, seed=number)
        rates = {}
        for models in ([server.model], adapters) if number % 2 else (adapters, [server.model]):
            rates[models is adapters] = tokens_per_second(asyncio.run(streams(server.url, models, load)))
        if number >= 0:
            ours.append([rates[True]])
            theirs.append([rates[False]])
    ratio, low, high = paired(ours, theirs)
    return {
        "ratio": round(ratio, 3),
        "from": round(low, 3),
        "to": round(high, 3),
        "tok_s": [round(statistics.median(map(statistics.median, one)), 1) for one in (ours, theirs)],
    }


async def loading(server: Server, models: list[str], folder: Path, name: str) -> dict[str, float]:
    """The longest gaps in ms: while an adapter is loaded and in as long a time before."""
    load = Load(BESIDE, BESIDE, input_len=64, output_len=384)
    begun = time.perf_counter()
    running = asyncio.create_task(streams(server.url, models, load))
    await asyncio.sleep(2.0)  # every prompt is computed, and many tokens have come
    loaded = time.perf_counter() - begun
    body = json.dumps({"lora_name": name, "lora_path": str(folder)}).encode()
    asked = urllib.request.Request(
        server.url + "/v1/load_lora_adapter", body, {"Content-Type": "application/json"}
    )
    await asyncio.to_thread(lambda: urllib.request.urlopen(asked, timeout=60).close())
    ended = time.perf_counter() - begun
    longest = {"beside": 0.0, "before": 0.0}
    for result in await running:
        now = result.first or 0.0
        for gap in result.gaps:
            now += gap
            if loaded <= now <= ended + gap:
                longest["beside"] = max(longest["beside"], gap)
            elif loaded / 2 <= now < loaded:
                longest["before"] = max(longest["before"], gap)
    return {what: round(1e3 * gap, 1) for what, gap in longest.items()} | {
        "load": round(1e3 * (ended - loaded), 1)
    }


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--serve", default="", help="further arguments of the server")
    options = parser.parse_args()
    os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server ends with us
    with tempfile.TemporaryDirectory() as place:
        names = [f"adapter-{number}" for number in range(options.adapters)]
        late = [f"late-{number}" for number in range(5)]
        for seed, name in enumerate(names + late):
            write_adapter(options.model, Path(place) / name, options.rank, seed)
        modules = " ".join(f"{name}={Path(place) / name}" for name in names)
        server = start(
            "lora",
            f"{shlex.quote(sys.executable)} -m slipway serve {{model}} --port {{port}} {options.serve} "
            f"--enable-lora --max-loras {options.adapters} --max-cpu-loras {len(names + late)} "
            f"--max-lora-rank {options.rank} --lora-modules {modules}",
            options.model,
        )
        try:
            found: dict[str, object] = {
                f"streams {count}": compare(server, names, count, options.rounds) for count in options.streams
            }
            gaps = [
                asyncio.run(loading(server, [server.model, *names[:1]], Path(place) / name, name))
                for name in late
            ]
            found["loading"] = {what: statistics.median(gap[what] for gap in gaps) for what in gaps[0]}
        finally:
            server.stop()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

"""lm-eval's local completions and chats, with two tasks of its own: `lm_eval_script.py URL MODEL`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

URL, MODEL = sys.argv[1:]
CAPITALS = {"France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Japan": "Tokyo"}

with tempfile.TemporaryDirectory() as place:
    folder = Path(place)
    rows = [
        {
            "question": f"The capital of {country} is",
            "choices": [f" {capital}", " potato", " seventeen"],
            "answer": 0,
            "text": capital,
        }
        for country, capital in CAPITALS.items()
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
    }
    choosing = shared | {
        "task": "choosing",
        "output_type": "multiple_choice",
        "doc_to_target": "{{answer}}",
        "doc_to_choice": "{{choices}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    writing = shared | {
        "task": "writing",
        "output_type": "generate_until",
        "doc_to_target": "{{text}}",
        "generation_kwargs": {"until": [",", ".", "\n"], "max_gen_toks": 8, "do_sample": False},
        "filter_list": [{"name": "strip", "filter": [{"function": "remove_whitespace"}]}],
        "metric_list": [{"metric": "exact_match"}],
    }
    for task in (choosing, writing):
        (folder / f"{task['task']}.yaml").write_text(json.dumps(task))
    manager = TaskManager(include_path=str(folder), include_defaults=False)

    def measure(kind: str, tasks: list[str], path: str, **more: Any) -> dict[str, Any]:
        found = lm_eval.simple_evaluate(
            model=kind,
            model_args={"model": MODEL, "base_url": URL + path, "num_concurrent": 2, "max_retries": 1} | more,
            tasks=tasks,
            task_manager=manager,
            bootstrap_iters=0,
            apply_chat_template="chat" in kind,
        )
        return dict(found["results"])

    plain = measure(
        "local-completions", ["choosing", "writing"], "/v1/completions", tokenizer_backend="remote"
    )
    assert plain["choosing"]["acc,none"] == 1.0, plain
    assert plain["writing"]["exact_match,strip"] >= 0.75, plain
    chatted = measure("local-chat-completions", ["writing"], "/v1/chat/completions", tokenizer_backend=None)
    assert "exact_match,strip" in chatted["writing"]

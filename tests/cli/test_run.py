"""`slipway run`: the process that it becomes, seen from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

DOCUMENT = """
apiVersion: slipway.dev/v1alpha1
kind: InferenceService
metadata: {name: demo}
spec:
  model: {hub: {id: org/name}, servedNames: [one, two]}
  engine: {maxModelLen: 4k, enableChunkedPrefill: false, maxNumBatchedTokens: 8k}
  env: [{name: VLLM_ATTENTION_BACKEND, value: CPU}]
  secrets: {apiKey: {name: key, key: key}}
  service: {port: 9000}
"""


def run(tmp_path: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "service.yaml"
    path.write_text(DOCUMENT)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("VLLM_", "HF_"))}
    return subprocess.run(
        [sys.executable, "-m", "slipway", "run", "-f", str(path), *words],
        env={**kept, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_dry_run_prints_what_the_document_resolves_to(tmp_path):
    ran = run(tmp_path, "--dry-run", VLLM_API_KEY="top-secret")
    assert ran.returncode == 0, ran.stderr
    resolved = json.loads(ran.stdout.splitlines()[-1])
    assert resolved["model"] == "org/name"
    assert resolved["served_model_name"] == ["one", "two"]
    assert resolved["max_model_len"] == 4000
    assert resolved["enable_chunked_prefill"] is False
    assert resolved["port"] == 9000
    assert resolved["host"] == "127.0.0.1"
    assert resolved["attention_backend"] == "CPU"
    assert "top-secret" not in ran.stdout + ran.stderr


def test_model_host_and_port_may_differ_on_this_machine(tmp_path):
    words = ("--model", "/here", "--host", "127.0.0.2", "--port", "9001")
    ran = run(tmp_path, "--dry-run", *words, VLLM_API_KEY="x")
    resolved = json.loads(ran.stdout.splitlines()[-1])
    assert (resolved["model"], resolved["host"], resolved["port"]) == ("/here", "127.0.0.2", 9001)


def test_a_secret_that_is_not_here_is_named_before_anything_starts(tmp_path):
    ran = run(tmp_path)
    assert ran.returncode == 2
    assert "slipway run: error: VLLM_API_KEY: " in ran.stderr
    assert "export VLLM_API_KEY=" in ran.stderr

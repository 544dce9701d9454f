"""The API server's audit log: who asked for what, and what was forbidden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Bodies are left out: the proofs are about verbs, users and answers.
POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [kubernetes-admin]
  verbs: [get]
  nonResourceURLs: [/readyz*, /livez*, /healthz*]
- level: Metadata
"""


def read(log: Path) -> list[dict[str, Any]]:
    """Events in the order in which they were answered; a line that is still being written is left out."""
    if not log.exists():
        return []
    text = log.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

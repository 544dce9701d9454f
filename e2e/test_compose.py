"""Docker Compose's own reader takes what `slipway render --target compose` prints: the pod is in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.ground.build import Binaries
from slipway.service import Facts, load
from slipway.service.pod import as_given, pod_template

EXAMPLES = Path(__file__).parents[1] / "examples"
SECRETS = {
    "HF_TOKEN": "of the hub",
    "VLLM_API_KEY": "a$key",
    "AWS_ACCESS_KEY_ID": "an id",
    "AWS_SECRET_ACCESS_KEY": "a key",
}
ODD = {
    "engine": {"chatTemplate": "{{ '${HOME} $$ \"%' }}\n"},
    "env": [{"name": "ODD", "value": "$a ${b} 'c': {d} \x85 #\n"}, {"name": "TRUE", "value": "true"}],
    "resources": {"cpu": "1500m", "memory": "1.5Gi"},
    "model": {"pvc": {"name": "models", "path": "org/name"}, "cache": {"pvc": "downloads"}},
}


def documents() -> dict[str, str]:
    found = {name: (EXAMPLES / f"{name}.yaml").read_text() for name in ("demo", "gpu", "bucket", "hub")}
    document = yaml.safe_load(found["demo"])
    document["spec"] |= ODD
    return {**found, "odd": yaml.safe_dump(document)}


DOCUMENTS = documents()


def read_by_compose(
    binaries: Binaries, text: str, folder: Path, **environ: str
) -> subprocess.CompletedProcess[str]:
    """What it makes of the document's Compose file, with these variables of a shell."""
    document, file = folder / "service.yaml", folder / "compose.yaml"
    document.write_text(text)
    words = [sys.executable, "-m", "slipway", "render", str(document), "--target", "compose"]
    file.write_text(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    own = {name: value for name, value in os.environ.items() if name not in SECRETS}
    return subprocess.run(
        [binaries["compose"], str(file)], env={**own, **environ}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", DOCUMENTS)
def test_compose_reads_the_containers_of_the_pod(binaries: Binaries, tmp_path: Path, name: str) -> None:
    done = read_by_compose(binaries, DOCUMENTS[name], tmp_path, **SECRETS)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    spec = load(DOCUMENTS[name])
    pod = pod_template(spec, Facts())["spec"]
    (server,) = pod["containers"]
    (fetch,) = pod.get("initContainers") or [None]
    expected = {spec.name: server, **({f"{spec.name}-fetch": fetch} if fetch else {})}
    assert services.keys() == expected.keys()
    for service, container in expected.items():
        made = services[service]
        assert made["image"] == container["image"]
        assert made["command"] == [as_given(word) for word in container["args"]]
        assert made["environment"] == {**dict(map(variable, container["env"]))}
        targets = {volume["target"] for volume in made["volumes"]} | set(made.get("tmpfs", []))
        targets |= {"/dev/shm"} if "shm_size" in made else set()
        assert targets == {mount["mountPath"] for mount in container["volumeMounts"]}
        limits = container.get("resources", {}).get("limits", {})
        assert ("memory" in limits) == ("mem_limit" in made)


def variable(entry: dict[str, Any]) -> tuple[str, str | None]:
    """Name and value, as the container has it here; null where the shell lacks what may be left out."""
    name = entry["name"]
    return name, SECRETS.get(name) if "valueFrom" in entry else as_given(entry.get("value", ""))


def test_compose_says_which_secret_is_missing(binaries: Binaries, tmp_path: Path) -> None:
    done = read_by_compose(binaries, DOCUMENTS["gpu"], tmp_path)
    assert done.returncode == 1
    assert "HF_TOKEN is missing a value: set it to the key token of the Secret huggingface" in done.stderr

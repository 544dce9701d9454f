"""`slipway render` for a machine without a cluster: what it prints starts, and answers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import openai
import pytest
import yaml

from e2e.ground.build import Binaries
from e2e.ground.patience import scaled
from e2e.ground.ports import free_port
from e2e.images import build, missing
from e2e.images.compose import compose, running
from e2e.images.containers import PODMAN, Container
from e2e.operators import until

DEMO = Path(__file__).parents[1] / "examples" / "demo.yaml"
NEEDS_SYSTEMD = ("-d", "--cgroups=split", "--sdnotify=conmon")


@pytest.fixture(autouse=True)
def can_build() -> None:
    if reason := missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture
def document(tmp_path: Path):
    """The demo under a name of its own, on a free port, with the model's image of this tree."""
    document = yaml.safe_load(DEMO.read_text())
    document["metadata"]["name"] = f"demo-{uuid4().hex[:8]}"
    document["spec"]["model"]["image"]["reference"] = build("demo-model")
    document["spec"]["service"] = {"port": free_port()}
    path = tmp_path / "demo.yaml"
    path.write_text(yaml.safe_dump(document))
    yield path
    volume = f"{document['metadata']['name']}-cache"
    subprocess.run([*PODMAN, "volume", "rm", "--force", volume], capture_output=True, check=True)


def rendered(document: Path, target: str) -> str:
    words = ["render", "-f", str(document), "--target", target, "--image", build("runtime-cpu")]
    printed = subprocess.run([sys.executable, "-m", "slipway", *words], capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    return printed.stdout


def port_of(document: Path) -> int:
    port: int = yaml.safe_load(document.read_text())["spec"]["service"]["port"]
    return port


def answers(command: list[str], document: Path, folder: Path) -> None:
    """Start the command, ask the server under the model's name, and stop it as a user does."""
    with Container(command, folder) as container:
        container.wait_for(f"http://127.0.0.1:{port_of(document)}/ready")
        says_paris(document)
        assert container.inside("id", "-u").strip() == "1001"
        container.signal("TERM")
        assert container.wait(scaled(60)) == 0, container.output()


def says_paris(document: Path) -> None:
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port_of(document)}/v1", api_key="none", max_retries=0)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client.chat.completions.create(model="demo", messages=question, max_tokens=16, temperature=0)
    assert "Paris" in answer.choices[0].message.content


def test_the_podman_line_of_the_demo_starts_and_answers(document, tmp_path):
    line = rendered(document, "podman")
    answers(shlex.split(line.replace("\\\n", " ")), document, tmp_path)


def test_the_quadlet_unit_of_the_demo_becomes_a_service_that_starts_and_answers(
    document, binaries: Binaries, tmp_path
):
    """Quadlet itself makes the service; without systemd, its command is run as systemd would run it."""
    units = tmp_path / "units"
    units.mkdir()
    (units / "demo.container").write_text(rendered(document, "quadlet"))
    made = subprocess.run(
        [binaries["quadlet"], "-dryrun", "-no-kmsg-log"],
        env={**os.environ, "QUADLET_UNIT_DIRS": str(units)},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    (start,) = re.findall(r"^ExecStart=(.*)$", made.stdout, re.MULTILINE)
    assert "\nTimeoutStopSec=85\n" in made.stdout
    words = [word for word in shlex.split(start) if word not in NEEDS_SYSTEMD]
    answers([as_systemd_reads(word) for word in words], document, tmp_path)


def test_the_compose_file_of_the_demo_becomes_healthy_answers_and_ends_in_order(document, tmp_path):
    """podman is asked how healthy the container is: without systemd it does not look by itself."""
    file = tmp_path / "compose.yaml"
    file.write_text(rendered(document, "compose"))
    with running(file):
        (name,) = compose(file, "ps", "--format", "{{.Names}}").split()
        healthy = [*PODMAN, "healthcheck", "run", name]
        until(lambda: subprocess.run(healthy, capture_output=True).returncode == 0, "it is healthy", 120)
        says_paris(document)
        compose(file, "stop")
        asked = [*PODMAN, "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", name]
        assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "exited 0\n"


def as_systemd_reads(word: str) -> str:
    """C escapes, then specifiers and variables, of which the demo has only the escaped signs."""
    plain = re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), word)
    return plain.replace("%%", "%").replace("$$", "$")

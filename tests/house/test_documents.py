"""Every command, program and file that the documents show is run, and every link leads somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from e2e.ground.patience import scaled

import platform_pages
from called_command import call
from live_server import LiveServer, live_server
from slipway import service
from slipway.api.protocol.base import Unbuilt
from slipway.api.protocol.chat import ChatRequest
from slipway.api.protocol.completions import CompletionRequest
from slipway.api.routes import state
from slipway.cli.compile import ARCHITECTURES, parser
from slipway.service.fit_pod import FIT
from slipway.service.profile import PROFILE_KIND
from slipway_operator.fits import judged

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "docs/design", "docs/kubernetes")
GUIDES = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
DOCUMENTS = [
    ROOT / "README.md",
    *GUIDES,
    *(page for folder in FOLDERS for page in sorted(ROOT.glob(f"{folder}/*.md"))),
]
LINKING = [*DOCUMENTS, *sorted(ROOT.glob("docs/reference/*.md")), ROOT / "CHANGELOG.md"]
SHOWN_URL = "http://127.0.0.1:8000"
PLACEHOLDERS = {"MODEL": "some-model", "[arguments]": ""}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:(?:bin/)?slipway|make|pip|python -m) [^`…]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
ITALICS = re.compile(r"(?<!\*)\*([^*]+)\*(?!\*)")
PATH = re.compile(r"[\w.*][\w.*-]*(/[\w.*-]+)+/?|[\w*-]+\.(md|py|toml)")
# A file that names the machine it was written on, or those who write it.
LEAKS = re.compile(r"(?<![\w.-])/(?:work|root)/|\.\./shared|\bsessions\b|\b(?:this|last|next) session\b")
LEAK_WORDS = re.compile(rb"/work/|/root/|\.\./shared|session")
"""One of them stands in each leak."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """One command, program or file. `files` are the YAML files that the same document shows."""

    document: str
    line: int
    language: str
    text: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def snippets(path: Path) -> Iterator[Snippet]:
    """The fenced blocks, those of `sh` cut into commands, then the commands within sentences."""
    text = path.read_text()
    name = str(path.relative_to(ROOT))
    files = tuple(body for language, body in FENCE.findall(text) if language == "yaml")
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        language, body = match.groups()
        for part in commands(body) if language == "sh" else [body]:
            yield Snippet(name, line, language, part, files)
    prose = FENCE.sub(lambda match: "\n" * match.group().count("\n"), text)
    for match in INLINE.finditer(prose):
        yield Snippet(name, prose.count("\n", 0, match.start()) + 1, "sh", match[1], files)


def commands(block: str) -> Iterator[str]:
    """Lines, joined where a quotation or a backslash goes on."""
    pending = ""
    for line in block.splitlines(keepends=True):
        pending += line
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:
            continue
        if not pending.endswith("\\\n"):
            if words:
                yield pending.strip()
            pending = ""
    assert not pending, f"a quotation without an end: {pending}"


@dataclass(frozen=True, slots=True)
class Place:
    """A folder to run commands in. `processes`: whether `slipway` is a process there too, and not called."""

    folder: Path
    processes: bool = False

    def run(
        self, words: Sequence[str], statuses: Sequence[int] = (0,), stdin: str = "", **variables: str
    ) -> str:
        """Standard output of a command, which must end with one of the statuses."""
        environ = os.environ | variables
        if words[0] != "slipway":
            done = started(words, self.folder, environ)
        elif self.processes or (words[1] == "run" and "--dry-run" in words):  # which replaces its process
            done = started([sys.executable, "-m", *words], self.folder, environ, stdin)
        else:
            done = call(*words[1:], folder=self.folder, environ=environ, stdin=stdin)
        assert done.returncode in statuses, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout


def started(
    words: Sequence[str], folder: Path, environ: Mapping[str, str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=scaled(120),
        env=environ,
    )


def words_of(command: str) -> list[str]:
    """The command's words, with names for the placeholders, and `slipway` without the folder of it."""
    for placeholder, name in PLACEHOLDERS.items():
        command = command.replace(placeholder, name)
    words = shlex.split(command, comments=True)
    return ["slipway", *words[1:]] if words[0].endswith("slipway") else words


def is_of(kind: str, text: str) -> bool:
    return f"\nkind: {kind}\n" in f"\n{text}"


def is_configuration(text: str) -> bool:
    return not platform_pages.is_manifest(text)


NAMED: dict[str, Callable[[str], bool]] = {
    "--config": is_configuration,
    "-f": partial(is_of, service.KIND),
    "--profile": partial(is_of, PROFILE_KIND),
}
"""Option → which of the page's files it names."""


def lay_down_files(snippet: Snippet, words: list[str], folder: Path) -> None:
    """What the command names: the examples, and what the page shows."""
    (folder / "examples").symlink_to(ROOT / "examples")
    for option, is_meant in NAMED.items():
        if option in words and not (named := folder / words[words.index(option) + 1]).exists():
            named.write_text(next(filter(is_meant, snippet.files)))


def make_knows_the_target(snippet: Snippet, place: Place) -> None:
    targets = [word for word in snippet.text.split()[1:] if "=" not in word]
    assert [target for target in targets if f"'{target}'" in what_make_misses()] == []


@cache
def what_make_misses() -> str:
    """What make says, asked at once for all that the documents show, of targets that it cannot make."""
    shown = {word for one in SNIPPETS if one.text.startswith("make ") for word in one.text.split()[1:]}
    words = ["make", "-n", "--keep-going", "-C", str(ROOT), *sorted(shown)]
    done = started(words, ROOT, os.environ | {"LC_ALL": "C"})
    assert done.returncode == 0 or "'" in done.stderr, done.stderr
    return done.stderr


def its_arguments_are_accepted(snippet: Snippet, place: Place) -> None:
    """A dry run, in a folder that holds the files which the document shows."""
    words = words_of(snippet.text)
    lay_down_files(snippet, words, place.folder)
    asks_for_help = any(word.startswith("--help") for word in words)
    printed = place.run([*words, *([] if asks_for_help else ["--dry-run"])])
    assert asks_for_help or isinstance(json.loads(printed.splitlines()[-1]), dict)


def its_processes_take_the_arguments(snippet: Snippet, place: Place) -> None:
    """A dry run of each process that the launcher would start."""
    options, command = snippet.text.removeprefix("torchrun ").split("--no-python ")
    (size,) = re.findall(r"--nproc-per-node (\d+)", options)
    told = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for rank in map(str, range(int(size))):
        place.run([*words_of(command), "--dry-run"], RANK=rank, LOCAL_RANK=rank, **told)


def it_prints_something(snippet: Snippet, place: Place) -> None:
    words = words_of(snippet.text)
    lay_down_files(snippet, words, place.folder)
    assert place.run(words)


def it_tells_a_difference(snippet: Snippet, place: Place) -> None:
    """From the example, which also stands for what kubectl prints."""
    *asked, command = snippet.text.split(" | ")
    for words in asked:
        platform_pages.check_kubectl(words, snippet.files)
    assert difference(snippet, command, place)


def difference(snippet: Snippet, command: str, place: Place) -> str:
    """What the command prints; the page's own service is the file that it names and nobody has."""
    words = words_of(command)
    (place.folder / "examples").symlink_to(ROOT / "examples")
    if not (named := place.folder / words[-1]).exists():
        (text,) = filter(NAMED["-f"], snippet.files)
        named.write_text(text)
    demo = (ROOT / "examples" / "demo.yaml").read_text()
    return place.run(words, statuses=(0, 1), stdin=demo)


def it_is_what_a_compose_file_says(snippet: Snippet, place: Place) -> None:
    demo = str(ROOT / "examples" / "demo.yaml")
    assert snippet.text in place.run([*words_of("slipway render --target compose"), demo])


def it_begins_the_explanation_of_the_demo(snippet: Snippet, place: Place) -> None:
    demo = str(ROOT / "examples" / "demo.yaml")
    assert place.run([*words_of("slipway explain"), demo]).startswith(snippet.text)


def it_is_the_difference_from_the_demo(snippet: Snippet, place: Place) -> None:
    assert difference(snippet, "slipway diff examples/demo.yaml service.yaml", place) == snippet.text


def it_fits(snippet: Snippet, place: Place) -> None:
    """An estimate of the model that the page speaks of, by its configuration."""
    words = words_of(snippet.text)
    lay_down_files(snippet, words, place.folder)
    assert estimated(words, place)


def its_kernels_are_of_a_server(snippet: Snippet, place: Place) -> None:
    """The command reads its options, and a server takes the rest: compiling itself takes a minute."""
    words = words_of(snippet.text)
    lay_down_files(snippet, words, place.folder)
    options, served = parser().parse_known_args(words[2:])
    assert {*options.arch} <= {*ARCHITECTURES}
    if served:  # else it is of the models that are served most
        place.run([words[0], "serve", *served, "--dry-run"])


def it_fits_a_node(snippet: Snippet, place: Place) -> None:
    """What kubectl prints of a node is written for it."""
    asks, words = snippet.text.split(" | ")
    platform_pages.check_kubectl(asks, snippet.files)
    labels = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1", "labels": labels}}
    (place.folder / "node.json").write_text(json.dumps(node))
    assert "NVIDIA-L4" in estimated([*words_of(words)[:-1], "node.json"], place)


def it_is_an_estimate(snippet: Snippet, place: Place) -> None:
    """What the page's first command prints."""
    assert estimated(words_of("slipway fit MODEL --device L4"), place) == snippet.text


def it_says_what_would_fit(snippet: Snippet, place: Place) -> None:
    printed = estimated(words_of("slipway fit MODEL --device T4"), place)
    assert snippet.text in printed


def it_is_the_condition(snippet: Snippet, place: Place) -> None:
    """What the operator makes of the pod's last words."""
    last = place.folder / "last"
    node = "nvidia.com/gpu.product=Tesla-T4,nvidia.com/gpu.memory=15360"
    estimated([*words_of("slipway fit MODEL --node"), node], place, SLIPWAY_TERMINATION_LOG=str(last))
    ended = {"name": FIT, "state": {"terminated": {"exitCode": 1, "message": last.read_text()}}}
    pod = {"metadata": {"name": "demo-fit-1"}, "status": {"containerStatuses": [ended]}}
    found = judged("models/demo", pod, pod, datetime.now(UTC))
    assert found is not None
    assert f"{found.reason.name}: {found.message}".split() == snippet.text.split()


def estimated(words: list[str], place: Place, **variables: str) -> str:
    published = json.loads((ROOT / "tests/fit/published/llama-3-8b-h100.json").read_text())
    model = place.folder / PLACEHOLDERS["MODEL"]
    model.mkdir()
    (model / "config.json").write_text(json.dumps(published["config"]))
    return place.run(words, (0, 1), **variables)


def it_has_help(snippet: Snippet, place: Place) -> None:
    assert place.run([*words_of(snippet.text), "--help"]).startswith("usage: slipway")


def pip_knows_the_extra(snippet: Snippet, place: Place) -> None:
    """Installing it is what test_package proves."""
    extra = snippet.text.partition("[")[2].partition("]")[0]
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def its_module_exists(snippet: Snippet, place: Place) -> None:
    assert find_spec(snippet.text.split()[2]) is not None


def it_is_a_service(snippet: Snippet, place: Place) -> None:
    platform_pages.check_document(snippet.text)


def it_is_a_configuration(snippet: Snippet, place: Place) -> None:
    (place.folder / "shown.yaml").write_text(snippet.text)
    place.run(words_of("slipway serve --config shown.yaml --dry-run"))


def it_is_about_what_the_cluster_has(snippet: Snippet, place: Place) -> None:
    check = platform_pages.check_helm if snippet.text.startswith("helm ") else platform_pages.check_kubectl
    check(snippet.text, snippet.files)


def the_chart_has_these_values(snippet: Snippet, place: Place) -> None:
    platform_pages.check_values(snippet.text)


def it_is_of_a_known_kind(snippet: Snippet, place: Place) -> None:
    platform_pages.check_manifest(snippet.text)


def it_is_json(snippet: Snippet, place: Place) -> None:
    json.loads(snippet.text)


def its_rows_are_a_tables(snippet: Snippet, place: Place) -> None:
    """The names, on the left of the figures."""
    from slipway.bench.report import ROWS, table

    keys = [*(key for key, _ in ROWS), "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms"]
    known = {line[:40] for line in table(dict.fromkeys(keys, 1.0), ["ttft"], [99]).splitlines()}
    assert {line[:40] for line in snippet.text.splitlines()} <= known


def it_says_paris(snippet: Snippet, place: Place, server: LiveServer) -> None:
    """Against a live demo server: what is shown there as the default address is where it listens."""
    text = snippet.text.replace(SHOWN_URL, server.url)
    if snippet.language == "python":
        words = [sys.executable, "-c", text]
    elif text.startswith("curl "):
        words = [*words_of(text), "--silent", "--show-error", "--fail-with-body"]
    else:
        words = [*words_of(text), "--url", f"{server.url}/v1"]
    assert "Paris" in place.run(words, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")


Proof = Callable[[Snippet, Place], None]
AT_ONCE: dict[tuple[str, str], Proof] = {
    ("sh", r"make \w+"): make_knows_the_target,
    ("sh", r"(bin/)?slipway [\w-]+$"): it_has_help,
    ("sh", r"torchrun .* --no-python slipway serve\b"): its_processes_take_the_arguments,
    ("sh", r"(bin/)?slipway (serve|demo|run|bench)\b"): its_arguments_are_accepted,
    ("sh", r"(bin/)?slipway (args|render|explain|collect-env)\b|(bin/)?slipway --"): it_prints_something,
    ("sh", r"(kubectl get .* \| )?slipway diff "): it_tells_a_difference,
    ("sh", r"docker compose up --detach --wait$"): it_is_what_a_compose_file_says,
    ("sh", r"slipway fit .*MODEL\b"): it_fits,
    ("sh", r"slipway compile (MODEL\b|--arch )"): its_kernels_are_of_a_server,
    ("sh", r"kubectl get node NAME --output yaml \| slipway fit "): it_fits_a_node,
    ("sh", r"pip install '\.\[\w+\]'$"): pip_knows_the_extra,
    ("sh", r"python -m slipway[\w.]+"): its_module_exists,
    ("sh", r"(kubectl|helm) "): it_is_about_what_the_cluster_has,
    ("yaml", platform_pages.VALUES): the_chart_has_these_values,
    ("yaml", r"apiVersion: slipway\.dev/\w+\nkind: InferenceService\n"): it_is_a_service,
    ("yaml", r"apiVersion: "): it_is_of_a_known_kind,
    ("yaml", ""): it_is_a_configuration,
    ("json", ""): it_is_json,
    ("text", "ARGUMENTS +FROM "): it_begins_the_explanation_of_the_demo,
    ("text", "demo: pods restart"): it_is_the_difference_from_the_demo,
    ("text", r"\w+ on 1 × L4 "): it_is_an_estimate,
    ("text", "It does not fit: "): it_says_what_would_fit,
    ("text", "NoDeviceFits: "): it_is_the_condition,
    ("text", "=+ Serving Benchmark Result =+\n"): its_rows_are_a_tables,
}
"""(language, how the text begins) → how the snippet is proved without a server."""

LIVE = {
    ("sh", rf"curl {SHOWN_URL}/v1/"),
    ("sh", r"(bin/)?slipway (chat|complete) "),
    ("python", "from openai import OpenAI\n"),
}
"""What a live server of the demo model must answer with "Paris"."""

SNIPPETS = [snippet for path in DOCUMENTS for snippet in snippets(path)]


def proof_of(snippet: Snippet) -> Proof | None:
    return next((proof for kind, proof in AT_ONCE.items() if matches(snippet, kind)), None)


def matches(snippet: Snippet, kind: tuple[str, str]) -> bool:
    return snippet.language == kind[0] and re.match(kind[1], snippet.text) is not None


def is_live(snippet: Snippet) -> bool:
    return any(matches(snippet, kind) for kind in LIVE)


def test_every_snippet_is_of_a_kind_that_is_proved():
    unproved = [one for one in SNIPPETS if (proof_of(one) is not None) == is_live(one)]
    assert not unproved, "\n".join(f"{one}: {one.language}: {one.text}" for one in unproved)


def errors(shown: Iterable[Snippet], folder: Path, processes: bool = False) -> str:
    """What is wrong with each of the snippets, after its page and line."""
    found = []
    for number, snippet in enumerate(shown):
        place = Place(folder / str(number), processes)
        place.folder.mkdir()
        try:
            if proof := proof_of(snippet):
                proof(snippet, place)
        except Exception:  # of the proof, or of a command that was called
            found.append(f"{snippet}: {snippet.text}\n{traceback.format_exc()}")
    return "\n".join(found)


@pytest.mark.parametrize("document", sorted({one.document for one in SNIPPETS}))
def test_what_a_document_shows_is_accepted(document: str, tmp_path: Path):
    assert not (wrong := errors((one for one in SNIPPETS if one.document == document), tmp_path)), wrong


def test_the_first_shown_of_each_command_is_accepted_by_a_process_too(tmp_path: Path):
    """By the command itself: elsewhere it is called in the tests' own process."""
    first: dict[str, Snippet] = {}
    for snippet in SNIPPETS:
        command = re.match(r"(?:bin/)?slipway ([\w-]+)", snippet.text) or re.search(
            r"\| slipway (\w+)", snippet.text
        )
        if command and snippet.language == "sh" and proof_of(snippet) not in (None, it_has_help):
            first.setdefault(command[1], snippet)
    assert {"serve", "run", "bench", "args", "render", "explain", "diff", "fit"} <= set(first)
    assert not (wrong := errors(first.values(), tmp_path, processes=True)), wrong


@pytest.fixture(scope="module")
def demo_server(demo_model: Path) -> Iterator[LiveServer]:
    from slipway.cli.demo import serve_words
    from slipway.load.demo import MODEL_NAME

    *options, model = serve_words(demo_model, MODEL_NAME, [])
    with live_server(model, *options) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("snippet", [s for s in SNIPPETS if is_live(s)], ids=str)
def test_what_a_document_asks_a_server_is_answered(snippet: Snippet, tmp_path: Path, demo_server: LiveServer):
    if snippet.text.startswith("curl ") and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    it_says_paris(snippet, Place(tmp_path, processes=True), demo_server)


def test_readme_and_manual_show_how_to_run_test_and_ask():
    shown = " ".join(snippet.text for snippet in SNIPPETS if snippet.document == "README.md")
    assert all(word in shown for word in ("make run", "make test", "curl ", "bin/slipway chat", "openai"))


@cache
def anchors(path: Path) -> set[str]:
    """What `#…` can name in a document: its headings, in the spelling of the forges."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(link: str, path: Path) -> bool:
    name, _, anchor = link.partition("#")
    target = path.parent / name if name else path
    return target.exists() and (not anchor or anchor in anchors(target))


def test_every_link_between_documents_leads_to_a_file_and_its_heading():
    links = [(path, link) for path in LINKING for link in LINK.findall(path.read_text()) if "://" not in link]
    assert len(links) > len(LINKING)
    lost = [(path, link) for path, link in links if not leads_somewhere(link, path)]
    assert not lost, "\n".join(f"{path.relative_to(ROOT)}: {link}" for path, link in lost)


def lost_paths(text: str) -> list[str]:
    """Paths that stand in code within sentences, patterns among them, and lead to nothing below ROOT."""
    words = [word for code in CODE.findall(FENCE.sub("", text)) for word in code.split()]
    return [word for word in words if PATH.fullmatch(word) and not any(ROOT.glob(word))]


def test_every_path_that_a_guide_names_is_there():
    lost = [f"{path.name}: {word}" for path in GUIDES for word in lost_paths(path.read_text())]
    assert not lost, "\n".join(lost)


def test_a_lost_path_is_seen():
    text = "`tests/house` `Makefile` `/live` `pytest tests/gone.py` `gone.md` `bench/*/gone.py` `bench/*.py`"
    assert lost_paths(text) == ["tests/gone.py", "gone.md", "bench/*/gone.py"]


def named_commits(text: str) -> set[str]:
    """What stands in italics: subjects, which may be broken over lines."""
    return {" ".join(words.split()) for words in ITALICS.findall(CODE.sub("", FENCE.sub("", text)))}


def test_every_commit_that_the_recipes_name_is_in_the_history():
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    root = Place(ROOT)
    if root.run(["git", "rev-parse", "--is-shallow-repository"]).strip() == "true":
        pytest.skip("the clone is shallow")
    named = named_commits((ROOT / "CONTRIBUTING.md").read_text().partition("\n## Recipes\n")[2])
    assert len(named) > 5
    assert named - set(root.run(["git", "log", "--format=%s"]).splitlines()) == set()


def test_the_security_notes_name_every_path_that_needs_no_key_or_is_there_for_debugging():
    notes = (ROOT / "SECURITY.md").read_text()
    told = next(part for part in notes.split("\n- ") if part.startswith("**The key.**"))
    open_ = {route.path for route in state.routes if route.public}
    debugging = {route.path for route in (*state.dev_routes, *state.profile_routes)}
    assert {path for path in {*open_, "/console", *debugging} if f"`{path}`" not in told} == set()


def test_the_manual_names_every_field_that_is_not_supported_yet():
    fields = {**ChatRequest.model_fields, **CompletionRequest.model_fields}
    unbuilt = {name for name, field in fields.items() if any(isinstance(m, Unbuilt) for m in field.metadata)}
    assert len(unbuilt) > 5
    paragraphs = (ROOT / "docs" / "api.md").read_text().split("\n\n")
    told = next(text for text in paragraphs if text.startswith("Not supported yet, and refused"))
    assert {name for name in unbuilt if f"`{name}`" not in told} == set()


def test_the_map_has_every_room_of_the_runtime():
    rooms = {path.parent.name for path in ROOT.glob("runtime/slipway/*/__init__.py")}
    rooms |= {path.stem for path in ROOT.glob("runtime/slipway/*.py") if not path.stem.startswith("__")}
    named = set(re.findall(r"`slipway\.(\w+)`", (ROOT / "CONTRIBUTING.md").read_text()))
    assert rooms <= named


def test_no_file_speaks_of_the_machine_or_of_those_who_wrote_it():
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = Place(ROOT).run(words).splitlines()
    found = []
    for name in listed:
        path = ROOT / name
        if path == Path(__file__) or not path.is_file() or b"\0" in (content := path.read_bytes()):
            continue
        if not LEAK_WORDS.search(content):  # one scan of a file, not one of each line
            continue
        lines = content.decode(errors="replace").splitlines()
        found += [f"{name}:{number}: {line}" for number, line in enumerate(lines, 1) if LEAKS.search(line)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("line", ["x = '/work/x'", "in /root/", "../shared/x", "of sessions", "this session"])
def test_a_line_about_the_machine_is_seen(line: str):
    assert LEAK_WORDS.search(line.encode())
    assert LEAKS.search(line)

"""The console's files: what is sent with them, who may have them, and that they lead nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from serving import Served

from slipway.api.routes.console import FOLDER, PAGE

FILES = sorted(path.name for path in FOLDER.iterdir())
PATHS = ["/console", *(f"/console/{name}" for name in FILES if name != PAGE)]
KINDS = {"": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Tags(HTMLParser):
    """Each tag of the page with its attributes, and what stands inside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style"):
            self.inline += data.strip()


@pytest.fixture(scope="module")
def page() -> Tags:
    tags = Tags()
    tags.feed((FOLDER / PAGE).read_text())
    return tags


def test_a_browser_gets_every_file_before_it_has_a_key_and_only_own_files_may_run(
    start: Callable[..., Served],
) -> None:
    served = start("--api-key", "s3cret")
    for path in PATHS:
        answer = served.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == KINDS[path.partition(".")[2]]
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
        assert policy.pop("require-trusted-types-for") == "'script'"
        assert set(policy.values()) == {"'none'", "'self'"}
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"


def test_a_file_that_has_not_changed_is_not_sent_again(served: Served) -> None:
    first = served.get("/console")
    assert first.headers["cache-control"] == "no-cache"
    again = served.get("/console", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    changed = served.get("/console", headers={"If-None-Match": '"another"'})
    assert (changed.status_code, changed.content) == (200, first.content)


def test_it_goes_with_the_documents_and_is_not_described_in_them(
    start: Callable[..., Served], served: Served
) -> None:
    without = start("--disable-fastapi-docs")
    assert {without.get(path).status_code for path in PATHS} == {404}
    assert not [path for path in served.get("/openapi.json").json()["paths"] if "console" in path]


def test_the_page_names_files_that_there_are_and_holds_no_code(page: Tags) -> None:
    named = [found for _, given in page.tags for name in ("src", "href") if (found := given.get(name))]
    assert len(named) > 4
    assert {name.removeprefix("console/") for name in named} <= set(FILES)
    assert page.inline == ""
    assert not [name for _, given in page.tags for name in given if name == "style" or name.startswith("on")]


def test_every_field_of_the_page_has_a_name_that_is_read_out(page: Tags) -> None:
    text = (FOLDER / PAGE).read_text()
    in_labels = " ".join(re.findall(r"<label.*?</label>", text, re.DOTALL))
    for tag, given in page.tags:
        if tag in ("input", "select", "textarea"):
            name = given.get("id") or given["name"]
            assert given.get("aria-label") or f'"{name}"' in in_labels, name


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_server_or_makes_markup_of_text(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert text.count("\n") < 400
    addresses = set(re.findall(r"\w+://[^\s\"'`]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, which nothing asks for
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text
    )

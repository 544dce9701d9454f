"""The programs of a cluster and the modules that pin them."""

from __future__ import annotations

import re

import pytest
from e2e.ground.build import executable
from e2e.ground.programs import MODULES, PROGRAMS, Program, batch


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda program: program.name)
def test_the_pins_know_every_program_of_a_cluster(program: Program) -> None:
    module = MODULES / program.module
    pins = (module / "go.mod").read_text()
    own = re.search(r"^module (\S+)$", pins, re.MULTILINE)
    assert own is not None
    if program.package.startswith(f"{own[1]}/"):
        assert (module / program.package.removeprefix(f"{own[1]}/") / "main.go").exists()
    else:
        assert re.search(rf"^(tool |\t){re.escape(program.package)}$", pins, re.MULTILINE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_are_built_together_differ_in_the_package_only(name: str) -> None:
    together = batch(name)
    assert {(program.module, program.tags) for program in together} == {
        (PROGRAMS[name].module, PROGRAMS[name].tags)
    }
    assert len({executable(program.package) for program in together}) == len(together)


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("go.etcd.io/etcd/server/v3", "server"),
        ("helm.sh/helm/v4/cmd/helm", "helm"),
        ("a.dev/cmd/v2ray", "v2ray"),
    ],
)
def test_go_calls_a_program_by_the_last_name_of_its_package_that_is_no_version(
    package: str, name: str
) -> None:
    assert executable(package) == name

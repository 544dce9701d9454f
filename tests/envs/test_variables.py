"""The declared variables, what `read` makes of them and what `check` says about the rest."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from slipway.args.schema import SERVE
from slipway.envs import (
    BY_NAME,
    VARIABLES,
    Environment,
    InvalidEnvironment,
    bound_cpus,
    check,
    read,
)
from slipway.envs.manual import manual

MANUAL = Path(__file__).parents[2] / "docs/reference/environment.md"
EFFECTLESS = [v for v in VARIABLES if v.status in ("not built yet", "accepted with a warning")]
REFUSED = [v for v in VARIABLES if v.status == "refused"]


def other_value(name: str) -> str:
    """A value that asks for something the server would not do by itself."""
    variable = BY_NAME[name]
    candidates = {
        "bool": ("0", "1"),
        "int": ("7",),
        "float": ("7.5",),
        "enum": variable.options,
        "list[int]": ("7",),
    }.get(variable.type, ("x/y",))
    return next((c for c in candidates if not variable.asks_for_nothing(c)), "")


def test_every_documented_variable_is_declared_once():
    assert len({v.name for v in VARIABLES}) == len(VARIABLES)
    assert sum(not v.own for v in VARIABLES) == 116
    assert sum(v.name.startswith("VLLM_") for v in VARIABLES) == 93


def test_categories_and_cluster_rules_have_the_documented_counts():
    documented = [v for v in VARIABLES if not v.own]
    assert Counter(v.category for v in documented) == {
        "build-time": 7,
        "runtime": 53,
        "distributed-internal": 26,
        "credential": 5,
        "debug/test": 13,
        "other-hardware": 12,
    }
    assert Counter(v.action for v in documented) == {
        "reject": 18,
        "reject-unless-opt-in": 11,
        "operator-default": 6,
        "allow": 48,
        "operator-only": 16,
        "secret-only": 5,
        "allow-if-device": 12,
    }


def test_the_environment_has_an_attribute_for_every_variable_with_an_effect_and_none_for_one_without():
    effective = {v.field for v in VARIABLES if v.status == "implemented" and not v.of_launcher}
    coming = {v.field for v in VARIABLES if v.status == "not built yet" and not v.of_launcher}
    assert effective <= {field.name for field in fields(Environment)} <= effective | coming


def test_an_empty_environment_gives_every_default():
    environment = read({})
    for variable in VARIABLES:
        if variable.status == "implemented" and not variable.of_launcher:
            assert environment[variable.name] == variable.default


def test_an_empty_value_means_unset():
    assert read({"VLLM_RPC_TIMEOUT": "", "OMP_NUM_THREADS": " "}) == read({})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("VLLM_CPU_KVCACHE_SPACE", "8", 8.0),
        ("VLLM_CPU_KVCACHE_SPACE", "0.5", 0.5),
        ("VLLM_SERVER_DEV_MODE", "true", True),
        ("VLLM_CONFIGURE_LOGGING", "0", False),
        ("VLLM_LOGGING_LEVEL", "debug", "DEBUG"),
        ("VLLM_ENGINE_ITERATION_TIMEOUT_S", "5", 5),
        ("VLLM_API_KEY", "a key", "a key"),
        ("SLIPWAY_RECORD", "/tmp/run", "/tmp/run"),
        ("VLLM_PP_LAYER_PARTITION", "3, 2,3", (3, 2, 3)),
    ],
)
def test_values_are_typed(name, text, value):
    assert read({name: text})[name] == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("VLLM_RPC_TIMEOUT", "soon", "VLLM_RPC_TIMEOUT=soon is not a whole number of at least 1"),
        ("VLLM_CPU_KVCACHE_SPACE", "-1", "VLLM_CPU_KVCACHE_SPACE=-1 is not a number of at least 0"),
        ("VLLM_LOGGING_LEVEL", "LOUD", "is not one of DEBUG, INFO, WARNING, ERROR"),
        ("VLLM_SERVER_DEV_MODE", "maybe", "is not 0 or 1"),
        ("OMP_NUM_THREADS", "0", "is not a whole number of at least 1"),
        ("VLLM_PP_LAYER_PARTITION", "3,0", "3,0 is not whole numbers separated by commas of at least 1"),
        ("VLLM_PORT", "70000", "70000 is not a whole number of at least 1 and at most 65535"),
        ("VLLM_CPU_OMP_THREADS_BIND", "0-x", "has '0-x' where a core"),
        ("VLLM_CPU_OMP_THREADS_BIND", "3-1", "has '3-1' where a core"),
        ("VLLM_CPU_OMP_THREADS_BIND", "0-3|", "has '' where a core"),
        ("VLLM_CPU_OMP_THREADS_BIND", "0-3|4,2-5", "has '4,2-5' where a core"),
        ("VLLM_CPU_OMP_THREADS_BIND", "0-99999999999", "where a core"),
    ],
)
def test_a_malformed_value_is_refused_in_a_sentence(name, text, words):
    with pytest.raises(InvalidEnvironment) as failure:
        read({name: text})
    assert words in str(failure.value)
    assert failure.value.variable == name


@pytest.mark.parametrize("variable", REFUSED, ids=lambda v: v.name)
def test_a_refused_variable_stops_the_start_and_says_why(variable):
    with pytest.raises(InvalidEnvironment, match="is refused: "):
        read({variable.name: other_value(variable.name)})


@pytest.mark.parametrize("variable", EFFECTLESS, ids=lambda v: v.name)
def test_no_variable_is_silently_ignored(variable):
    text = other_value(variable.name)
    if not text:
        assert len(variable.harmless) == 1  # a switch of which both positions ask for nothing
        return
    (warning,) = check({variable.name: text})
    assert variable.reason in warning
    assert warning.startswith(variable.name)
    read({variable.name: text})


@pytest.mark.parametrize("variable", EFFECTLESS, ids=lambda v: v.name)
def test_the_default_written_out_asks_for_nothing(variable):
    if variable.default is None:
        assert check({variable.name: ""}) == []
        return
    default = variable.default
    text = str(int(default)) if isinstance(default, bool) else str(default)
    assert check({variable.name: text}) == []


def test_working_variables_are_no_cause_to_warn():
    assert check({"VLLM_LOGGING_LEVEL": "DEBUG", "HF_TOKEN": "hf_x", "VLLM_NO_USAGE_STATS": "1"}) == []


def test_listed_processors_are_those_of_each_engine_or_rank():
    assert bound_cpus("0-3,8|4-7") == [[0, 1, 2, 3, 8], [4, 5, 6, 7]]
    assert bound_cpus("6,2, 4-5") == [[6, 2, 4, 5]]
    for text in ("", "auto", "nobind", "all"):
        assert bound_cpus(text) == []
    for text in ("0-3,8|4-7", "auto", "nobind", "all"):
        assert check({"VLLM_CPU_OMP_THREADS_BIND": text}) == []


def test_an_unknown_name_is_reported_with_its_near_matches():
    (warning,) = check({"VLLM_LOGING_LEVEL": "DEBUG"})
    assert "VLLM_LOGING_LEVEL is not a variable that Slipway knows" in warning
    assert "VLLM_LOGGING_LEVEL" in warning
    assert check({"SLIPWAY_NOTHING_LIKE_IT": "1", "PATH": "/bin"}) == [
        "SLIPWAY_NOTHING_LIKE_IT is not a variable that Slipway knows: it is ignored. "
        "`slipway args` lists all."
    ]


def test_the_links_of_a_service_called_vllm_are_named_as_such_and_never_fatal():
    environ = {
        "VLLM_PORT": "tcp://10.0.0.1:8000",
        "VLLM_SERVICE_HOST": "10.0.0.1",
        "VLLM_SERVICE_PORT": "8000",
        "VLLM_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "VLLM_ROUTER_SERVICE_HOST": "10.0.0.2",
        "VLLM_ROUTER_PORT": "tcp://10.0.0.2:80",
    }
    warnings = check(environ)
    assert len(warnings) == 3
    assert all("enableServiceLinks: false" in warning for warning in warnings)
    assert any("a Service called vllm, not a port" in warning for warning in warnings)
    assert any("Service called vllm-router" in warning for warning in warnings)
    read(environ)


def test_credentials_never_appear_in_warnings():
    for variable in VARIABLES:
        if variable.secret:
            assert "top-secret" not in " ".join(check({variable.name: "top-secret"}))


def test_the_cache_folder_follows_the_variables():
    assert read({"VLLM_CACHE_ROOT": "/a"}).cache_folder == Path("/a")
    assert read({"VLLM_CACHE_ROOT": "/a", "SLIPWAY_CACHE": "/b"}).cache_folder == Path("/b")


def test_the_older_token_name_is_read_where_the_newer_is_unset():
    assert read({"HUGGING_FACE_HUB_TOKEN": "old"}).hub_token == "old"
    assert read({"HUGGING_FACE_HUB_TOKEN": "old", "HF_TOKEN": "new"}).hub_token == "new"


def test_the_arguments_that_a_variable_stands_for_name_it_back():
    for argument in SERVE.arguments.values():
        for name in argument.twins:
            assert BY_NAME[name].prefer_argument == argument.flag
    for variable in VARIABLES:
        if variable.prefer_argument:
            assert SERVE.find(variable.prefer_argument.removeprefix("--"))


def test_a_variable_without_effect_has_no_value():
    with pytest.raises(KeyError):
        read({})["VLLM_USE_V1"]


def test_the_manual_is_fresh():
    assert MANUAL.read_text() == manual(), "run `make generate`"


def test_the_declarations_import_only_the_standard_library():
    script = (
        "import sys; before = set(sys.modules); import slipway.envs, slipway.metrics, slipway.exits;"
        "print({m.split('.')[0] for m in set(sys.modules) - before} "
        "- set(sys.stdlib_module_names) - {'slipway'})"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


def test_of_a_list_what_is_not_ours_is_told():
    (warning,) = check({"VLLM_DISABLED_KERNELS": "linear_w4a16, MacheteLinearKernel"})
    assert warning == (
        "VLLM_DISABLED_KERNELS: MacheteLinearKernel has no effect, it is none of linear_w4a16, linear_w8a8."
    )


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda v: v.name)
def test_no_reason_speaks_of_a_release_that_served_on_cpu_alone(variable):
    assert "this version serves on CPU" not in variable.reason
    assert "when the package is built" not in variable.reason

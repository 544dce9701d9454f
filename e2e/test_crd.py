"""The CustomResourceDefinition before a real API server: what it refuses, takes, keeps and prints."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from e2e.ground.patience import at_most
from e2e.operators import DEFINITION, ROOT, until
from slipway.args.declare import Argument, Disposition, Kind
from slipway.args.schema import CAMEL
from slipway.service.crd import custom_resource_definition
from slipway.service.crd.structure import at

if TYPE_CHECKING:
    from e2e.ground.control_plane import ControlPlane

pytestmark = pytest.mark.product

Document = dict[str, Any]

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
MANIFESTS = Path(__file__).parent / "manifests"
INVALID: list[Document] = yaml.safe_load((MANIFESTS / "invalid.yaml").read_text(encoding="utf-8"))
VALID: list[Document] = yaml.safe_load((MANIFESTS / "valid.yaml").read_text(encoding="utf-8"))
RESOURCE = "inferenceservices.slipway.dev"
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Serving",
    "message": "All replicas serve.",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def document(case: Document, group: str = "slipway.dev") -> Document:
    return {
        "apiVersion": f"{group}/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": case.get("name", "service")},
        "spec": case["spec"],
    }


def named(case: Document) -> str:
    return str(case["case"])


def answer(api: ControlPlane, *words: str, document: Document | None = None) -> tuple[int, str]:
    """Exit status and all that kubectl says."""
    text = None if document is None else json.dumps(document)
    done = api.run(api.binaries["kubectl"], *words, input=text, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> ControlPlane:
    """A control plane that knows the definition, laid down by a plain client-side apply."""
    control_plane.kubectl("apply", "-f", str(DEFINITION))
    served(control_plane, RESOURCE)
    return control_plane


@pytest.fixture
def namespace(api: ControlPlane) -> Iterator[str]:
    name = f"crd-{uuid.uuid4().hex[:8]}"
    api.kubectl("create", "namespace", name)
    yield name
    api.kubectl("delete", "namespace", name, "--wait=false")


def served(api: ControlPlane, resource: str) -> None:
    until(lambda: answer(api, "get", resource, "-A")[0] == 0, f"the API server serves {resource}")


@pytest.mark.parametrize("case", INVALID, ids=named)
def test_a_wrong_document_is_refused_with_the_field_and_the_rule(api: ControlPlane, case: Document) -> None:
    status, said = answer(api, "create", "--dry-run=server", "-f", "-", document=document(case))
    assert status != 0, said
    assert case["field"] in said
    assert case["says"] in said


@pytest.mark.parametrize("case", VALID, ids=named)
def test_a_right_document_is_taken(api: ControlPlane, case: Document) -> None:
    status, said = answer(api, "create", "--dry-run=server", "-f", "-", document=document(case))
    assert status == 0, said


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_taken_under_strict_validation(api: ControlPlane, path: Path) -> None:
    status, said = answer(api, "apply", "--dry-run=server", "--validate=strict", "-f", str(path))
    assert status == 0, said
    assert "Warning" not in said


def test_a_name_that_only_a_later_runtime_knows_is_taken(api: ControlPlane) -> None:
    """Lists that grow are forms here: an image newer than the definition may know the name."""
    case = {"spec": {"model": {"path": "/m"}, "engine": {"quantization": "fp2_new"}}}
    status, said = answer(api, "create", "--dry-run=server", "-f", "-", document=document(case))
    assert status == 0, said


def test_every_argument_can_be_given(api: ControlPlane) -> None:
    engine = {field: written(argument) for field, argument in CAMEL.items() if can_be_given(argument)}
    engine |= {"toolCallParser": "hermes", "maxLongPartialPrefills": 1, "dataParallelSizeLocal": 1}
    status, said = answer(
        api,
        "create",
        "--dry-run=server",
        "-f",
        "-",
        document=document({"spec": {"model": {"path": "/m"}, "engine": engine}}),
    )
    assert status == 0, said


def can_be_given(argument: Argument) -> bool:
    return argument.disposition is not Disposition.REFUSE and "*" not in argument.refused


WORDS = ("name", "0.1", "package.module.Class")
"""Of which one is in the form of any argument that is a word."""


def written(argument: Argument) -> object:
    """A value of the declared type, the default where there is one."""
    if argument.is_list:
        return [dict.fromkeys(argument.item_pair, "x")] if argument.item_pair else []
    if argument.default is not None and argument.kind is not Kind.JSON:
        return argument.default
    if argument.choices:
        return next(choice for choice in argument.choices if choice not in argument.refused)
    least = 1 if argument.minimum is None else argument.minimum
    by_kind = {
        Kind.BOOL: True,
        Kind.INT: int(least),
        Kind.HUMAN_INT: "16K",
        Kind.FLOAT: 1.0 if argument.maximum is None else argument.maximum,
        Kind.JSON: {},
        Kind.STR_OR_JSON: "name",
        Kind.URL: "http://host:4317",
    }
    if argument.kind in by_kind:
        return by_kind[argument.kind]
    return next(one for one in WORDS if re.fullmatch(argument.pattern or ".*", one))


def test_a_second_apply_of_the_definition_changes_nothing(api: ControlPlane) -> None:
    assert "unchanged" in api.kubectl("apply", "-f", str(DEFINITION))


def test_nothing_is_added_to_a_specification_but_the_replicas(api: ControlPlane, namespace: str) -> None:
    spec = {"model": {"path": "/m"}, "engine": {"maxModelLen": 2048}, "service": {}}
    create(api, namespace, {"spec": spec})
    assert stored(api, namespace)["spec"] == spec | {"replicas": 1}


def test_before_the_operator_has_looked_the_status_says_so(api: ControlPlane, namespace: str) -> None:
    create(api, namespace, {"spec": {"model": {"path": "/m"}}})
    assert stored(api, namespace)["status"] == {"observedGeneration": -1}


def test_the_short_name_and_the_category_find_it(api: ControlPlane, namespace: str) -> None:
    create(api, namespace, {"spec": {"model": {"path": "/m"}}})
    for name in ("slip", "slipway", "inferenceservice.slipway.dev"):
        assert api.kubectl("get", name, "-n", namespace, "-o", "name").split() == [
            "inferenceservice.slipway.dev/service"
        ]


def test_an_autoscaler_sees_replicas_and_selector_and_sets_the_specification(
    api: ControlPlane, namespace: str
) -> None:
    create(api, namespace, {"spec": {"model": {"path": "/m"}}})
    set_status(api, namespace, {"replicas": 1, "selector": "app.kubernetes.io/instance=service"})
    api.kubectl("scale", RESOURCE, "service", "-n", namespace, "--replicas=3")
    path = f"/apis/slipway.dev/v1alpha1/namespaces/{namespace}/inferenceservices/service/scale"
    scale = json.loads(api.kubectl("get", "--raw", path))
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 1, "selector": "app.kubernetes.io/instance=service"}
    assert stored(api, namespace)["spec"]["replicas"] == 3


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ({"hub": {"id": "org/name"}}, "org/name"),
        ({"pvc": {"name": "models", "path": "a"}}, "models"),
        ({"image": {"reference": "registry/m:1"}}, "registry/m:1"),
        ({"s3": {"uri": "s3://bucket/m"}}, "s3://bucket/m"),
        ({"path": "/models/m"}, "/models/m"),
    ],
    ids=["hub", "pvc", "image", "s3", "path"],
)
def test_the_columns_name_the_model_whatever_its_source(
    api: ControlPlane, namespace: str, model: Document, shown: str
) -> None:
    create(api, namespace, {"spec": {"model": model}})
    header, row = api.kubectl("get", "slip", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "MODEL", "READY", "REASON", "URL", "AGE"]
    assert row.split()[:2] == ["service", shown]


def test_the_columns_print_the_status(api: ControlPlane, namespace: str) -> None:
    create(api, namespace, {"spec": {"model": {"path": "/m"}, "runtime": {"image": "registry/runtime:1"}}})
    status = {
        "observedGeneration": 1,
        "summary": "Serving",
        "url": "http://service.here:8000",
        "image": "registry/runtime:1",
        "replicas": 2,
        "conditions": [READY],
    }
    set_status(api, namespace, status)
    header, row = api.kubectl("get", "slip", "-n", namespace, "-o", "wide").splitlines()
    assert header.split() == ["NAME", "MODEL", "READY", "REASON", "URL", "AGE", "IMAGE", "REPLICAS"]
    assert row.split()[:5] == ["service", "/m", "True", "Serving", "http://service.here:8000"]
    assert row.split()[6:] == ["registry/runtime:1", "2"]


def test_kubectl_waits_for_ready(api: ControlPlane, namespace: str) -> None:
    create(api, namespace, {"spec": {"model": {"path": "/m"}}})
    set_status(api, namespace, {"observedGeneration": 1, "conditions": [READY]})
    api.kubectl("wait", "--for=condition=Ready", at_most(60), "slip/service", "-n", namespace)


def test_two_owners_may_each_have_a_variable(api: ControlPlane, namespace: str) -> None:
    """Server-side apply merges `env` by name."""
    for owner, variable in (("one", "TZ"), ("two", "NCCL_DEBUG")):
        spec = {"model": {"path": "/m"}, "env": [{"name": variable, "value": "x"}]}
        status, said = answer(
            api,
            "apply",
            "--server-side",
            f"--field-manager={owner}",
            "-n",
            namespace,
            "-f",
            "-",
            document=document({"spec": spec}),
        )
        assert status == 0, said
    assert [entry["name"] for entry in stored(api, namespace)["spec"]["env"]] == ["TZ", "NCCL_DEBUG"]


def test_a_stricter_definition_leaves_status_and_scale_of_what_it_would_refuse(
    api: ControlPlane, stricter: Callable[[], None], namespace: str
) -> None:
    resource = "inferenceservices.stricter.slipway.dev"
    case = {"spec": {"model": {"path": "/models/long"}, "engine": {"maxModelLen": 4096}}}
    create(api, namespace, case, group="stricter.slipway.dev")
    stricter()
    again = document(case | {"name": "another"}, "stricter.slipway.dev")
    until(
        lambda: answer(api, "create", "--dry-run=server", "-n", namespace, "-f", "-", document=again)[0] != 0,
        "the stricter definition refuses what the first one took",
    )
    set_status(api, namespace, {"observedGeneration": 1, "summary": "Serving"}, resource)
    api.kubectl("scale", resource, "service", "-n", namespace, "--replicas=2")
    api.kubectl(
        "patch", resource, "service", "-n", namespace, "--type=merge", "-p", '{"spec":{"suspend":true}}'
    )
    now = stored(api, namespace, resource)
    assert (now["status"]["summary"], now["spec"]["replicas"], now["spec"]["suspend"]) == ("Serving", 2, True)
    longer = '{"spec":{"model":{"path":"/models/longer"}}}'
    status, said = answer(api, "patch", resource, "service", "-n", namespace, "--type=merge", "-p", longer)
    assert status != 0
    assert "spec.model.path" in said


@pytest.fixture
def stricter(api: ControlPlane, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """The definition under another group, and what makes it stricter; other tests share the first."""
    definition = custom_resource_definition()
    definition["metadata"]["name"] = "inferenceservices.stricter.slipway.dev"
    definition["spec"]["group"] = "stricter.slipway.dev"
    definition["spec"]["names"]["shortNames"] = []
    definition["spec"]["names"]["categories"] = []
    path = tmp_path / "definition.json"

    def lay() -> None:
        path.write_text(json.dumps(definition))
        api.kubectl("apply", "-f", str(path))

    def tighten() -> None:
        root = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        at(root, "spec.model.path")["maxLength"] = 4
        at(root, "spec.engine.maxModelLen")["pattern"] = "^[0-9]$"
        rule = {"rule": "!has(self.path) || self.path == '/m'", "message": "one path alone"}
        at(root, "spec.model")["x-kubernetes-validations"].append(rule)
        lay()

    lay()
    served(api, definition["metadata"]["name"])
    yield tighten
    api.kubectl("delete", "crd", definition["metadata"]["name"], "--wait=false")


def create(api: ControlPlane, namespace: str, case: Document, group: str = "slipway.dev") -> None:
    text = json.dumps(document(case, group))
    api.kubectl("create", "-n", namespace, "-f", "-", input=text)


def stored(api: ControlPlane, namespace: str, resource: str = RESOURCE) -> Document:
    found: Document = json.loads(api.kubectl("get", resource, "service", "-n", namespace, "-o", "json"))
    return found


def set_status(api: ControlPlane, namespace: str, status: Document, resource: str = RESOURCE) -> None:
    patch = json.dumps({"status": status})
    api.kubectl(
        "patch", resource, "service", "-n", namespace, "--subresource=status", "--type=merge", "-p", patch
    )

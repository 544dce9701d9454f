"""What the operator set out to do, row by row, each with the tests that prove it.

`make goals` runs these and prints the table. P: what good operators have. A: what few or none have.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Goal:
    row: str
    sentence: str
    tests: tuple[str, ...]
    """Files, or tests in them as pytest names them; of a test all its cases."""
    missing: str = ""
    """What of it nobody has built."""
    gpu: str = ""
    """What of it only a device can show."""


GOALS = (
    Goal(
        "P1",
        "the CRD checks documents by itself, without a webhook",
        (
            "e2e/test_crd.py::test_a_wrong_document_is_refused_with_the_field_and_the_rule",
            "e2e/test_crd.py::test_a_right_document_is_taken",
            "e2e/test_crd.py::test_a_second_apply_of_the_definition_changes_nothing",
        ),
    ),
    Goal(
        "P2",
        "what is written is written once, and what is edited or deleted comes back",
        (
            "e2e/test_operator.py::test_nothing_is_written_where_nothing_differs",
            "e2e/test_operator.py::test_an_edited_or_deleted_child_is_back_within_five_seconds",
            "e2e/test_operator.py::test_what_is_no_longer_rendered_goes",
            "e2e/test_mutations.py::test_thirty_mutations_are_fulfilled_or_explained",
        ),
    ),
    Goal(
        "P3",
        "an autoscaler or kubectl scales the resource, and the operator lets it",
        (
            "e2e/test_crd.py::test_an_autoscaler_sees_replicas_and_selector_and_sets_the_specification",
            "e2e/test_operator.py::test_a_scaled_service_stays_scaled",
        ),
        missing="autoscaling of its own",
    ),
    Goal(
        "P4",
        "conditions and columns say how it stands",
        (
            "tests/operator/test_status.py",
            "e2e/test_crd.py::test_the_columns_print_the_status",
            "e2e/test_operator.py::test_an_applied_service_becomes_its_objects_and_says_how_it_stands",
        ),
    ),
    Goal(
        "P5",
        "probes wait for a large model and notice a dead one soon",
        (
            "tests/service/test_objects.py::test_probes_ask_what_the_server_answers_without_a_key",
            "tests/api/test_lifecycle.py",
            "e2e/test_failures_runtime.py::test_loading_is_told_in_percent_and_a_standstill_with_the_hour",
        ),
    ),
    Goal(
        "P6",
        "no stream is cut by a rollout, an eviction or a dead operator",
        ("e2e/test_streams.py::test_rollouts_a_killed_operator_a_deleted_pod_and_an_eviction_cut_no_stream",),
    ),
    Goal(
        "P7",
        "Prometheus scrapes, a dashboard shows and alerts ring; without their kinds nothing breaks",
        (
            "e2e/test_monitoring.py",
            "e2e/test_monitoring_rules.py",
            "e2e/test_operator_cluster.py::test_a_monitor_is_made_once_its_kind_appears",
        ),
    ),
    Goal(
        "P8",
        "credentials are named, never read or copied",
        (
            "tests/service/test_objects.py::test_secrets_are_references_and_nothing_else",
            "tests/helm/test_charts.py::test_no_rule_has_a_wildcard_or_reads_secrets",
            "e2e/test_operator_cluster.py::test_every_right_is_used_and_none_is_missing",
        ),
    ),
    Goal(
        "P9",
        "pods pass the restricted standard under any user",
        (
            "e2e/test_path.py::test_the_pod_is_restricted_and_its_root_is_not_writable",
            "e2e/test_images.py::test_an_arbitrary_user_with_a_read_only_root_is_served",
        ),
    ),
    Goal(
        "P10",
        "devices, slices and claims become what their plugin takes",
        (
            "tests/service/test_objects.py::test_devices_are_asked_for_as_in_the_golden_file",
            "tests/service/test_objects.py::test_no_pod_gets_both_a_limit_of_a_device_plugin_and_a_claim",
            "e2e/test_failures_rollout.py::test_a_pod_has_a_limit_of_the_device_plugin_or_a_claim_and_never_both",
        ),
    ),
    Goal(
        "P11",
        "models from a hub, a bucket, a claim, an image or the node",
        (
            "tests/service/test_objects.py::test_each_model_source_becomes_what_the_server_loads",
            "tests/service/test_fetch.py",
            "e2e/test_examples.py",
        ),
    ),
    Goal(
        "P12",
        "the chart refuses what it does not know, upgrades its CRDs and runs apart from others",
        (
            "e2e/test_helm.py::test_an_upgrade_brings_the_new_crd_and_a_rollback_the_old",
            "e2e/test_helm_templates.py",
            "tests/helm",
            "tests/service/test_network.py",
        ),
    ),
    Goal(
        "P13",
        "it serves the cluster, or some namespaces with a Role",
        (
            "e2e/test_operator_cluster.py::test_every_right_is_used_and_none_is_missing",
            "e2e/test_helm.py::test_an_admin_of_namespaces_installs_for_them_once_the_page_is_followed",
        ),
    ),
    Goal(
        "P14",
        "a budget for disruptions where there are several pods",
        (
            "tests/service/test_objects.py::test_there_are_the_objects_that_the_service_and_the_cluster_call_for",
            "e2e/test_streams.py::test_rollouts_a_killed_operator_a_deleted_pod_and_an_eviction_cut_no_stream",
        ),
    ),
    Goal(
        "A1",
        "every argument of the engine is typed in the CRD, the chart, the manual and on the command line",
        (
            "tests/args",
            "e2e/test_crd.py::test_every_argument_can_be_given",
            "tests/service/test_crd.py",
        ),
    ),
    Goal(
        "A2",
        "the same document without a cluster: a process, podman, Quadlet, Compose",
        (
            "tests/service/test_local.py",
            "tests/service/test_podman.py",
            "tests/service/test_compose.py",
            "e2e/test_compose.py",
            "e2e/test_images_render.py",
        ),
    ),
    Goal(
        "A3",
        "an image of another version is asked before a pod starts",
        (
            "tests/args/test_compatibility.py",
            "e2e/test_images.py::test_a_runtime_carries_the_schema_that_it_prints",
            "e2e/test_profiles.py::test_an_image_that_does_not_take_the_arguments_gets_no_pod_and_the_old_ones_stay",
        ),
    ),
    Goal(
        "A4",
        "an estimate says whether a model fits before it is tried",
        (
            "tests/fit",
            "tests/operator/test_memory_status.py",
            "e2e/test_fits.py",
            "e2e/test_failures_runtime.py::test_what_does_not_fit_says_so_though_it_serves",
        ),
        gpu="the estimate of a device against what it measures",
    ),
    Goal(
        "A5",
        "what was measured stands beside the estimate",
        (
            "tests/fit/test_at_start.py",
            "e2e/test_failures_runtime.py::test_what_fits_says_what_it_takes_of_its_container_s_memory",
        ),
    ),
    Goal(
        "A6",
        "every failure has its reason, with what to do",
        ("e2e/test_failures.py", "e2e/test_failures_runtime.py"),
    ),
    Goal(
        "A7",
        "explain says where each argument comes from, diff whether pods will restart",
        (
            "tests/service/test_origins.py",
            "tests/service/test_diff.py",
            "tests/operator/test_predictions.py",
            "e2e/test_diff.py",
        ),
    ),
    Goal(
        "A8",
        "another version of the operator restarts nothing",
        (
            "e2e/test_operator.py::test_another_version_of_the_operator_restarts_nothing",
            "e2e/test_profiles.py::test_twenty_services_run_on_while_their_profile_is_edited",
        ),
    ),
    Goal(
        "A9",
        "without the operator everything is checked and can be deleted",
        (
            "e2e/test_outage.py::test_an_outage_of_five_seconds_deletes_nothing",
            "e2e/test_operator.py::test_a_service_deleted_while_the_operator_was_away_is_not_made_again",
        ),
    ),
    Goal(
        "A10",
        "no variable reaches a server that its document does not name",
        ("e2e/test_path.py::test_a_service_of_a_dangerous_name_changes_nothing_in_the_environment",),
    ),
    Goal(
        "A11",
        "a start that stands still ends by itself and says so",
        ("e2e/test_failures_runtime.py::test_a_server_that_ends_itself_over_a_standstill_is_quoted",),
    ),
    Goal(
        "A12",
        "ready means that a step was computed",
        ("tests/api/test_idle_check.py",),
        gpu="what the step costs a device",
    ),
    Goal("A13", "a rollout surges where a device is free", ("e2e/test_surge.py",)),
    Goal(
        "A14",
        "hundreds of services cost little",
        ("e2e/test_scale.py::test_many_services_converge_and_rest_among_strangers",),
    ),
    Goal(
        "A15",
        "what the manual shows works",
        ("tests/house/test_documents.py", "tests/docs", "e2e/test_walk.py", "e2e/test_examples.py"),
    ),
)


RUNS = (("tests", "2"), ("e2e", "3"))
"""Folders whose tests are run together, and how many at a time."""


def outcomes(folder: str, workers: str, options: Sequence[str], place: Path) -> dict[str, str]:
    """How each test of the goals in the folder ended: passed, failed or skipped, by its name."""
    tests = sorted({test for goal in GOALS for test in goal.tests if test.startswith(f"{folder}/")})
    report = place / f"{folder}.xml"
    words = ["-m", "pytest", "-q", "-n", workers, "--dist=loadscope", "--no-loadscope-reorder"]
    words.append(f"--junit-xml={report}")
    words += ["-m", "not soak", *options, *tests]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=False)
    return dict(map(_ended, ElementTree.parse(report).iter("testcase"))) if report.exists() else {}


def _ended(case: ElementTree.Element) -> tuple[str, str]:
    """tests.service.test_objects and test_one[a] → tests/service/test_objects.py::test_one[a]"""
    name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
    verdicts = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    return name, next((verdicts[part.tag] for part in case if part.tag in verdicts), "passed")


def rows(ended: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Each goal's row, its verdict, and what it is about with what stands in the way."""
    for goal in GOALS:
        found = [ended[name] for name in ended if any(_is_of(name, test) for test in goal.tests)]
        alone = [test for test in goal.tests if not any(_is_of(name, test) for name in ended)]
        notes = [f"{found.count('passed')} of {len(found)} tests passed"] if found else []
        notes += [f"nothing of {test} ran" for test in alone]
        if goal.missing:
            notes.append(f"not built: {goal.missing}")
        if goal.missing or alone or set(found) != {"passed"}:
            verdict = "fail"
        elif goal.gpu:
            verdict = "needs a GPU"
            notes.append(f"for {goal.gpu}")
        else:
            verdict = "pass"
        yield goal.row, verdict, f"{goal.sentence} ({'; '.join(notes)})"


def _is_of(name: str, test: str) -> bool:
    """Whether the test is the one named here, a case of it, or one in that file or folder."""
    return name == test or name.startswith((f"{test}[", f"{test}::", f"{test}/"))


def main(options: Sequence[str]) -> int:
    """Run all of them, and print the table; status 1 where a row fails. `options` go to pytest."""
    with tempfile.TemporaryDirectory(prefix="slipway-goals-") as place:
        ended: dict[str, str] = {}
        for folder, workers in RUNS:
            ended |= outcomes(folder, workers, options, Path(place))
    table = list(rows(ended))
    for row, verdict, about in table:
        print(f"{row:<4} {verdict:<12} {about}")
    return int(any(verdict == "fail" for _, verdict, _ in table))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

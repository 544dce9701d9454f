"""What servers say of memory, as the status has it, and the condition Fits."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from as_printed import NOW, Object, crash_loop, deployment, pod, ready_pod, replica_set, resource

from slipway.fit.short import Part
from slipway.service import from_mapping
from slipway_operator import memory, reasons
from slipway_operator.memory import SHORT, Memory, told, told_before
from slipway_operator.pod_findings import current_pods
from slipway_operator.progress import Said, memories
from slipway_operator.status import Observed, status

GIB = 1 << 30
CURRENT = replica_set(2)
POD = "demo-5d4f2-abcde"
ESTIMATED = Memory(4 * GIB, 2 * GIB, GIB, 0, 4096, 8192, "")
MEASURED = Memory(4 * GIB, 2 * GIB, GIB, GIB + (3 << 20), 4096, 8192, "")
TOO_LARGE = Memory(4 * GIB, 9 * GIB, 8 * GIB, 0, 0, 0, "weights")
AS_TOLD = {
    "pod": POD,
    "replicaSet": "demo-5d4f2",
    "capacity": "4096Mi",
    "estimated": "2048Mi",
    "estimatedAtRest": "1024Mi",
    "kvCacheTokens": 4096,
    "maxModelLen": 8192,
}


def whole(heard: Memory | None, **observed: Any) -> Object:
    """A status after a server has said that."""
    document = resource()
    seen: dict[str, Any] = {"pods": [ready_pod()], "deployment": deployment(available=1), **observed}
    kept = told(None, CURRENT, {POD: heard}) if heard else None
    made = Observed(resource=document, replica_sets=[CURRENT], memory=kept, now=NOW, **seen)
    return status(made, from_mapping(document))


def fits(found: Object) -> tuple[str, str, str] | None:
    return next(
        (
            (one["status"], one["reason"], one["message"])
            for one in found["conditions"]
            if one["type"] == "Fits"
        ),
        None,
    )


def test_what_is_known_stands_in_the_status_with_sizes_that_people_read():
    assert whole(ESTIMATED)["memory"] == AS_TOLD
    assert whole(MEASURED)["memory"] == {**AS_TOLD, "measured": "1027Mi"}
    assert "memory" not in whole(None)
    assert fits(whole(None)) is None


def test_a_model_that_fits_says_by_how_much():
    assert fits(whole(ESTIMATED)) == ("True", "Estimated", "2048Mi of 4096Mi by the estimate.")
    said = "2048Mi of 4096Mi by the estimate; 1027Mi were taken when the server was ready."
    assert fits(whole(MEASURED)) == ("True", "Measured", said)
    assert whole(MEASURED)["summary"] == "Serving: 1 of 1 replicas admit requests"


def test_a_model_that_does_not_fit_says_what_is_too_large_and_what_to_do():
    found = whole(TOO_LARGE)
    verdict = fits(found)
    assert verdict is not None
    assert verdict[:2] == ("False", "DoesNotFit")
    assert "9216Mi of 4096Mi" in verdict[2]
    assert "quantize it" in verdict[2]
    assert found["summary"].startswith("DoesNotFit: its weights leave nothing")
    ready = {one["type"]: one["status"] for one in found["conditions"]}
    assert ready["Ready"] == "True"  # it serves all the same


def test_the_largest_length_that_fits_is_named():
    short = Memory(4 * GIB, 3 * GIB, 3 * GIB, 0, 4096, 4000, "kv_cache")
    assert "spec.engine.maxModelLen may be 4000 at most." in (fits(whole(short)) or ("", "", ""))[2]


def test_every_part_that_a_server_may_name_has_its_words():
    assert set(SHORT) == set(get_args(Part))


def test_a_tenth_more_than_was_estimated_is_told():
    almost = Memory(4 * GIB, GIB, GIB, int(1.09 * GIB), 0, 0, "")
    more = Memory(4 * GIB, GIB, GIB, int(1.11 * GIB), 0, 0, "")
    assert (fits(whole(almost)) or ("", ""))[1] == "Measured"
    assert (fits(whole(more)) or ("", ""))[:2] == ("True", "TakesMore")
    assert whole(more)["summary"].startswith("TakesMore: 1137Mi were taken")


def test_what_memory_ended_counts_before_what_was_estimated():
    killed = pod(containers=[crash_loop(137, reason="OOMKilled")])
    found = whole(ESTIMATED, pods=[killed], deployment=deployment())
    assert (fits(found) or ("", ""))[:2] == ("False", "OutOfMemory")


def test_a_word_stays_until_the_template_changes():
    before = whole(MEASURED)
    mine = resource(status=before)
    assert told_before(mine, CURRENT) == before["memory"]
    assert told(told_before(mine, CURRENT), CURRENT, {}) == before["memory"]
    assert told_before(mine, replica_set(3)) is None
    assert told_before(mine, None) is None


def test_what_was_measured_is_asked_for_once():
    assert memory.is_whole(whole(MEASURED)["memory"])
    assert not memory.is_whole(whole(ESTIMATED)["memory"])
    assert not memory.is_whole(None)
    kept = told(whole(MEASURED)["memory"], CURRENT, {"demo-5d4f2-zzzzz": TOO_LARGE})
    assert kept == {**AS_TOLD, "measured": "1027Mi"}


def test_one_pod_speaks_for_all_and_one_of_an_older_template_for_none():
    mine, other, older = pod(POD), pod("demo-5d4f2-zzzzz"), pod("demo-5d4f1-aaaaa", revision=1)
    said = {POD: Said(None, MEASURED), "demo-5d4f2-zzzzz": Said(None, TOO_LARGE)}
    said["demo-5d4f1-aaaaa"] = Said(None, TOO_LARGE)
    heard = memories(current_pods([mine, other, older], CURRENT), said)
    assert told(AS_TOLD, CURRENT, heard) == {**AS_TOLD, "measured": "1027Mi"}
    assert told(None, CURRENT, memories(current_pods([older], CURRENT), said)) is None
    first = told(None, CURRENT, heard)
    assert first is not None
    assert first["pod"] == POD


@pytest.mark.parametrize("length", [45, 46, 47, 48, 50])
def test_a_pod_speaks_for_its_owner_however_long_the_name_is(length):
    """Kubernetes makes a pod's name of the first 58 characters of its ReplicaSet's and five of its own."""
    service = "a" * length
    sets = [replica_set(revision) for revision in (1, 2)]
    pods = [pod(revision=1), pod(revision=2)]
    for revision, (whose, one) in enumerate(zip(sets, pods, strict=True)):
        whose["metadata"]["name"] = f"{service}-7b9c9d5f6{'df'[revision]}"
        one["metadata"]["name"] = f"{whose['metadata']['name']}-"[:58] + "x2x7qzbcdf"[5 * revision :][:5]
    older, current = sets
    said = {
        one["metadata"]["name"]: Said(None, size)
        for one, size in zip(pods, (TOO_LARGE, MEASURED), strict=True)
    }
    kept = told(None, current, memories(current_pods(pods, current), said))
    assert kept is not None
    assert kept["pod"] == pods[1]["metadata"]["name"]
    assert kept["measured"] == "1027Mi"
    assert told_before(resource(status={"memory": kept}), current) == kept
    assert told_before(resource(status={"memory": kept}), older) is None


@pytest.mark.parametrize("value", [{}, [], "7", {"capacity": "9"}, {**AS_TOLD, "short": "pay 1 coin"}])
def test_an_answer_of_another_shape_is_none(value):
    with pytest.raises(ValueError, match=r".*"):
        memory.parsed({"memory": value})


def test_reasons_of_memory_are_warnings_but_for_those_of_a_good_life():
    calm = {one.name for one in reasons.CATALOGUE if one.condition == "Fits" and one.calm}
    assert calm == {"Asking", "Estimated", "Measured"}

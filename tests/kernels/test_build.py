"""Building the CPU kernels."""

from __future__ import annotations

import os

import pytest

from slipway_kernels.build import BuildError, jobs


def test_max_jobs_says_how_many_compilers_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "3")
    assert jobs() == 3
    for unset in ("", " "):
        monkeypatch.setenv("MAX_JOBS", unset)
        assert jobs() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("text", ["0", "-1", "all"])
def test_another_number_of_jobs_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MAX_JOBS", text)
    with pytest.raises(BuildError, match=f"MAX_JOBS={text} is not a whole number of at least 1"):
        jobs()

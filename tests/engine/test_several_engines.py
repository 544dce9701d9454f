"""What each of several engines of one host is told."""

from __future__ import annotations

import pytest

from slipway.engine.config import EngineConfig
from slipway.engine.several import VISIBLE, keep_own_devices, shares
from slipway.exits import DEVICE_UNAVAILABLE, Exit

CONFIG = EngineConfig(model="m", record="/tmp/record", tensor_parallel_size=2)


def test_an_engine_alone_is_told_nothing_of_others():
    assert shares(CONFIG, [5], 8, alone=True) == [CONFIG]


def test_each_has_its_name_its_place_its_record_and_its_part_of_the_machine():
    first, second = shares(CONFIG, [2, 3], 4, alone=False)
    assert (first.name, second.name) == ("engine 2 of 4", "engine 3 of 4")
    assert (first.place_on_host, second.place_on_host) == (0, 1)
    assert (first.record, second.record) == ("/tmp/record.2", "/tmp/record.3")
    assert first.engines_on_host == second.engines_on_host == 2
    assert first.machine_parts == second.machine_parts == 2


def test_each_takes_devices_of_its_own():
    engines = shares(CONFIG, [0, 1], 2, alone=False)
    for engine, unlisted, listed in zip(engines, ("0,1", "2,3"), ("4,7", "a,b"), strict=True):
        environ: dict[str, str] = {}
        keep_own_devices(engine, environ)
        assert environ[VISIBLE] == unlisted
        environ[VISIBLE] = "4,7,a,b"
        keep_own_devices(engine, environ)
        assert environ[VISIBLE] == listed


def test_devices_that_are_too_few_for_all_are_counted():
    _, second = shares(CONFIG, [0, 1], 2, alone=False)
    with pytest.raises(Exit, match="shows 3 devices, and 2 engines of 2 each take 4") as caught:
        keep_own_devices(second, {VISIBLE: "0,1,2"})
    assert caught.value.exit_code is DEVICE_UNAVAILABLE


def test_an_engine_alone_sees_what_there_is():
    environ: dict[str, str] = {}
    keep_own_devices(CONFIG, environ)
    assert environ == {}

"""Documents as text."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from slipway.service.yaml_text import print_yaml


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans() | st.none())))
def test_what_is_printed_is_read_back_as_it_was(documents):
    assert list(yaml.safe_load_all(print_yaml(*documents))) == documents


def test_what_stands_in_two_places_is_written_twice_in_the_order_of_its_keys():
    shared = {"b": 1, "a": 2}
    assert print_yaml({"one": shared, "other": shared}) == "one:\n  b: 1\n  a: 2\nother:\n  b: 1\n  a: 2\n"

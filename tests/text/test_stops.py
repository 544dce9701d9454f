from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slipway.text.stops import StopStrings

LETTERS = st.text(alphabet="ab\n", max_size=30)


def _run(stops: tuple[str, ...], include: bool, parts: list[str]) -> tuple[str, str | None]:
    found = StopStrings(stops, include)
    out = ""
    for part in parts:
        text, stop = found.push(part)
        out += text
        if stop is not None:
            return out, stop
    return out + found.finish(), None


@given(
    text=LETTERS,
    stops=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=4),
    include=st.booleans(),
    cuts=st.lists(st.integers(0, 30)),
)
def test_where_a_stream_stops_does_not_depend_on_its_pushes(
    text: str, stops: list[str], include: bool, cuts: list[int]
) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[a:b] for a, b in pairwise(places)]
    assert _run(tuple(stops), include, parts) == _run(tuple(stops), include, list(text))


@given(text=LETTERS, stops=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=4))
def test_a_stop_string_is_never_given_out_and_nothing_else_is_lost(text: str, stops: list[str]) -> None:
    out, stop = _run(tuple(stops), False, [text])
    assert not any(one in out for one in stops)
    assert out == text if stop is None else text.startswith(out + stop)


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_decided() -> None:
    stops = StopStrings(("</tool>",), include_in_output=False)
    assert stops.push("done </to") == ("done ", None)
    assert stops.push("ast") == ("</toast", None)
    assert stops.push(" <") == (" ", None)
    assert stops.finish() == "<"


def test_the_stop_string_is_part_of_the_output_where_asked() -> None:
    assert _run(("END",), True, ["a E", "ND b"]) == ("a END", "END")
    assert _run(("END",), False, ["a E", "ND b"]) == ("a ", "END")


def test_of_stop_strings_that_complete_together_the_longest_counts() -> None:
    assert _run(("b", "ab"), False, ["xab"]) == ("x", "ab")


def test_the_stop_string_that_completes_first_counts() -> None:
    assert _run(("abcd", "bc"), False, ["abcd"]) == ("a", "bc")


def test_an_empty_stop_string_stops_nothing() -> None:
    assert _run(("",), False, ["abc"]) == ("abc", None)

"""What requests draw that name no seed."""

from __future__ import annotations

from collections.abc import Callable

from serving import MODEL, Served

from slipway.api.group import Group
from slipway.api.seeds import Seeds


def drawn(served: Served, *bodies: dict[str, object]) -> list[int]:
    """The seeds that reached the engine, of requests sent one after the other."""
    before = len(served.engine.requests)
    for body in bodies:
        served.post("/v1/completions", {"model": MODEL, "max_tokens": 1, **body})
    return [request.params.seed for request in served.engine.requests[before:]]


UNSEEDED = ({"prompt": ["a", "a"]}, {"prompt": "a", "seed": 7}, {"prompt": "a", "n": 2}, {"prompt": "a"})


def test_a_seed_of_the_server_and_the_order_of_arrival_fix_what_is_drawn(
    start: Callable[..., Served],
) -> None:
    first, again = (drawn(start("--seed", "5"), *UNSEEDED) for _ in range(2))
    assert first == again
    assert len(set(first)) == 6
    assert first[2] == 7
    assert first[4] == (first[3] + 1) % 2**64
    assert drawn(start("--seed", "6"), *UNSEEDED)[0] != first[0]


def test_the_other_forms_of_a_request_draw_by_the_servers_seed_too(start: Callable[..., Served]) -> None:
    def seeds() -> list[int]:
        served = start("--seed", "5")
        served.post("/v1/responses", {"input": "a", "max_output_tokens": 1})
        served.post("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
        return [request.params.seed for request in served.engine.requests]

    assert seeds() == seeds()


def test_without_one_nothing_is_fixed(start: Callable[..., Served]) -> None:
    first, again = (drawn(start(), {"prompt": "a"}) for _ in range(2))
    assert first != again
    assert drawn(start("--seed", "0"), {"prompt": "a"}) == drawn(start("--seed", "0"), {"prompt": "a"})


def test_the_order_is_that_of_arrival_and_not_of_the_threads_that_prepare() -> None:
    one, other = (Seeds(3, Group.of_one().next_arrival) for _ in range(2))
    first, second = one.of_next_request(), one.of_next_request()
    overtaking = second(), first()
    assert overtaking == tuple(reversed((other.of_next_request()(), other.of_next_request()())))

"""The page pool against a model of it, by random walks."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipway.engine.page_pool import PagePool

NUM_PAGES = 7


class PagePoolMachine(RuleBasedStateMachine):
    """`held` lists every reference we hold; `keys` what each page was last registered as."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.held: list[int] = []
        self.keys: dict[int, int] = {}

    @precondition(lambda self: self.pool.num_free)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.pool.num_free))
        pages = self.pool.allocate(count)
        assert not set(pages) & set(self.held)
        self.held += pages
        for page in pages:
            self.keys.pop(page, None)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.held))
        self.held.remove(page)
        self.pool.release([page])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), key=st.integers(0, 5))
    def register(self, data: st.DataObject, key: int) -> None:
        page = data.draw(st.sampled_from(self.held))
        if key not in self.keys.values() and page not in self.keys:
            self.keys[page] = key
        self.pool.register(page, key)

    @rule(key=st.integers(0, 5))
    def share(self, key: int) -> None:
        page = self.pool.find(key)
        assert page == next((p for p, k in self.keys.items() if k == key), None)
        if page is not None:
            self.pool.share([page])
            self.held.append(page)

    @rule()
    def forget(self) -> None:
        self.pool.forget_all()
        self.keys.clear()

    @rule(keys=st.sets(st.integers(0, 5)))
    def forget_some(self, keys: set[int]) -> None:
        self.pool.forget_keys(keys.__contains__)
        self.keys = {page: key for page, key in self.keys.items() if key not in keys}

    @invariant()
    def counts_and_free_list_agree(self) -> None:
        self.pool.check(self.held)
        assert self.pool.num_free == NUM_PAGES - len(set(self.held))


PagePoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestPagePool = PagePoolMachine.TestCase


def test_pages_that_no_prefix_finds_are_handed_out_before_those_that_one_may():
    pool = PagePool(4)
    first, second, third, fourth = pool.allocate(4)
    pool.register(first, "a")
    pool.register(third, "b")
    pool.release([first, second, third])
    assert pool.allocate(3) == [second, first, third]
    pool.release([fourth])
    assert pool.allocate(1) == [fourth]


def test_the_longest_unused_page_is_handed_out_first():
    pool = PagePool(3)
    first, second, third = pool.allocate(3)
    for page in (first, second, third):
        pool.register(page, page)
    pool.release([second])
    pool.release([third, first])
    assert pool.allocate(3) == [second, third, first]


def test_check_names_a_page_that_somebody_forgot_to_release():
    pool = PagePool(4)
    pages = pool.allocate(2)
    with pytest.raises(RuntimeError, match=r"wrong for pages \[0, 1\]"):
        pool.check(())
    pool.check(pages)

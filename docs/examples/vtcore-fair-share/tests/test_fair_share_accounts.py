"""The accounts' arithmetic, on numbers small enough to check by hand."""

from __future__ import annotations

import pytest
from vtcore_fair_share.accounts import MAX_ABSENT, ServiceAccounts
from vtcore_fair_share.options import FairShareOptions

from vtcore.interfaces.scheduler_policy import WaitingView


def accounts(**options: object) -> ServiceAccounts:
    return ServiceAccounts(FairShareOptions(**{"output_cost": 1.0, **options}))


def run(books: ServiceAccounts, request_id: str, num_prompt: int, num_output: int) -> None:
    """Compute a request as the core does: its prompt in one step, each later token in one of its own."""
    for num_tokens in (num_prompt, *[1] * (num_output - 1)):
        books.compute(request_id, num_tokens)
    books.finish(request_id, num_output)


def test_starts_follow_one_another_by_cost_over_weight() -> None:
    books = accounts(weights={"b": 2.0}, output_cost=3.0)
    starts = {tenant: [books.arrive(f"{tenant}{i}", tenant, 4, 2) for i in range(3)] for tenant in "ab"}
    assert starts == {"a": [0.0, 10.0, 20.0], "b": [0.0, 5.0, 10.0]}


def test_a_new_tenant_starts_at_the_present_and_not_at_the_beginning() -> None:
    books = accounts()
    for index in range(4):
        books.arrive(f"old{index}", "old", 9, 1)
    for index in range(3):
        books.compute(f"old{index}", 9)
    assert books.now == 20.0
    assert books.arrive("new", "new", 1, 1) == 20.0 < books.arrive("next", "old", 1, 1) == 40.0


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    books = accounts()
    books.arrive("early", "b", 4, 1)
    run(books, "early", 4, 1)
    for index in range(10):
        books.arrive(f"a{index}", "a", 9, 1)
        run(books, f"a{index}", 9, 1)
    books.arrive("running", "a", 9, 1)
    books.compute("running", 9)
    assert books.arrive("late", "b", 4, 1) == books.now > 0.0


def test_a_tenant_that_left_in_debt_comes_back_with_it() -> None:
    books = accounts()
    books.arrive("other", "b", 1, 1)
    books.arrive("long", "a", 50, 1)
    run(books, "long", 50, 1)
    assert books.now == 0.0
    assert books.arrive("again", "a", 1, 1) == 50.0


def test_when_nobody_is_left_all_debts_are_forgiven() -> None:
    books = accounts()
    books.arrive("long", "a", 50, 1)
    run(books, "long", 50, 1)
    assert books.arrive("a", "a", 1, 1) == books.arrive("b", "b", 1, 1) == books.now


def test_a_short_answer_gives_back_what_was_expected() -> None:
    books = accounts()
    books.arrive("other", "b", 1, 1)
    books.arrive("short", "a", 10, 1000)
    assert books.arrive("second", "a", 10, 1000) == 1010.0
    run(books, "short", 10, 5)
    # 10 + 4 for the first, and 10 + 1000 still expected of the second.
    assert books.arrive("third", "a", 10, 1000) == 14.0 + 1010.0


def test_the_next_answers_are_expected_to_be_like_the_last_ones() -> None:
    books = accounts()
    books.arrive("other", "b", 1, 1)
    books.arrive("first", "a", 10, 1000)
    run(books, "first", 10, 5)
    begin = books.arrive("second", "a", 10, 1000)
    assert books.arrive("third", "a", 10, 3) - begin == 10 + 5
    assert books.arrive("fourth", "a", 10, 1000) - begin == 15 + 10 + 3


def test_more_than_expected_is_charged_as_it_is_computed() -> None:
    books = accounts(output_cost=2.0)
    books.arrive("other", "b", 1, 1)
    books.arrive("first", "a", 10, 2)
    run(books, "first", 10, 2)
    books.arrive("long", "a", 10, 100)
    books.compute("long", 10)
    before = books.arrive("before", "a", 1, 1)
    for _ in range(7):
        books.compute("long", 1)
    # 14 for the long one were expected and 24 are computed; 3 for the one in between.
    assert books.arrive("after", "a", 1, 1) - before == 24 - 14 + 3


def test_what_the_prefix_cache_gave_is_free_in_the_end() -> None:
    books = accounts(output_cost=2.0)
    books.arrive("other", "b", 1, 1)
    books.arrive("hit", "a", 100, 4)
    run(books, "hit", 20, 4)
    assert books.arrive("next", "a", 1, 1) == 20 + 2 * 3


def test_what_is_computed_again_after_a_preemption_is_free() -> None:
    books = accounts()
    books.arrive("other", "b", 1, 1)
    books.arrive("unlucky", "a", 10, 4)
    for num_tokens in (10, 1):
        books.compute("unlucky", num_tokens)
    books.preempt("unlucky")
    for num_tokens in (12, 1):
        books.compute("unlucky", num_tokens)
    books.finish("unlucky", 4)
    assert books.arrive("next", "a", 1, 1) == 10 + 3


def test_a_request_that_never_ran_costs_nothing() -> None:
    books = accounts()
    books.arrive("other", "b", 1, 1)
    books.arrive("aborted", "a", 50, 50)
    books.finish("aborted", 0)
    assert books.arrive("next", "a", 1, 1) == 0.0


def test_nothing_is_remembered_of_requests_that_ended_and_little_of_tenants_that_left() -> None:
    books = accounts()
    books.arrive("stays", "stays", 1, 1)
    for index in range(3 * MAX_ABSENT):
        books.arrive(f"r{index}", f"t{index}", 2, 2)
        run(books, f"r{index}", 2, 2)
    assert books.num_remembered == 1 + 1 + MAX_ABSENT
    # The one who stayed is none of those forgotten.
    assert books.arrive("more", "stays", 1, 1) == 2.0


def test_events_of_unknown_requests_change_nothing() -> None:
    books = accounts()
    books.compute("x", 5)
    books.preempt("x")
    books.finish("x", 5)
    assert (books.now, books.num_remembered) == (0.0, 0)


def test_the_policys_key_is_the_start() -> None:
    from vtcore_fair_share.policy import FairSharePolicy

    policy = FairSharePolicy(FairShareOptions(weights={"a": 4.0}))
    views = [WaitingView(f"{i}", 0.0, 0.0, 0, "a", 4, 2, 0, 0, ()) for i in range(2)]
    assert [policy.key(view) for view in views] == [(0.0,), (2.0,)]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_divides_nothing_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="the weight of 'a' is"):
        FairShareOptions(weights={"a": weight})

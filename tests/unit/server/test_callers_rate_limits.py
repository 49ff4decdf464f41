"""Limits on callers, against a model that keeps every call."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DeniedError
from penstock.server.callers import MOST_CALLERS, CallLimits, RateLimit, TooManyError

STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 12), st.integers(0, 8)), max_size=60
)


@given(STEPS, st.integers(1, 4), st.integers(4, 10))
def test_a_bucket_lets_through_what_a_naive_one_does(
    steps: list[tuple[str, int, int]], rate: int, burst: int
) -> None:
    now = 0.0
    limit = RateLimit(rate, burst, lambda: now)
    levels = {"a": float(burst), "b": float(burst)}
    for caller, cost, pause in steps:
        now += pause / 4
        levels = {name: min(burst, it + pause / 4 * rate) for name, it in levels.items()}
        wanted = min(cost, burst)
        wait = limit.wait_for(caller, cost)
        assert (wait == 0.0) == (levels[caller] >= wanted)
        if wait == 0.0:
            levels[caller] -= wanted
        else:
            assert wait == pytest.approx((wanted - levels[caller]) / rate)


def test_what_is_remembered_is_bounded() -> None:
    limit = RateLimit(1, 5, lambda: 0.0)
    for number in range(MOST_CALLERS + 100):
        limit.wait_for(str(number))
    assert len(limit) == MOST_CALLERS


def test_calls_under_way_are_limited_per_user_and_in_all() -> None:
    limits = CallLimits(RateLimit(100, 100), RateLimit(1, 9), at_a_time=1, in_all=2)
    with limits.admit("a"), limits.admit("b"):
        with pytest.raises(TooManyError, match="of this user"), limits.admit("a"):
            pass
        with pytest.raises(TooManyError, match="are under way"), limits.admit("c"):
            pass
    with limits.admit("a"), limits.admit("c"):
        pass


def test_who_is_denied_again_and_again_has_to_wait() -> None:
    now = 0.0
    limits = CallLimits(RateLimit(100, 100), RateLimit(1, 3, lambda: now), at_a_time=1, in_all=2)
    for _ in range(3):
        with pytest.raises(DeniedError), limits.admit("a"):
            raise DeniedError("no")
    with pytest.raises(TooManyError, match="again and again"), limits.admit("a"):
        pass
    with limits.admit("b"):
        pass
    now = 1.0
    with limits.admit("a"):
        pass

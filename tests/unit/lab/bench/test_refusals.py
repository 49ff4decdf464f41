"""How well two series of times tell what they are of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_lab.bench.refusals import tell_apart

TIMES = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=12)


@given(TIMES, TIMES)
def test_it_is_the_share_of_pairs_whose_first_is_larger(
    some: list[float], more: list[float]
) -> None:
    above = sum((a > b) + (a == b) / 2 for a in some for b in more)
    assert tell_apart(some, more) == pytest.approx(above / (len(some) * len(more)))


def test_what_cannot_be_told_and_what_can() -> None:
    assert tell_apart([1, 2, 3], [1, 2, 3]) == 0.5
    assert (tell_apart([4, 5], [1, 2]), tell_apart([1, 2], [4, 5])) == (1, 0)

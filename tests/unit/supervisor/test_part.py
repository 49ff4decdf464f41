from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.supervisor.part import Part, in_order


def part(name: str, *after: str) -> Part:
    return Part(name, command=lambda _: ["true"], after=after)


def names(parts: list[Part]) -> list[str]:
    return [one.name for one in parts]


# Part number n may only come after lower numbers, so there is no circle.
graphs = st.integers(1, 8).flatmap(
    lambda size: st.tuples(*[st.sets(st.integers(-2, n - 1)) for n in range(size)])
)


@given(graphs, st.randoms(use_true_random=False))
def test_each_part_comes_after_those_it_needs(graph: tuple[set[int], ...], order: Random) -> None:
    parts = [part(f"p{n}", *(f"p{b}" for b in before)) for n, before in enumerate(graph)]
    order.shuffle(parts)
    sorted_names = names(in_order(parts))
    assert sorted(sorted_names) == sorted(names(parts))
    for n, before in enumerate(graph):
        for number in before & set(range(len(graph))):
            assert sorted_names.index(f"p{number}") < sorted_names.index(f"p{n}")


def test_what_is_not_configured_is_not_waited_for() -> None:
    assert names(in_order([part("gateway", "broker")])) == ["gateway"]


def test_a_circle_is_named() -> None:
    with pytest.raises(UsageError, match=r"wait for each other: .*a.*b"):
        in_order([part("a", "b"), part("b", "a")])

"""How long messages take by phase: the arithmetic, against plain cases and a slow model."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_lab.bench.emergencies.phases import (
    Arrival,
    count_packets,
    measure_overhead,
    split_phases,
    spread,
)


def test_a_message_is_split_where_the_broker_has_it() -> None:
    arrivals = [Arrival(1, 10.0, 10.5), Arrival(0, 10.0, 10.75)]
    first, second = split_phases({10.0: 0}, {10.0: 10.25}, arrivals, 2)
    assert first == {"c2b": [0.25], "b2c": [0.5], "c2c": [0.75]}
    assert second == {"c2b": [], "b2c": [0.25], "c2c": [0.5]}


def test_what_was_not_sent_or_not_seen_counts_as_far_as_it_is_known() -> None:
    arrivals = [Arrival(0, 1.0, 1.5), Arrival(0, 2.0, 2.5)]
    (found,) = split_phases({1.0: 0}, {2.0: 2.25}, arrivals, 1)
    assert found == {"c2b": [], "b2c": [], "c2c": [0.5]}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(1, 9),
            st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9))),
        )
    )
)
def test_phases_add_up(messages: list[tuple[int, int, list[tuple[int, int]]]]) -> None:
    sent = {float(due): place for due, (place, _, _) in enumerate(messages)}
    seen = {float(due): due + to_broker for due, (_, to_broker, _) in enumerate(messages)}
    arrivals = [
        Arrival(place, float(due), seen[float(due)] + on)
        for due, (_, _, readers) in enumerate(messages)
        for place, on in readers
    ]
    found = split_phases(sent, seen, arrivals, 3)
    for place, phases in enumerate(found):
        own = [it for it in messages if it[0] == place]
        assert phases["c2b"] == [to_broker for _, to_broker, _ in own]
        reached = [(it[1], on) for it in messages for at, on in it[2] if at == place]
        assert phases["b2c"] == [on for _, on in reached]
        assert phases["c2c"] == [to_broker + on for to_broker, on in reached]


def test_a_spread_is_in_milliseconds() -> None:
    assert spread([]) == {"count": 0}
    times = [it / 1000 for it in range(1, 101)]
    assert spread(reversed(times)) == {
        "count": 100,
        "mean_ms": pytest.approx(fmean(times) * 1000),
        "median_ms": 51.0,
        "p99_ms": 99.0,
    }


def report(published: tuple[int, float], delivered: tuple[int, float]) -> dict[str, Any]:
    return {
        "settled": {"count": published[0], "mean_us": published[1]},
        "delivery": {"count": delivered[0], "mean_us": delivered[1]},
        "seconds": 2.0,
    }


def test_gateways_count_by_how_much_they_decided() -> None:
    reports = [report((1, 4000.0), (10, 100.0)), report((3, 0.0), (30, 500.0))]
    assert measure_overhead(reports) == {"c2b": 1.0, "b2c": 0.4, "c2c": 1.4}
    assert count_packets(reports) == {"c2b": 2.0, "b2c": 20.0, "c2c": 22.0}


def test_a_gateway_that_decided_nothing_adds_nothing() -> None:
    idle = {"settled": {"count": 0}, "delivery": {"count": 0}, "seconds": 1.0}
    assert measure_overhead([idle]) == {"c2b": 0.0, "b2c": 0.0, "c2c": 0.0}

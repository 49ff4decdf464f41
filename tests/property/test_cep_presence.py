"""Stays against the set of samples that they stand for."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cep.presence import DAY, Presence

WITHIN = 3 * DAY
samples = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "cid", "dan"]),
        st.sampled_from(["hall", "garden"]),
        # Ticks around two midnights, early and late, in any order.
        st.integers(0, 2).flatmap(
            lambda day: st.integers(-12, 12).map(lambda tick: day * 86_400 + tick)
        ),
    ),
    max_size=60,
)


@settings(max_examples=600, deadline=None)
@given(samples, st.integers(0, 80), st.integers(0, 40), st.sampled_from([10_000, 3, 0]))
def test_stays_are_exactly_the_samples(
    given_samples: list[tuple[str, str, int]], later: int, split: int, pairs: int
) -> None:
    start = 20_000 * DAY
    presence = Presence(1000, WITHIN, 10_000, pairs)
    unsaved = Presence(1000, WITHIN, 10_000, pairs)
    naive: set[tuple[str, str, int]] = set()
    now = start
    for number, (who, place, tick) in enumerate(given_samples):
        at = start + DAY + tick * 1000
        now = max(now, at)
        presence.add(who, place, at + number % 1000)
        unsaved.add(who, place, at + number % 1000)
        naive.add((who, place, at // 1000))
        if number == split:
            saved = presence.save()
            presence = Presence(1000, WITHIN, 10_000, pairs)
            presence.load(json.loads(json.dumps(saved)))
    now += later * 3_600_000
    counted = {spot for spot in naive if spot[2] * 1000 > now - WITHIN}
    for who in ("ann", "bob", "cid", "dan"):
        ticks = {
            (stay.place, tick)
            for stay in presence.visits(who, now)
            for tick in range(stay.first, stay.last + 1)
        }
        assert ticks == {(place, tick) for one, place, tick in counted if one == who}
        met: dict[tuple[str, str, int], set[int]] = {}
        for other, place, tick in counted:
            if other != who and (who, place, tick) in counted:
                met.setdefault((other, place, tick // 86_400), set()).add(tick)
        assert {
            (it.other, it.place, it.day): (it.ticks, it.first) for it in presence.meetings(who, now)
        } == {key: (len(found), min(found)) for key, found in met.items()}
        together: Counter[tuple[str, int]] = Counter()
        for (other, _, day), found in met.items():
            together[other, day] += len(found)
        assert {
            (other, first // 86_400): ticks
            for first, company in presence.company(who, now)
            for other, ticks in company
        } == together
        # Steps are repeated after a restart: the order must be the same, too.
        assert [(day, list(it)) for day, it in presence.company(who, now)] == [
            (day, list(it)) for day, it in unsaved.company(who, now)
        ]


def test_what_is_too_much_costs_the_oldest_day() -> None:
    presence = Presence(1000, 10 * DAY, 5, 5)
    for day in range(3):
        for visit in range(4):
            presence.add("ann", f"room-{visit}", day * DAY + visit * 60_000)
    assert presence.dropped > 0
    assert {stay.first // 86_400 for stay in presence.visits("ann", 3 * DAY)} <= {1, 2}


def test_people_who_are_gone_are_forgotten() -> None:
    presence = Presence(1000, DAY, 5, 5)
    for number in range(9):
        presence.add(f"p{number}", "hall", number * 1000)
    assert presence.dropped == 4
    assert [it.other for it in presence.meetings("p8", 8000)] == []
    assert [len(presence.visits(f"p{number}", 8000)) for number in range(9)] == [0] * 4 + [1] * 5
    presence.visits("p8", 3 * DAY)
    days, still_there, _ = presence.save()
    assert (days, still_there) == ([], [])


def test_samples_without_a_person_or_place_do_not_count() -> None:
    presence = Presence(1000, DAY, 5, 5)
    presence.add(None, "hall", 0)
    presence.add("ann", None, 0)
    assert presence.visits("ann", 0) == []


def test_who_is_there_is_told_in_the_same_order_after_a_restart() -> None:
    presence = Presence(1000, DAY, 100, 100)
    for tick, who, place in [
        (0, "ann", "hall"),
        (0, "cid", "hall"),
        (1, "ann", "garden"),
        (1, "cid", "hall"),
        (2, "ann", "hall"),
        (2, "cid", "hall"),
        (2, "dan", "hall"),
        (3, "ann", "hall"),
        (3, "cid", "hall"),
        (3, "dan", "hall"),
    ]:
        presence.add(who, place, tick * 1000)
    again = Presence(1000, DAY, 100, 100)
    again.load(json.loads(json.dumps(presence.save())))
    ((_, met),) = presence.company("dan", 4000)
    ((_, known),) = again.company("dan", 4000)
    assert list(met) == list(known) == [("cid", 2), ("ann", 2)]

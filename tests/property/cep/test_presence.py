"""Stays against the ticks that a naive model finds in the samples.

The model keeps all samples. Two of a person at one place, on one day, at most 1,500 ms apart
are one stay (see `penstock.cep.presence`): every tick between them counts,
and their own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cep.context import StateError
from penstock.cep.presence import Presence
from penstock.lang.scalars import DAY
from tests.support.scale import scaled

EVERY = 1000
REACH = 1500
WITHIN = 3 * DAY
START = 20_000 * DAY
PEOPLE = ("ann", "bob", "cid", "dan")
PLACES = ("hall", "garden")

Sample: TypeAlias = tuple[str, str, int]
"""Who, where, and when: in milliseconds after the start."""
Spot: TypeAlias = tuple[str, str, int]
"""Who, where, and in which tick since 1970."""

# Around three midnights, and around the distance at which a stay ends.
moments = st.builds(
    lambda day, tenth, more: day * DAY + tenth * 100 + more,
    st.integers(1, 3),
    st.integers(-60, 60),
    st.sampled_from([-1, 0, 0, 1]),
)
anything = st.lists(
    st.tuples(st.sampled_from(PEOPLE), st.sampled_from(PLACES), moments), max_size=60
)


@st.composite
def walks(draw: st.DrawFn) -> list[Sample]:
    """Draw samples of everybody each second: early, late, missing, repeated, in disorder."""
    random = draw(st.randoms(use_true_random=False))
    jitter = draw(st.sampled_from([0, 30, 250, 900]))
    disorder = draw(st.sampled_from([0, 0, 1500, 8000]))
    came: list[tuple[int, Sample]] = []
    for who in PEOPLE:
        phase, place = random.randrange(EVERY), random.choice(PLACES)
        for second in range(-8, 8):
            if random.random() < 0.2:
                place = random.choice(PLACES)
            at = DAY + second * EVERY + phase + random.randint(-jitter, jitter)
            came += [
                (at + random.randint(0, disorder), (who, place, at))
                for _ in range(random.choice([0, 1, 1, 1, 1, 1, 1, 2]))
            ]
    return [sample for _, sample in sorted(came)]


def find_ticks(samples: Iterable[Sample]) -> set[Spot]:
    """Return who is present where in which tick."""
    found: set[Spot] = set()
    times: dict[tuple[str, str, int], set[int]] = {}
    for who, place, at in samples:
        found.add((who, place, (START + at) // EVERY))
        times.setdefault((who, place, at // DAY), set()).add(START + at)
    for (who, place, _), moments in times.items():
        for one, next_one in pairwise(sorted(moments)):
            if next_one - one <= REACH:
                between = range(one // EVERY, next_one // EVERY)
                found |= {(who, place, tick) for tick in between}
    return found


@settings(max_examples=scaled(800), deadline=None)
@given(
    st.one_of(anything, walks()),
    st.integers(0, 80),
    st.integers(0, 60),
    st.sampled_from([10_000, 3, 0]),
)
def test_presence_is_what_the_samples_say(
    samples: list[Sample], later: int, split: int, pairs: int
) -> None:
    presence = Presence(EVERY, WITHIN, 10_000, pairs)
    unsaved = Presence(EVERY, WITHIN, 10_000, pairs)
    now = START
    for number, (who, place, at) in enumerate(samples):
        now = max(now, START + at)
        presence.add(who, place, START + at)
        unsaved.add(who, place, START + at)
        if number == split:
            saved = presence.save()
            presence = Presence(EVERY, WITHIN, 10_000, pairs)
            presence.load(json.loads(json.dumps(saved)))
    now += later * 3_600_000
    check(presence, {spot for spot in find_ticks(samples) if spot[2] * EVERY > now - WITHIN}, now)
    for who in PEOPLE:
        # Steps are repeated after a restart: the order must be the same, too.
        assert [(day, list(it)) for day, it in presence.contacts(who, now)] == [
            (day, list(it)) for day, it in unsaved.contacts(who, now)
        ]


def check(presence: Presence, counted: set[Spot], now: int) -> None:
    for who in PEOPLE:
        visits = presence.visits(who, now)
        ticks = [(it.place, tick) for it in visits for tick in range(it.first, it.last + 1)]
        assert len(ticks) == len(set(ticks))
        assert set(ticks) == {(place, tick) for one, place, tick in counted if one == who}
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
            for first, company in presence.contacts(who, now)
            for other, ticks in company
        } == together


@settings(max_examples=scaled(300), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(PEOPLE), st.sampled_from(PLACES), st.integers(-12, 12)),
        max_size=80,
    ),
    st.lists(st.integers(0, EVERY - 1), min_size=4, max_size=4),
)
def test_with_exact_clocks_presence_is_the_set_of_samples(
    seconds: list[tuple[str, str, int]], phases: list[int]
) -> None:
    presence = Presence(EVERY, WITHIN, 10_000, 10_000)
    counted: set[Spot] = set()
    for who, place, second in seconds:
        at = START + DAY + second * EVERY
        presence.add(who, place, at + phases[PEOPLE.index(who)])
        counted.add((who, place, at // EVERY))
    check(presence, counted, START + 2 * DAY)


@given(walks(), st.randoms(use_true_random=False))
def test_the_order_of_samples_makes_no_difference(samples: list[Sample], random: Random) -> None:
    told = []
    for _ in range(2):
        presence = Presence(EVERY, WITHIN, 10_000, 10_000)
        for who, place, at in samples:
            presence.add(who, place, START + at)
        now = START + 2 * DAY
        told.append([(presence.visits(it, now), presence.meetings(it, now)) for it in PEOPLE])
        random.shuffle(samples)
    assert told[0] == told[1]


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
    assert presence.save() == {"stays": [], "open": [], "sums": []}


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
    ((_, met),) = presence.contacts("dan", 4000)
    ((_, known),) = again.contacts("dan", 4000)
    assert list(met) == list(known) == [("cid", 2), ("ann", 2)]


def test_stays_of_another_format_are_refused() -> None:
    with pytest.raises(StateError, match="stays of another format"):
        Presence(1000, DAY, 5, 5).load([[], [], []])

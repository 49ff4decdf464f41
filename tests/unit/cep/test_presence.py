"""What of samples counts as presence, example by example."""

from __future__ import annotations

import random

import pytest

from penstock.cep.presence import Presence, Visit
from penstock.lang.scalars import DAY

START = 20_000 * DAY
TICK = START // 1000


def stays(*moments: int, every: int = 1000) -> list[tuple[int, int]]:
    """Return the stays of somebody at one place, in ticks since the start."""
    presence = Presence(every, 3 * DAY, 100, 100)
    for at in moments:
        presence.add("ann", "hall", START + at)
    start = START // every
    return [(it.first - start, it.last - start) for it in presence.visits("ann", START + DAY)]


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ([20, 980, 2010, 2990, 5010], [(0, 2), (5, 5)]),  # as in the module's docstring
        ([0, 1000, 3000, 4000], [(0, 1), (3, 4)]),  # a sample is missing
        ([990, 2490], [(0, 2)]),  # one and a half seconds apart
        ([990, 2491], [(0, 0), (2, 2)]),  # more than that
        ([0, 1499, 2999], [(0, 2)]),
        ([5, 5, 5], [(0, 0)]),  # the same once more
        ([2010, 980], [(0, 2)]),  # in disorder
        ([2490, 5000, 990], [(0, 2), (5, 5)]),
        ([2491, 5000, 990], [(0, 0), (2, 2), (5, 5)]),
        ([980, 3400, 2200], [(0, 3)]),  # a late one joins both
        ([2400, 1700, 2000], [(1, 2)]),  # late, at the place of the present stay
    ],
)
def test_samples_within_reach_are_one_stay(
    moments: list[int], expected: list[tuple[int, int]]
) -> None:
    assert stays(*moments) == expected


def test_reach_follows_the_period() -> None:
    assert stays(0, 90_000, 180_001, every=60_000) == [(0, 1), (3, 3)]
    assert stays(0, 1, 3, every=1) == [(0, 1), (3, 3)]


def test_the_first_sample_of_a_day_begins_a_stay() -> None:
    assert stays(DAY - 20, DAY + 1010) == [(86_399, 86_399), (86_401, 86_401)]


def test_who_was_elsewhere_for_a_second_was_not_here() -> None:
    presence = Presence(1000, DAY, 100, 100)
    for second, place in enumerate(["hall", "garden", "hall", "hall"]):
        presence.add("ann", place, START + second * 1000)
    assert presence.visits("ann", START + 4000) == [
        Visit("hall", TICK, TICK),
        Visit("garden", TICK + 1, TICK + 1),
        Visit("hall", TICK + 2, TICK + 3),
    ]


@pytest.mark.parametrize("jitter", [30, 120, 249])
@pytest.mark.parametrize("phase", [0, 500])
def test_jitter_costs_no_time_together(jitter: int, phase: int) -> None:
    draw = random.Random(jitter)
    presence = Presence(1000, 3 * DAY, 100, 100)
    samples = [
        (START + 3_600_000 + second * 1000 + phase + draw.randint(-jitter, jitter), who)
        for second in range(1700)
        for who in ("ann", "bob")
    ]
    for at, who in sorted(samples):
        presence.add(who, "hall", at)
    now = START + DAY
    assert len(presence.visits("ann", now)) == 1
    ((other, _, _, _, ticks),) = presence.meetings("ann", now)
    assert other == "bob"
    assert 1699 <= ticks <= 1701
    # The sum that is kept says the same, while stays are open and when they have ended.
    assert company(presence, now) == {"bob": ticks}
    presence.add("ann", "garden", START + 7_200_000)
    assert company(presence, now) == {"bob": ticks}
    presence.add("bob", "cellar", START + 7_200_000)
    assert company(presence, now) == {"bob": ticks}


def company(presence: Presence, now: int) -> dict[str, int]:
    ((_, found),) = presence.contacts("ann", now)
    return dict(found)

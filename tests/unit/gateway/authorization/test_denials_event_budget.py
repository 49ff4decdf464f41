"""Who may cause how many entries in the audit log, and what becomes of the rest."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.authorization.denials import (
    OTHERS,
    PRINCIPALS,
    EventBudget,
    Principal,
    Waiting,
)

Event = tuple[str, int]


def fold(event: Event, whose: Principal) -> Event:
    del event
    return ("others" if whose is OTHERS else whose.user or whose.address, -1)


class Taken:
    """Takes events as the audit log does, as many as it has room for."""

    def __init__(self, room: int = 10**9) -> None:
        self.room = room
        self.events: list[tuple[Event, int]] = []

    def __call__(self, event: Event, waiting: Waiting) -> bool:
        if len(self.events) >= self.room:
            return False
        self.events.append((event, waiting.times))
        return True

    @property
    def total(self) -> int:
        return sum(times for _, times in self.events)


def test_one_who_floods_is_bounded_and_holds_up_nobody() -> None:
    budget = EventBudget(10, 1000, 4, fold)
    taken = Taken()
    for second in range(60):
        for number in range(500):
            budget.add("mallory", "", ("mallory", number), float(second))
        budget.add("alice", "", ("alice", second), float(second))
        budget.spend(float(second), taken)
    by = Counter(who for (who, _), _ in taken.events)
    assert by["mallory"] <= 11
    assert by["alice"] >= 10
    budget.spend(60.0, taken, ending=True)
    assert taken.total == 60 * 501


def test_accounts_take_turns_where_the_bound_of_all_is_reached() -> None:
    budget = EventBudget(100, 8, 50, fold)
    for number in range(50):
        budget.add("mallory", "", ("mallory", number), 0.0)
    for who in ("alice", "bob", "carol"):
        budget.add(who, "", (who, 0), 1.0)
    taken = Taken()
    budget.spend(1.0, taken)
    assert {who for (who, _), _ in taken.events} == {"mallory", "alice", "bob", "carol"}
    # Who was not served for the longest is first, whatever else waits.
    budget.add("dora", "", ("dora", 0), 1.5)
    for minute in range(1, 61):
        budget.add("mallory", "", ("mallory", 1000 + minute), 1.0 + minute * 60)
        budget.spend(1.0 + minute * 60, taken)
    assert ("dora", 0) in [event for event, _ in taken.events]


def test_who_did_not_authenticate_is_known_by_the_address() -> None:
    budget = EventBudget(2, 1000, 4, fold)
    taken = Taken()
    for number in range(100):
        budget.add("", f"2001:db8::{number:x}", ("client", number), 0.0)
        budget.add("", "2001:db8:0:1::1", ("other network", 0), 0.0)
        budget.add("", "::ffff:10.0.0.1", ("mapped", 0), 0.0)
        budget.add("", "10.0.0.1", ("mapped", 0), 0.0)
    budget.spend(0.0, taken)
    assert Counter(who for (who, _), _ in taken.events) == {
        "client": 2,
        "other network": 1,
        "mapped": 1,
    }


def test_more_principals_than_accounts_share_one() -> None:
    budget = EventBudget(2, 10**9, 4, fold)
    for number in range(PRINCIPALS + 100):
        budget.add(f"user{number}", "", (f"user{number}", 0), 0.0)
    assert budget.waiting()["others", -1] == 100
    taken = Taken()
    budget.spend(0.0, taken)
    # Who has nothing more to tell makes room.
    budget.add("late", "", ("late", 0), 1.0)
    assert budget.waiting() == {("late", 0): 1}


def test_what_is_not_taken_waits() -> None:
    budget = EventBudget(100, 100, 10, fold)
    for number in range(5):
        budget.add("a", "", ("a", number), 0.0)
    full = Taken(room=2)
    budget.spend(0.0, full)
    budget.spend(0.0, full, ending=True)
    assert sum(budget.waiting().values()) == 3
    rest = Taken()
    budget.spend(0.0, rest)
    assert rest.total == 3


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.floats(0, 600)),
        max_size=200,
    ),
    st.integers(1, 5),
    st.integers(1, 20),
)
def test_every_event_is_counted_once(
    events: list[tuple[str, int, float]], per_principal: int, per_hour: int
) -> None:
    budget = EventBudget(per_principal, per_hour, 3, fold)
    taken = Taken()
    now = 0.0
    for who, number, pause in events:
        now += pause
        budget.add(who, "", (who, number), now)
        budget.spend(now, taken)
    hours = now / 3600
    written = Counter(who for (who, _), _ in taken.events)
    assert all(count <= per_principal * (1 + hours) + 1 for count in written.values())
    assert len(taken.events) <= per_hour * (1 + hours) + 1
    budget.spend(now, taken, ending=True)
    told: Counter[str] = Counter()
    for (who, _), times in taken.events:
        told[who] += times
    assert told == Counter(who for who, _, _ in events)

"""The order of log-ins, against what is fair by a plain record of all that happened."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.connection.login_queue import (
    FREE_FAILURES,
    LONGEST_BACKOFF,
    LoginOrder,
    Source,
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("AAB"), st.sampled_from("xyz")),
        st.tuples(st.just("take"), st.none(), st.none()),
        st.tuples(st.just("finish"), st.integers(0, 3), st.sampled_from([True, False, False])),
        st.tuples(st.just("remove"), st.integers(0, 9), st.none()),
        st.tuples(st.just("later"), st.sampled_from([0.4, 3.0]), st.none()),
    ),
    max_size=80,
)


class Record:
    """All that waits, runs and failed, in plain lists."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waiting: list[tuple[Source, int]] = []
        self.running: list[Source] = []
        self.failed: dict[Source, int] = {}
        self.blocked: dict[Source, float] = {}
        self.passed_over: dict[tuple[str, str], set[str]] = {}
        """Per ready network or user: which others had a turn since it has been ready."""

    def eligible(self) -> list[Source]:
        found = []
        for source, _ in self.waiting:
            busy = source in self.running and source in self.failed
            if not busy and self.blocked.get(source, 0.0) <= self.now and source not in found:
                found.append(source)
        return found

    def finish(self, source: Source, *, right: bool) -> None:
        self.running.remove(source)
        if right:
            self.failed.pop(source, None)
            self.blocked.pop(source, None)
            return
        count = self.failed[source] = self.failed.get(source, 0) + 1
        over = count - FREE_FAILURES
        wait = min(LONGEST_BACKOFF, 2.0 ** (over - 1)) if over > 0 else 0.0
        self.blocked[source] = self.now + wait

    def note_turn(self, source: Source) -> None:
        """Check that nobody who was ready was passed over twice by the same."""
        ready = self.eligible()
        keys = {("network", it.network): source.network for it in ready}
        keys |= {(it.network, it.user): source.user for it in ready if it.network == source.network}
        for key in list(self.passed_over):
            if key not in keys and (key[0] == "network" or key[0] == source.network):
                del self.passed_over[key]
        for key, by in keys.items():
            if by == key[1]:
                self.passed_over.pop(key, None)
                continue
            seen = self.passed_over.setdefault(key, set())
            assert by not in seen, f"{key} was passed over twice by {by}"
            seen.add(by)


@given(STEPS)
def test_turns_are_fair_and_slower_after_failures(steps: list[tuple[str, str, str]]) -> None:
    order: LoginOrder[int] = LoginOrder()
    record = Record()
    number = 0
    for what, one, two in steps:
        if what == "add":
            number += 1
            source = Source(one, two)
            order.add(source, number, record.now)
            record.waiting.append((source, number))
        elif what == "take":
            _take(order, record)
        elif what == "finish" and record.running:
            source = record.running[int(one) % len(record.running)]
            order.finish(source, record.now, right=bool(two))
            record.finish(source, right=bool(two))
        elif what == "remove" and record.waiting:
            source, login = record.waiting.pop(int(one) % len(record.waiting))
            order.remove(source, login)
            record.passed_over.clear()
        elif what == "later":
            record.now += float(one)
        for source in {it for it, _ in record.waiting}:
            assert order.count(source) == sum(it == source for it, _ in record.waiting)
    while record.waiting:  # whatever happened, everybody's turn comes
        record.now += LONGEST_BACKOFF
        while record.running:
            source = record.running[0]
            order.finish(source, record.now, right=True)
            record.finish(source, right=True)
        _take(order, record)


def _take(order: LoginOrder[int], record: Record) -> None:
    got = order.take(record.now)
    eligible = record.eligible()
    if got is None:
        assert not eligible
        return
    source = next(it for it, login in record.waiting if login == got)
    assert source in eligible
    assert got == next(login for it, login in record.waiting if it == source)
    record.note_turn(source)
    record.waiting.remove((source, got))
    record.running.append(source)


def test_a_name_is_held_up_from_the_network_that_was_wrong_only() -> None:
    order: LoginOrder[str] = LoginOrder()
    attacked, elsewhere = Source("attacker", "alice"), Source("ward", "alice")
    beside = Source("attacker", "bob")
    for _ in range(20):
        order.failures.add(attacked, 0.0)
    order.add(attacked, "guess", 0.0)
    order.add(elsewhere, "alice", 0.0)
    order.add(beside, "bob", 0.0)
    assert {order.take(0.0), order.take(0.0), order.take(0.0)} == {"alice", "bob", None}
    assert order.next_wake() == LONGEST_BACKOFF
    assert order.take(LONGEST_BACKOFF) == "guess"


def test_what_is_remembered_of_failures_is_bounded() -> None:
    order: LoginOrder[int] = LoginOrder()
    for network in range(5_000):
        for user in range(70 if network < 100 else 1):
            order.failures.add(Source(str(network), str(user)), 0.0)
    assert len(order.failures) <= 4_096 + 100 * 64
    for user in range(10_000):
        order.failures.add(Source("one", str(user)), 0.0)
    assert len(order.failures) <= 4_096 + 100 * 64 + 64

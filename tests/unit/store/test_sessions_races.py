"""Many connections want one session at once: each inherits all that was kept before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.store.database import Database
from penstock.store.sessions import (
    Begin,
    Forget,
    Keep,
    Return,
    SessionChange,
    Sessions,
    StoredSubscription,
    TakenError,
)

RIVALS, TURNS = 4, 15
SOON = 60.0


@contextmanager
def rivals(url: str) -> Iterator[list[Sessions]]:
    """Give each rival a database of its own, as gateways on several hosts have."""
    databases = [Database.open(url) for _ in range(RIVALS)]
    try:
        yield [Sessions(database) for database in databases]
    finally:
        for database in databases:
            database.close()


class Rival(threading.Thread):
    """Takes the session up again and again, and adds a subscription each time."""

    def __init__(self, name: str, sessions: Sessions, start: threading.Barrier) -> None:
        super().__init__(name=name, daemon=True)
        self.sessions = sessions
        self.barrier = start
        self.taken: list[tuple[str | None, str]] = []
        self.inherited: dict[str, frozenset[str]] = {}
        self.kept: dict[str, str] = {}
        self.refused = 0

    def run(self) -> None:
        self.barrier.wait(SOON)
        for turn in range(TURNS):
            holder = f"{self.name}-{turn}"
            while not self.take_up(holder):
                self.refused += 1
            self.keep(holder)

    def take_up(self, holder: str) -> bool:
        seen = self.sessions.load("c")
        change = Return("c", holder, seen) if seen else Begin("c", "alice", holder, None)
        try:
            self.sessions.apply([change])
        except TakenError:
            return False
        self.taken.append((seen.holder if seen else None, holder))
        held = seen.subscriptions if seen else ()
        self.inherited[holder] = frozenset(it.filter for it in held)
        return True

    def keep(self, holder: str) -> None:
        number = len(self.inherited[holder]) + 1
        added = StoredSubscription(f"f/{holder}", number, "mine", 1, 0)
        try:
            self.sessions.apply([Keep("c", holder, (added,), (), number)])
        except TakenError:
            return
        self.kept[holder] = added.filter


def test_of_rivals_each_inherits_what_those_before_it_kept(store_url: str) -> None:
    with rivals(store_url) as all_sessions:
        barrier = threading.Barrier(RIVALS)
        threads = [Rival(f"r{n}", it, barrier) for n, it in enumerate(all_sessions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
            assert not thread.is_alive()
        last = all_sessions[0].load("c")
    taken = dict(pair for thread in threads for pair in thread.taken)
    inherited = {name: held for thread in threads for name, held in thread.inherited.items()}
    kept = {name: held for thread in threads for name, held in thread.kept.items()}
    assert sum(thread.refused for thread in threads) > 0, "nobody met anybody"
    # Each holder was followed by one: all of them stand in one row, and the last has it.
    assert len(taken) == RIVALS * TURNS
    present: set[str] = set()
    holder = taken[None]
    while True:
        assert inherited[holder] == present
        if holder in kept:
            present.add(kept[holder])
        if holder not in taken:
            break
        holder = taken[holder]
    assert len(inherited) == RIVALS * TURNS
    assert last is not None
    assert last.holder == holder
    assert {it.filter for it in last.subscriptions} == present
    assert len({it.number for it in last.subscriptions}) == len(present)


def test_of_rivals_that_saw_the_same_one_wins(store_url: str) -> None:
    """Whatever they want: to take the session up, to begin it anew, or to forget it."""
    with rivals(store_url) as all_sessions:
        all_sessions[0].apply([Begin("c", "alice", "h", None)])
        seen = all_sessions[0].load("c")
        assert seen is not None
        wishes: list[SessionChange] = [
            Return("c", "r0", seen),
            Begin("c", "alice", "r1", "h"),
            Forget("c", "h"),
            Return("c", "r3", seen),
        ]
        barrier = threading.Barrier(RIVALS)
        winners: list[int] = []

        def try_it(number: int) -> None:
            barrier.wait(SOON)
            try:
                all_sessions[number].apply([wishes[number]])
            except TakenError:
                return
            winners.append(number)

        threads = [threading.Thread(target=try_it, args=(n,)) for n in range(RIVALS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        (winner,) = winners
        owner = all_sessions[0].owner("c")
        assert (owner.holder if owner else None) == {2: None}.get(winner, f"r{winner}")

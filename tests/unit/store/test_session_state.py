"""The purpose state of kept sessions, in both databases, against dictionaries."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from penstock.errors import UsageError
from penstock.model.kinds.purposes import STATE_LOG
from penstock.store import session_state
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock.store.session_state import PAUSED, STATE, Excepted, StateCommand, StateLog
from penstock.store.sessions import Begin, Keep, Leave, Sessions, StoredSubscription
from tests.support.scale import scaled

FILTERS = ["a", "b/#", "$share/g/c", "d"]
PURPOSES = [None, "care", "ads"]
WHO = {"c1": "ann", "c2": "bob", "c3": "anonymous"}


def log(*commands: tuple[int, session_state.Did]) -> StateLog:
    made = StateLog()
    for epoch, did in commands:
        made = made.add(did, epoch)
    return made


def test_a_log_tells_what_came_after_an_epoch() -> None:
    made = log((3, "persist"), (5, "clear"), (6, "reload"), (9, "persist"))
    assert made.persisted == 9
    assert (made.last, made.last_ending) == (9, 6)
    assert made.since(5) == (StateCommand(6, "reload"), StateCommand(9, "persist"))
    assert StateLog.read(made.document().body) == made
    assert StateLog.read(None) == StateLog()
    assert (StateLog().last, StateLog().last_ending) == (0, 0)


def test_who_has_missed_more_than_the_log_holds_ends_all_first() -> None:
    made = log(*((epoch, "persist") for epoch in range(1, STATE_LOG + 10)))
    assert len(made.commands) == STATE_LOG
    assert made.since(0)[0].did == "clear"
    assert [it.did for it in made.since(made.last - 1)] == ["persist"]


def test_the_log_is_a_valid_definition(database: Database) -> None:
    full = log(*((epoch, "clear") for epoch in range(1, 2 * STATE_LOG)), (500, "persist"))
    CheckedDefinitions(Definitions(database)).apply([full.document()], actor="test")
    with database.read() as connection:
        assert session_state.read_log(connection) == full


def test_nothing_is_known_where_nothing_was_done(database: Database) -> None:
    definitions = CheckedDefinitions(Definitions(database))
    with database.read() as connection:
        assert session_state.read_log(connection) == StateLog()
    definitions.apply([log((1, "clear")).document()], actor="test")
    definitions.delete([STATE], actor="test")
    with database.read() as connection:
        assert session_state.read_log(connection) == StateLog()


def test_too_many_exceptions_are_refused(database: Database) -> None:
    many = Excepted([f"u{count}" for count in range(session_state.EXCEPTED_LIMIT + 1)])
    with pytest.raises(UsageError, match="clear_excepts"), database.write() as connection:
        session_state.clear(connection, many)


def test_what_was_decided_before_a_clear_and_comes_later_has_ended(database: Database) -> None:
    sessions = Sessions(database)
    sessions.apply([Begin("c", "ann", "h", None)])
    CheckedDefinitions(Definitions(database)).apply(
        [log((4, "clear"), (5, "persist")).document()], actor="test"
    )
    care, plain = StoredSubscription("a", 1, "care", 1, 7), StoredSubscription("b", 2, None, 1, 0)
    paused = StoredSubscription("c", 3, "care", 1 | PAUSED, 0)
    sessions.apply([Keep("c", "h", (care, plain, paused), (), 3, (), 3)])
    seen = sessions.load("c")
    assert seen is not None
    ended = StoredSubscription("a", -1, "care", 1, 7)
    assert (seen.subscriptions, seen.era) == ((ended, plain), 5)
    sessions.apply([Keep("c", "h", (care,), (), 3, (), 4)])
    seen = sessions.load("c")
    assert seen is not None
    assert seen.subscriptions == (care, plain)


def test_what_was_persisted_goes_with_its_session(database: Database) -> None:
    sessions = Sessions(database)
    care = StoredSubscription("a", 1, "care", 1, 0)
    sessions.apply([Begin("c", "ann", "h", None), Keep("c", "h", (care,), (), 1)])
    with database.write() as connection:
        session_state.persist(connection)
    # Whoever has the identifier next begins with nothing.
    sessions.apply([Leave("c", "h", 0), Begin("c", "mallory", "i", None)])
    with database.write() as connection:
        session_state.reload(connection)
    seen = sessions.load("c")
    assert seen is not None
    assert (seen.subscriptions, seen.persisted) == ((), ())


@dataclass
class Naive:
    """One session as dictionaries from filters to purposes."""

    held: dict[str, str | None] = field(default_factory=dict)
    persisted: dict[str, str | None] = field(default_factory=dict)

    def clear(self) -> None:
        self.held = {text: ap for text, ap in self.held.items() if ap is None}

    def reload(self) -> None:
        self.clear()
        self.held |= self.persisted


def test_commands_do_to_rows_what_they_do_to_dictionaries(database: Database) -> None:
    choice = random.Random(7)
    sessions = Sessions(database)
    naive = {name: Naive() for name in WHO}
    numbers = dict.fromkeys(WHO, 0)
    for name, user in WHO.items():
        sessions.apply([Begin(name, user, "h", None)])
    for step in range(scaled(150)):
        does = choice.choice(["put", "put", "put", "drop", "clear", "persist", "reload", "back"])
        name = choice.choice(list(WHO))
        text, ap = choice.choice(FILTERS), choice.choice(PURPOSES)
        if does == "put":
            numbers[name] += 1
            flags = choice.choice([1, 2, 1 | PAUSED])
            made = StoredSubscription(text, numbers[name], ap, flags, step)
            sessions.apply([Keep(name, "h", (made,), (), numbers[name])])
            naive[name].held[text] = ap
        elif does == "drop":
            sessions.apply([Keep(name, "h", (), (text,), numbers[name])])
            naive[name].held.pop(text, None)
            naive[name].persisted.pop(text, None)
        elif does == "back":
            take_up(sessions, name)
        else:
            carry_out(database, naive, does)
        for who, plain in naive.items():
            check(sessions, who, plain)


def carry_out(database: Database, naive: dict[str, Naive], does: str) -> None:
    with database.write() as connection:
        if does == "clear":
            # `c3` is a name that anybody can choose.
            session_state.clear(connection, Excepted(["bob"], ["c3"]))
        elif does == "persist":
            session_state.persist(connection)
        else:
            session_state.reload(connection)
    for who, plain in naive.items():
        if does == "clear" and WHO[who] != "bob":
            plain.clear()
        elif does == "persist":
            plain.persisted = dict(plain.held)
        elif does == "reload":
            plain.reload()


def take_up(sessions: Sessions, name: str) -> None:
    """Do what a gateway does when the client is back: tell the broker, and note that."""
    seen = sessions.load(name)
    assert seen is not None
    live = tuple(
        StoredSubscription(it.filter, it.number, it.purpose, it.options & ~PAUSED, it.identifier)
        for it in seen.subscriptions
        if it.number > 0
    )
    gone = {it.filter for it in seen.subscriptions if it.number < 0} - {it.filter for it in live}
    sessions.apply([Keep(name, "h", live, (), seen.last_number, tuple(gone))])


def check(sessions: Sessions, name: str, plain: Naive) -> None:
    seen = sessions.load(name)
    assert seen is not None
    live = [it for it in seen.subscriptions if it.number > 0]
    assert {it.filter: it.purpose for it in live} == plain.held
    assert len(live) == len(plain.held)
    assert {it.filter: it.purpose for it in seen.persisted} == plain.persisted
    ended = [it.filter for it in seen.subscriptions if it.number < 0]
    assert len(set(ended)) == len(ended)
    # What stands beside something that ended is still to be made at the broker.
    assert all(it.options & PAUSED for it in live if it.filter in ended)

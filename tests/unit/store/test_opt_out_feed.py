"""What a gateway holds of opt-outs is what the book says, change by change, or its look fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.secrets import SecretFile
from penstock.errors import UnavailableError
from penstock.policy.consent import OptOutIndex
from penstock.store import opt_out_feed
from penstock.store.consent import (
    Choice,
    ConsentBook,
    changes_table,
    choices_table,
    key_table,
    states_table,
)
from penstock.store.database import Database
from penstock.store.enforcement_points import EnforcementPoints, points_table
from penstock.store.opt_out_feed import OptOutFeed
from penstock.store.opt_outs import SubjectMarks
from tests.support.scale import scaled

SECRET = bytes(32)
PEOPLE = ["p", "q", "r", "s"]
PURPOSES = ["a", "a/b", "c"]


@pytest.fixture
def key(tmp_path: Path) -> SecretFile:
    made = SecretFile(tmp_path / "consent.key")
    made.create(SECRET)
    return made


def clear(database: Database) -> None:
    with database.write("test") as connection:
        for table in (changes_table, states_table, choices_table, key_table, points_table):
            connection.execute(table.delete())


def look(feed: OptOutFeed, database: Database) -> None:
    with database.engine.connect() as connection:
        feed.look(connection)


def refusing(index: OptOutIndex, purpose: str | None) -> set[str]:
    make = index.number_of
    if make is None:
        assert not index.by_purpose
        return set()
    held = index.refusing(purpose)
    return {who for who in PEOPLE if any(make(who) in numbers for numbers in held)}


@settings(max_examples=scaled(20))
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(Choice),
            st.lists(st.sampled_from(PEOPLE), max_size=3),
            st.sampled_from(PURPOSES),
            st.booleans(),
        ),
        max_size=10,
    )
)
def test_the_index_follows_the_book(
    database: Database, key: SecretFile, steps: list[tuple[Choice, list[str], str, bool]]
) -> None:
    clear(database)
    book = ConsentBook(database, SubjectMarks(SECRET))
    feed = OptOutFeed(database, key, 600)
    told: list[tuple[OptOutIndex, frozenset[int] | None]] = []
    feed.subscribe(lambda index, changed: told.append((index, changed)))
    held: dict[str, set[str]] = {it: set() for it in PURPOSES}
    look(feed, database)
    for choice, people, purpose, looks in steps:
        with database.write("consent") as connection:
            book.note_within(connection, [])
        book.points.withdraw(feed.holder)  # nobody is to wait here: a look registers again
        book.choose(choice, people, purpose)
        (held[purpose].update if choice is Choice.OPT_OUT else held[purpose].difference_update)(
            people
        )
        if looks:
            look(feed, database)
    look(feed, database)
    index = told[-1][0]
    assert refusing(index, "a") == refusing(index, "a/b") == held["a"] | held["a/b"]
    assert refusing(index, "c") == held["c"]
    assert refusing(index, None) == held["a"] | held["a/b"] | held["c"]
    assert sum(map(len, index.by_purpose.values())) == sum(map(len, held.values()))
    with database.read() as connection:
        assert EnforcementPoints.is_registered(connection, feed.holder)


def test_many_are_read_in_pages_and_changes_name_who_chose(
    database: Database, key: SecretFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = opt_out_feed._PAGE_SINCE.limit(7)
    monkeypatch.setattr(opt_out_feed, "_PAGE_SINCE", page)
    marks = SubjectMarks(SECRET)
    book = ConsentBook(database, marks)
    many = [f"p{number}" for number in range(50)]
    book.choose(Choice.OPT_OUT, many, "a")
    feed = OptOutFeed(database, key, 600)
    told: list[tuple[OptOutIndex, frozenset[int] | None]] = []
    feed.subscribe(lambda index, changed: told.append((index, changed)))
    look(feed, database)
    assert len(told[-1][0].by_purpose["a"]) == 50
    book.choose(Choice.OPT_IN, many[:3], "a")
    look(feed, database)
    index, changed = told[-1]
    assert changed == frozenset(marks.number(it) for it in many[:3])
    assert [marks.number(it) in index.by_purpose["a"] for it in many] == [False] * 3 + [True] * 47
    before = len(told)
    look(feed, database)
    assert len(told) == before


def test_another_history_is_read_anew(database: Database, key: SecretFile) -> None:
    book = ConsentBook(database, SubjectMarks(SECRET))
    book.choose(Choice.OPT_OUT, ["p"], "a")
    feed = OptOutFeed(database, key, 600)
    told: list[OptOutIndex] = []
    feed.subscribe(lambda index, _: told.append(index))
    look(feed, database)
    assert refusing(told[-1], "a") == {"p"}
    clear(database)
    look(feed, database)
    assert refusing(told[-1], "a") == set()
    ConsentBook(database, SubjectMarks(SECRET)).points.withdraw(feed.holder)
    ConsentBook(database, SubjectMarks(SECRET)).choose(Choice.OPT_OUT, ["q"], "a")
    look(feed, database)
    assert refusing(told[-1], "a") == {"q"}


def test_a_key_that_comes_later_is_found(database: Database, tmp_path: Path) -> None:
    late = SecretFile(tmp_path / "late.key")
    ConsentBook(database, SubjectMarks(SECRET)).choose(Choice.OPT_OUT, ["p"], "a")
    feed = OptOutFeed(database, late, 600)
    told: list[OptOutIndex] = []
    feed.subscribe(lambda index, _: told.append(index))
    look(feed, database)
    assert (told[-1].number_of, set(told[-1].by_purpose)) == (None, {"a"})
    late.create(SECRET)
    look(feed, database)
    assert refusing(told[-1], "a") == {"p"}


def test_a_look_fails_where_it_is_not_taken_over_or_not_confirmed(
    database: Database, key: SecretFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    ConsentBook(database, SubjectMarks(SECRET)).choose(Choice.OPT_OUT, ["p"], "a")
    feed = OptOutFeed(database, key, 600)

    def fail(index: OptOutIndex, _: object) -> None:
        if index.by_purpose:
            raise RuntimeError("the loop is stuck")

    feed.subscribe(fail)
    with pytest.raises(RuntimeError):
        look(feed, database)
    feed._subscribers.clear()
    monkeypatch.setattr(feed._points, "confirm", lambda *_: False)
    with pytest.raises(UnavailableError, match="taken off"):
        look(feed, database)
    monkeypatch.undo()
    look(feed, database)
    feed.close()
    with database.read() as connection:
        assert not EnforcementPoints.is_registered(connection, feed.holder)

"""Opt-outs against the rules written out: what holds, who is covered, and what fails closed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.secrets import SecretFile
from penstock.errors import PenstockError, UnavailableError, UsageError
from penstock.store import migrations
from penstock.store.consent import (
    WHOLE,
    Choice,
    ConsentBook,
    ConsentUnknownError,
    ProfileChoice,
    changes_table,
    choices_table,
    states_table,
)
from penstock.store.database import Address, Database, create_engine
from penstock.store.opt_outs import SUBJECT_LIMIT, OptOuts, SubjectMarks, number_of
from tests.support.scale import scaled

MARKS = SubjectMarks(bytes(32))
SUBJECTS = st.sampled_from(["p", "q", "Jörg Müller"])
PURPOSES = st.sampled_from(["a", "a/b", "a/b/c", "a/bc", "b", "b/a", "ab"])


@given(
    pairs=st.lists(st.tuples(SUBJECTS, PURPOSES), max_size=6),
    served=st.lists(PURPOSES, max_size=3),
)
def test_an_opt_out_covers_what_is_below_and_what_is_above(
    pairs: list[tuple[str, str]], served: list[str]
) -> None:
    def related(one: str, other: str) -> bool:
        return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")

    wanted = {MARKS.of(who) for who, refused in pairs if any(related(refused, it) for it in served)}
    found = OptOuts.of(1, pairs, MARKS)
    assert set(found.refusing(served)) == wanted
    assert found.refusing(served) is found.refusing(tuple(served))


@settings(max_examples=scaled(25))
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(Choice), st.lists(SUBJECTS, max_size=2), PURPOSES, st.booleans()),
        max_size=8,
    )
)
def test_what_holds_is_what_each_chose_last(
    database: Database, steps: list[tuple[Choice, list[str], str, bool]]
) -> None:
    with database.write("test") as connection:
        for table in (changes_table, states_table, choices_table):
            connection.execute(table.delete())
    officer, point = ConsentBook(database, MARKS), ConsentBook(database, MARKS)
    wanted: set[tuple[str, str]] = set()
    for choice, subjects, purpose, looks in steps:
        pairs = {(subject, purpose) for subject in subjects}
        before = set(wanted)
        wanted = wanted | pairs if choice is Choice.OPT_OUT else wanted - pairs
        changed = officer.choose(choice, subjects, purpose)
        assert {(subject, purpose) for subject in changed} == before ^ wanted
        if looks:
            point.opt_outs()
    model = OptOuts.of(0, wanted, MARKS).by_purpose
    assert point.opt_outs().by_purpose == model
    assert ConsentBook(database, MARKS).opt_outs().by_purpose == model
    assert point.opt_outs() is point.opt_outs()
    for subject in ("p", "q", "Jörg Müller"):
        out = {it.purpose for it in officer.standings(subject) if it.choice is Choice.OPT_OUT}
        assert out == {purpose for who, purpose in wanted if who == subject}


def test_no_name_is_in_the_database(database: Database) -> None:
    book = ConsentBook(database, MARKS)
    assert book.choose(Choice.OPT_OUT, ["Jörg Müller"], "research") == ["Jörg Müller"]
    with database.read() as connection:
        rows = connection.execute(sa.select(changes_table)).all()
    assert len(rows) == 1
    assert "Jörg" not in repr(rows)
    assert rows[0].subject == MARKS.of("Jörg Müller") != SubjectMarks(b"\1" * 32).of("Jörg Müller")
    assert number_of(rows[0].subject) < 2**60


def test_a_choice_and_what_belongs_to_it_come_together_or_not_at_all(database: Database) -> None:
    book = ConsentBook(database, MARKS)
    told: list[list[str]] = []
    book.choose(Choice.OPT_OUT, ["p", "p", "q"], "a", then=lambda _, who: told.append(who))
    book.choose(Choice.OPT_OUT, ["p"], "a", then=lambda _, who: told.append(who))
    assert told == [["p", "q"], []]

    def fail(connection: object, who: list[str]) -> None:
        raise UsageError("the record cannot be written")

    with pytest.raises(UsageError):
        book.choose(Choice.OPT_IN, ["p"], "a", then=fail)
    assert set(book.opt_outs().refusing(["a"])) == {MARKS.of("p"), MARKS.of("q")}


def test_another_key_is_refused_by_all_who_ask(database: Database, tmp_path: Path) -> None:
    # It was opened before anybody opted out: it learns of the other key with the opt-out.
    early = ConsentBook(database, SubjectMarks(b"\1" * 32))
    assert early.opt_outs().by_purpose == {}
    ConsentBook(database, MARKS).choose(Choice.OPT_OUT, ["p"], "a")
    for ask in (
        early.opt_outs,
        lambda: early.standings("p"),
        lambda: early.choose(Choice.OPT_OUT, ["p"], "a"),
        lambda: ConsentBook(database, SubjectMarks(b"\1" * 32)).opt_outs(),
    ):
        with pytest.raises(ConsentUnknownError, match="another"):
            ask()
    lost = SecretFile(tmp_path / "keys" / "consent.key")
    with pytest.raises(UnavailableError, match="cannot be read"):
        ConsentBook.open(database, lost)
    assert not lost.path.exists()
    lost.create(b"\2" * 32)
    with pytest.raises(ConsentUnknownError, match="another"):
        ConsentBook.open(database, lost)


def test_a_key_is_made_where_nobody_has_opted_out(database: Database, tmp_path: Path) -> None:
    file = SecretFile(tmp_path / "keys" / "consent.key")
    book = ConsentBook.open(database, file)
    book.choose(Choice.OPT_OUT, ["p"], "a")
    assert book.marks.fingerprint == ConsentBook.open(database, file).marks.fingerprint
    again = ConsentBook.open(database, file).opt_outs()
    assert again.by_purpose == book.opt_outs().by_purpose == {"a": frozenset({book.marks.of("p")})}
    with pytest.raises(UnavailableError, match="too few"):
        SubjectMarks(b"short")


def test_a_restored_database_is_read_anew(database: Database) -> None:
    book, point = ConsentBook(database, MARKS), ConsentBook(database, MARKS)
    for subject in ("p", "q"):
        book.choose(Choice.OPT_OUT, [subject], "a")
    assert len(point.opt_outs().refusing(["a"])) == 2
    # Back to before the second, and on from there: the same number, another history.
    with database.write("test") as connection:
        connection.execute(changes_table.delete().where(changes_table.c.epoch == 2))
    book.choose(Choice.OPT_OUT, ["r"], "a")
    assert set(point.opt_outs().refusing(["a"])) == {MARKS.of("p"), MARKS.of("r")}
    with database.write("test") as connection:
        connection.execute(changes_table.delete().where(changes_table.c.epoch == 2))
    assert set(point.opt_outs().refusing(["a"])) == {MARKS.of("p")}


def test_who_cannot_read_the_store_knows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "penstock.db"
    database = Database.open(f"sqlite:///{path}")
    book = ConsentBook(database, MARKS)
    book.choose(Choice.OPT_OUT, ["p"], "a")
    book.opt_outs()
    database.close()
    path.rename(tmp_path / "elsewhere.db")
    with pytest.raises(ConsentUnknownError, match="not known"):
        book.opt_outs()


def test_many_choose_at_once(database: Database) -> None:
    failures: list[BaseException] = []

    def choose(name: str) -> None:
        try:
            for number in range(10):
                ConsentBook(database, MARKS).choose(Choice.OPT_OUT, [f"{name}{number}", "all"], "a")
        except BaseException as error:  # noqa: BLE001 - told below, in the thread of the test
            failures.append(error)

    threads = [threading.Thread(target=choose, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = ConsentBook(database, MARKS).opt_outs()
    assert (found.epoch, len(found.refusing(["a"]))) == (31, 31)


@pytest.mark.parametrize("subject", ["", "x" * (SUBJECT_LIMIT + 1), "\udcff"])
def test_names_that_no_record_can_have_are_refused(subject: str) -> None:
    with pytest.raises(UsageError, match="cannot be called"):
        MARKS.of(subject)


def test_a_purpose_that_is_none_is_refused(database: Database) -> None:
    with pytest.raises(PenstockError, match="purpose"):
        ConsentBook(database, MARKS).choose(Choice.OPT_OUT, ["p"], "a,b")


CONTROLS = {"ads": ("a",), "more": ("a", "b"), "bare": ()}
CATEGORIES = st.lists(st.sampled_from(["b", "c"]), max_size=2, unique=True)


@settings(max_examples=scaled(25))
@given(
    steps=st.lists(
        st.tuples(
            SUBJECTS,
            st.sampled_from(Choice),
            st.sampled_from([*CONTROLS, "", ""]),
            CATEGORIES,
            PURPOSES,
        ),
        max_size=8,
    )
)
def test_what_is_prohibited_is_what_the_profile_says(
    database: Database, steps: list[tuple[str, Choice, str, list[str], str]]
) -> None:
    with database.write("test") as connection:
        for table in (changes_table, states_table, choices_table):
            connection.execute(table.delete())
    book = ConsentBook(database, MARKS)
    profile: dict[tuple[str, str, str], tuple[Choice, tuple[str, ...]]] = {}
    past: dict[str, list[Choice]] = {}
    for who, choice, control, categories, purpose in steps:
        if control:
            held = CONTROLS[control]
            prohibits = {it: tuple(f"{p}/{it}" for p in held) for it in categories} or {WHOLE: held}
            if WHOLE in prohibits:
                profile = {key: it for key, it in profile.items() if key[:2] != (who, control)}
            noted = True
        else:
            prohibits = {purpose: (purpose,)}
            noted = profile.get((who, "", purpose), (Choice.OPT_IN,))[0] != choice
        if noted:
            profile |= {(who, control, it): (choice, them) for it, them in prohibits.items()}
            past.setdefault(who, []).append(choice)
        made = ProfileChoice(MARKS.of(who), choice, prohibits, control, "portal")
        with database.write("consent") as connection:
            (version,) = book.note_within(connection, [made])
        assert bool(version) == noted
    model = OptOuts.of(
        0,
        [
            (who, purpose)
            for (who, _, _), (choice, them) in profile.items()
            if choice is Choice.OPT_OUT
            for purpose in them
        ],
        MARKS,
    )
    assert ConsentBook(database, MARKS).opt_outs().by_purpose == model.by_purpose
    for who, choices in past.items():
        assert [it.choice for it in book.history(who)] == choices
        held_now = {(it.control, it.category, it.purpose): it.choice for it in book.standings(who)}
        assert held_now == {
            (control, category, purpose): choice
            for (whose, control, category), (choice, them) in profile.items()
            if whose == who
            for purpose in them or ("",)
        }


def test_what_was_chosen_before_profiles_had_purposes_is_part_of_them(empty_store_url: str) -> None:
    """A database of version 0015: by hand, as that version wrote it."""
    address = Address.parse(empty_store_url)
    engine = create_engine(address)
    p, q, r = (MARKS.of(it) for it in "pqr")
    control = '{"stateful": true, "purposes": ["ads"], "categories": ["age"]}'
    states = [(p, "all", "", "opt-out"), (q, "all", "age", "opt-out"), (r, "all", "", "opt-in")]
    changes = [
        (p, "ads", "opt-out"), (p, "care", "opt-out"), (q, "ads/age", "opt-out"),
        (r, "ads", "opt-out"), (r, "ads", "opt-in"), (r, "care", "opt-out"),
    ]  # fmt: skip
    with engine.begin() as connection:
        migrations.upgrade(connection, to="0015")
        insert = "INSERT INTO revisions (kind, name, epoch, body) VALUES ('control', 'all', 0, :it)"
        connection.execute(sa.text(insert), {"it": control})
        for subject, name, category, state in states:
            connection.execute(
                sa.text("INSERT INTO rights_states VALUES (:a, :b, :c, :d, 3, 17)"),
                dict(zip("abcd", (subject, name, category, state), strict=True)),
            )
        for epoch, (subject, purpose, choice) in enumerate(changes, 1):
            connection.execute(
                sa.text("INSERT INTO consent_changes VALUES (:e, 'm', 17, :a, :b, :c)"),
                {"e": epoch, "a": subject, "b": purpose, "c": choice},
            )
    engine.dispose()
    with Database.open(empty_store_url) as database:
        book = ConsentBook(database, MARKS)
        out = OptOuts.of(
            0, [("p", "ads"), ("p", "care"), ("q", "ads/age"), ("r", "care")], MARKS
        ).by_purpose
        assert book.opt_outs().by_purpose == out
        assert [(it.purpose, it.control) for it in book.standings("p")] == [
            ("ads", "all"),
            ("care", ""),
        ]
        assert [it.control for it in book.history("q")] == ["all"]
        # What was chosen at a control is taken back there, what was not is not.
        with database.write("consent") as connection:
            made = ProfileChoice(p, Choice.OPT_IN, {WHOLE: ("ads",)}, "all")
            assert book.note_within(connection, [made]) == [4]
        book.choose(Choice.OPT_IN, ["r"], "care")
        now = OptOuts.of(0, [("p", "care"), ("q", "ads/age")], MARKS).by_purpose
        assert book.opt_outs().by_purpose == now

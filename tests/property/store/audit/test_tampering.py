"""Whatever is done to the tables without the key, verification finds it.

The tables are tampered with through SQLite itself. Two people do it: one who only changes
things, and one who also mends every hash that needs no key. Of the first, the entry is
named exactly; of the second, the range that encloses it.
"""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from penstock.store.audit.entry import Entry, Outcome, encode
from penstock.store.audit.log import AuditLog
from penstock.store.audit.merkle import Frontier, hash_leaf
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.signatures import AuditVerdict, Head, Signer
from penstock.store.audit.verification import verify
from penstock.store.database import Database
from tests.support.scale import scaled

COLUMNS = ["seq", "time", "kind", "outcome", "actor", "subject", "rule", "epoch", "details"]
COLUMNS += ["hashes"]
PEOPLE = Pseudonyms(b"k" * 32)
SIGNER = Signer.generate()
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Head]]:
    """A log of 60 entries and every head that was signed on the way."""
    path = tmp_path_factory.mktemp("audit") / "original.db"
    clock = [1_700_000_000 * 10**9]
    draw = random.Random(7)
    heads = []
    with Database.open(f"sqlite:///{path}") as database:
        log = AuditLog(database, SIGNER, clock=lambda: clock[0])
        size = 1
        while size < 60:
            batch = min(draw.randint(1, 6), 60 - size)
            heads.append(log.append([make(draw, clock[0] // 1000 + n) for n in range(batch)]))
            size += batch
            clock[0] += 25 * 10**9
    copy = Copy(path, path.with_name("unguarded.db"))
    copy.run("DROP TRIGGER audit_entries_no_update")
    copy.run("DROP TRIGGER audit_entries_no_delete")
    return copy.path, heads


def make(draw: random.Random, moment: int) -> Entry:
    return Entry.make(
        draw.choice(["decision.read", "decision.write"]),
        draw.choice(list(Outcome)),
        actor=PEOPLE.person(str(draw.randint(0, 9))),
        subject=draw.choice([None, PEOPLE.person("x")]),
        rule=draw.choice([None, PEOPLE.rule("policy one")]),
        epoch=draw.choice([None, 4]),
        at=moment,
        count=draw.randint(0, 9),
    )


class Copy:
    """A copy of the log to tamper with."""

    def __init__(self, original: Path, path: Path) -> None:
        self.path = path
        for old in path.parent.glob(path.name + "*"):
            old.unlink()
        shutil.copy(original, path)

    def run(self, statement: str, *values: Any) -> Rows:
        with self.open() as connection, connection:
            return connection.execute(statement, values).fetchall()

    def open(self) -> closing[sqlite3.Connection]:
        connection = sqlite3.connect(self.path)
        connection.execute("PRAGMA synchronous=OFF")
        return closing(connection)

    def rows(self) -> Rows:
        return self.run("SELECT * FROM audit_entries ORDER BY seq")

    def raw(self) -> Rows:
        """All rows, text as the bytes it is."""
        with closing(sqlite3.connect(self.path)) as connection:
            connection.text_factory = bytes
            return connection.execute("SELECT * FROM audit_entries ORDER BY seq").fetchall()

    def replace(self, rows: Rows) -> None:
        with self.open() as connection, connection:
            connection.execute("DELETE FROM audit_entries")
            marks = ",".join("?" * len(COLUMNS))
            connection.executemany(f"INSERT INTO audit_entries VALUES ({marks})", rows)  # noqa: S608

    def mend(self) -> None:
        """Compute all hashes, the edge and the root anew, as far as that needs no key."""
        edge = Frontier()
        mended = []
        for row in self.rows():
            leaf = hash_leaf(encode(row[0], Entry(*row[1:9])))
            mended.append((*row[:9], b"".join(edge.append(leaf))))
        self.replace(mended)
        self.run(
            "UPDATE audit_tip SET frontier=?, root=?, size=?", bytes(edge), edge.root(), edge.size
        )

    def verify(self, *kept: Head) -> AuditVerdict:
        with Database.open(f"sqlite:///{self.path}") as database:
            return verify(database, SIGNER.public_keys, kept=kept)


def other_value(column: str, old: Any, draw: random.Random) -> Any:
    plain: dict[str, list[Any]] = {
        "time": [1_700_000_000_000_001, 0, -5, 2.5, "abc", b"x"],
        "kind": ["decision.delete", "", b"decision.read", "x" * 100_000],
        "outcome": ["allowed", "denied", "nonsense", b"allowed"],
        "actor": [None, PEOPLE.person("somebody else"), "alice", 5],
        "subject": [None, PEOPLE.person("somebody else"), "alice"],
        "rule": [None, "policy/two", "", 'x","seq":3'],
        "epoch": [None, 5, -1, "4 ", "four", 4.5],
        "details": [
            "{}",
            '{"count":11}',
            '{ "count":1}',
            "[",
            "",
            '{"count":1}}',
            "[" * 5000,
            b"{}",
        ],
        "hashes": [b"", bytes(32), bytes(31), b"x" * 64, "text", 10**12],
    }
    return draw.choice([value for value in plain[column] if value != old])


def change(copy: Copy, draw: random.Random) -> None:
    rows = copy.rows()
    seq = draw.randrange(len(rows))
    column = draw.choice(COLUMNS[1:])
    value = other_value(column, rows[seq][COLUMNS.index(column)], draw)
    if column in {"time", "kind", "outcome", "details", "hashes"}:
        assert value is not None
    copy.run(f"UPDATE audit_entries SET {column}=? WHERE seq=?", value, seq)  # noqa: S608


def invalid_text(copy: Copy, draw: random.Random) -> None:
    seq = draw.randrange(len(copy.rows()))
    column = draw.choice(["kind", "rule", "details"])
    copy.run(f"UPDATE audit_entries SET {column}=CAST(x'ff00fe' AS TEXT) WHERE seq=?", seq)  # noqa: S608


def delete(copy: Copy, draw: random.Random) -> None:
    rows = copy.rows()
    first = draw.randrange(len(rows))
    last = min(first + draw.randint(0, 3), len(rows) - 1)
    copy.run("DELETE FROM audit_entries WHERE seq BETWEEN ? AND ?", first, last)


def close_gap(copy: Copy, draw: random.Random) -> None:
    """Delete an entry and number the later ones anew."""
    rows = copy.rows()
    seq = draw.randrange(len(rows) - 1)
    copy.replace(rows[:seq] + [(row[0] - 1, *row[1:]) for row in rows[seq + 1 :]])


def swap(copy: Copy, draw: random.Random) -> None:
    rows = copy.rows()
    first, second = sorted(draw.sample(range(len(rows)), 2))
    rows[first], rows[second] = (first, *rows[second][1:]), (second, *rows[first][1:])
    copy.replace(rows)


def insert(copy: Copy, draw: random.Random) -> None:
    """Put an entry in between and number the later ones anew."""
    rows = copy.rows()
    seq = draw.randrange(len(rows) + 1)
    new = (seq, *draw.choice(rows)[1:])
    copy.replace([*rows[:seq], new, *((row[0] + 1, *row[1:]) for row in rows[seq:])])


def insert_outside(copy: Copy, draw: random.Random) -> None:
    seq = draw.choice([-1, -100, len(copy.rows()), len(copy.rows()) + 50])
    row = draw.choice(copy.rows())
    copy.replace([*copy.rows(), (seq, *row[1:])])


def truncate(copy: Copy, draw: random.Random) -> None:
    size = draw.randrange(len(copy.rows()))
    copy.run("DELETE FROM audit_entries WHERE seq>=?", size)


def first_difference(before: Rows, after: Rows) -> int:
    """The first entry that is not what it was; where nothing was changed there is no test."""
    assume(before != after)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    return len(list(same))


TAMPERINGS: list[Callable[[Copy, random.Random], None]] = [
    change,
    invalid_text,
    delete,
    close_gap,
    swap,
    insert,
    insert_outside,
    truncate,
]
seeds = st.integers(0, 2**32)
many = settings(max_examples=scaled(40))


def test_the_original_is_good(original: tuple[Path, list[Head]]) -> None:
    path, heads = original
    with Database.open(f"sqlite:///{path}") as database:
        verdict = verify(database, SIGNER.public_keys, kept=heads)
    assert verdict.ok, verdict.findings
    assert verdict.size == 60
    assert verdict.heads > len(heads)


@pytest.mark.parametrize("tamper", TAMPERINGS)
@many
@given(seed=seeds)
def test_tampering_is_found_and_the_first_bad_entry_named(
    original: tuple[Path, list[Head]],
    tmp_path: Path,
    tamper: Callable[[Copy, random.Random], None],
    seed: int,
) -> None:
    copy = Copy(original[0], tmp_path / "copy.db")
    before = copy.raw()
    tamper(copy, random.Random(seed))
    first = first_difference(before, copy.raw())
    verdict = copy.verify()
    assert not verdict.ok
    found = verdict.findings[0]
    if found.until is None:
        assert verdict.first_bad == first, verdict.findings
    else:
        assert found.entry is not None
        assert found.entry <= first <= found.until, verdict.findings


@pytest.mark.parametrize("tamper", [change, close_gap, swap, insert, truncate])
@many
@given(seed=seeds)
def test_tampering_is_found_even_if_every_hash_is_mended(
    original: tuple[Path, list[Head]],
    tmp_path: Path,
    tamper: Callable[[Copy, random.Random], None],
    seed: int,
) -> None:
    copy = Copy(original[0], tmp_path / "copy.db")
    before = [row[:9] for row in copy.rows()]
    tamper(copy, random.Random(seed))
    try:
        copy.mend()
    except (TypeError, ValueError):
        reject()  # what was put in cannot even be hashed
    first = first_difference(before, [row[:9] for row in copy.rows()])
    verdict = copy.verify()
    assert not verdict.ok
    assert verdict.first_bad is not None
    assert verdict.first_bad <= first


@many
@given(seed=seeds)
def test_a_changed_tip_is_found(
    original: tuple[Path, list[Head]], tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    copy = Copy(original[0], tmp_path / "copy.db")
    column = draw.choice(["size", "frontier", "root", "time", "key", "signature"])
    value = draw.choice([0, 59, 10**15, b"", bytes(32), "text", -1])
    copy.run(f"UPDATE audit_tip SET {column}=?", value)  # noqa: S608
    assert not copy.verify().ok


@many
@given(seed=seeds)
def test_a_changed_head_is_found(
    original: tuple[Path, list[Head]], tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    copy = Copy(original[0], tmp_path / "copy.db")
    sizes = [row[0] for row in copy.run("SELECT size FROM audit_heads")]
    column = draw.choice(["size", "root", "time", "key", "signature"])
    value = 10**6 if column == "size" else draw.choice([0, b"", bytes(32), bytes(64), "text", -1])
    copy.run(
        f"UPDATE audit_heads SET {column}=? WHERE size=?",  # noqa: S608
        value,
        draw.choice(sizes),
    )
    assert not copy.verify().ok


def test_a_missing_tip_is_found(original: tuple[Path, list[Head]], tmp_path: Path) -> None:
    copy = Copy(original[0], tmp_path / "copy.db")
    copy.run("DELETE FROM audit_tip")
    assert copy.verify().findings[0].message == "the tip of the audit log is missing"


@given(which=st.integers(0, 10**6))
@many
def test_a_log_set_back_to_a_signed_state_is_found_with_a_head_kept_elsewhere(
    original: tuple[Path, list[Head]], tmp_path: Path, which: int
) -> None:
    path, heads = original
    to = heads[which % (len(heads) - 1)]
    copy = Copy(path, tmp_path / "copy.db")
    copy.run("DELETE FROM audit_entries WHERE seq>=?", to.size)
    copy.run("DELETE FROM audit_heads WHERE size>?", to.size)
    copy.mend()
    copy.run("UPDATE audit_tip SET time=?, key=?, signature=?", to.time, to.key, to.signature)
    assert copy.verify().ok, "this is the limit: nothing in the database tells"
    assert copy.verify(to).ok
    later = next(head for head in heads if head.size > to.size)
    verdict = copy.verify(later)
    assert verdict.first_bad == to.size


def test_a_log_replaced_as_a_whole_is_found(
    original: tuple[Path, list[Head]], tmp_path: Path
) -> None:
    path = tmp_path / "replaced.db"
    with Database.open(f"sqlite:///{path}") as database:
        foreign = AuditLog(database, Signer.generate())
        foreign.append([make(random.Random(1), 1)] * 100)
        assert not verify(database, SIGNER.public_keys).ok
    # Even by somebody who holds the key, where a head was kept elsewhere.
    with Database.open(f"sqlite:///{tmp_path}/again.db") as database:
        AuditLog(database, SIGNER).append([make(random.Random(1), 1)] * 100)
        assert verify(database, SIGNER.public_keys).ok
        assert not verify(database, SIGNER.public_keys, kept=original[1][-1:]).ok

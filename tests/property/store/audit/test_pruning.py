"""Pruning against a naive model, and whoever tampers with a pruned log is found.

The model is the list of all entries that ever were appended. An entry of a class (denials,
others) goes where it is too old, or too many newer ones of its class are there; but the first one
that stays holds back all behind it.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.store.audit.entry import Entry, Outcome, encode
from penstock.store.audit.log import AuditLog, note_witness
from penstock.store.audit.merkle import Frontier, TreeNode, hash_leaf, peaks_of
from penstock.store.audit.pruning import Retention, prune
from penstock.store.audit.reader import read_after
from penstock.store.audit.signatures import AuditVerdict, Head, Signer
from penstock.store.audit.verification import (
    check_proof,
    prove_consistency,
    prove_inclusion,
    verify,
)
from penstock.store.database import Database
from tests.support.scale import scaled

SIGNER = Signer.generate()
KEYS = SIGNER.public_keys
SECOND = 1_000_000


@dataclass
class Grown:
    """A log, the entries that the naive model has of it, and the heads somebody kept."""

    database: Database
    log: AuditLog
    now: int = 1_700_000_000
    entries: list[Entry] = field(default_factory=list)
    """All that ever were appended, by number."""
    kept: set[int] = field(default_factory=set)
    heads: list[Head] = field(default_factory=list)
    cut: int = 0

    def append(self, draw: random.Random) -> None:
        new = [
            Entry.make(
                "decision.read",
                Outcome.DENIED if draw.random() < 0.6 else Outcome.ALLOWED,
                at=(self.now - draw.randint(0, 3)) * SECOND,
                count=draw.randint(0, 9),
            )
            for _ in range(draw.randint(1, 9))
        ]
        head = self.log.append(new)
        if draw.random() < 0.4:
            note_witness(self.database, f"head {head.size}", head)
            self.heads.append(head)
        self.catch_up()
        self.now += draw.randint(0, 20)

    def catch_up(self) -> None:
        """Take in what is new, the first entry of the log and those of prunings included."""
        with self.database.read() as connection:
            for one in read_after(connection, len(self.entries) - 1, 10**6):
                assert one.seq == len(self.entries)
                self.entries.append(one.entry)
                self.kept.add(one.seq)

    def prune(self, retention: Retention, step: int) -> None:
        expected = self.expect(retention)
        done = prune(self.log, retention, now=self.now, step=step)
        gone = self.kept - expected
        assert (done.count if done else 0) == len(gone)
        self.kept = expected
        if done is not None:
            self.cut = done.before
        self.catch_up()

    def expect(self, retention: Retention) -> set[int]:
        """Say naively what stays."""
        held = (self.now - retention.hold) * SECOND
        end = max((it for it in self.kept if self.entries[it].time < held), default=-1) + 1
        staying = set(self.kept)
        for denied, keep, most in (
            (True, retention.denials_keep, retention.denials_entries),
            (False, retention.keep, retention.entries),
        ):
            own = sorted(it for it in self.kept if (self.entries[it].outcome == "denied") is denied)
            for place, seq in enumerate(own):
                old = self.entries[seq].time < (self.now - keep) * SECOND
                many = len(own) - place > most
                if seq >= end or not (old or many):
                    break
                staying.discard(seq)
        return staying

    def rows(self) -> dict[int, Entry]:
        with self.database.read() as connection:
            return {one.seq: one.entry for one in read_after(connection, -1, 10**6)}


@contextmanager
def grow(path: Path, seed: int) -> Iterator[tuple[Grown, random.Random]]:
    for old in path.parent.glob(path.name + "*"):
        old.unlink()
    draw = random.Random(seed)
    with Database.open(f"sqlite:///{path}") as database:
        moment = [0]
        log = AuditLog(database, SIGNER, clock=lambda: moment[0])
        grown = Grown(database, log)
        for _ in range(draw.randint(1, 8)):
            moment[0] = grown.now * 10**9
            grown.append(draw)
        yield grown, draw


def some_retention(draw: random.Random) -> Retention:
    return Retention(
        keep=draw.choice([5, 40, 10**6]),
        entries=draw.choice([1, 7, 10**6]),
        denials_keep=draw.choice([5, 40, 10**6]),
        denials_entries=draw.choice([1, 7, 10**6]),
        hold=draw.choice([0, 0, 3, 20]),
    )


@given(seed=st.integers(0, 2**32))
@settings(max_examples=scaled(40))
def test_what_is_left_is_what_a_naive_model_says_and_stays_provable(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "model.db"
    with grow(path, seed) as (grown, draw):
        for _ in range(draw.randint(1, 4)):
            grown.prune(some_retention(draw), step=draw.choice([3, 10, 1000]))
            assert grown.rows() == {seq: grown.entries[seq] for seq in grown.kept}
            verdict = verify(grown.database, KEYS, kept=grown.heads)
            assert verdict.ok, verdict.findings
            assert (verdict.pruned, verdict.size) == (grown.cut, len(grown.entries))
            for _ in range(draw.randint(0, 3)):
                grown.append(draw)
        for seq in range(len(grown.entries)):
            if seq in grown.kept:
                check_proof(prove_inclusion(grown.database, KEYS, seq), KEYS)
            else:
                with pytest.raises(UsageError, match=f"entry {seq} .* was pruned"):
                    prove_inclusion(grown.database, KEYS, seq)
        for at, first in enumerate(grown.heads):
            for second in (None, *grown.heads[at:]):
                if second is None or second.size >= grown.cut:
                    check_proof(prove_consistency(grown.database, KEYS, first, second), KEYS)


class Copy:
    """A copy of a pruned log to tamper with, behind the triggers."""

    def __init__(self, original: Path, path: Path) -> None:
        self.path = path
        for old in path.parent.glob(path.name + "*"):
            old.unlink()
        shutil.copy(original, path)
        self.run("DROP TRIGGER audit_entries_no_update")
        self.run("DROP TRIGGER audit_entries_no_delete")

    def run(self, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def rows(self, table: str) -> list[Any]:
        return self.run(f"SELECT rowid, * FROM {table}")  # noqa: S608

    def verify(self, *kept: Head) -> AuditVerdict:
        with Database.open(f"sqlite:///{self.path}") as database:
            return verify(database, KEYS, kept=kept)


TABLES = {
    "audit_entries": "seq time kind outcome actor subject rule epoch details hashes",
    "audit_nodes": "leaf level hash",
    "audit_pruned": "before entry",
}
VALUES = [
    0,
    1,
    5,
    -1,
    10**12,
    "x",
    "{}",
    b"",
    bytes(32),
    "decision.write",
    "allowed",
    "denied",
    2.5,
]


def change_a_cell(copy: Copy, draw: random.Random) -> bool:
    table = draw.choice(list(TABLES))
    rows = copy.rows(table)
    if not rows:
        return False
    row = draw.choice(rows)
    column = draw.choice(TABLES[table].split())
    old = copy.run(f"SELECT {column} FROM {table} WHERE rowid=?", row[0])[0][0]  # noqa: S608
    value = draw.choice([it for it in VALUES if it != old])
    try:
        copy.run(f"UPDATE {table} SET {column}=? WHERE rowid=?", value, row[0])  # noqa: S608
    except sqlite3.IntegrityError:
        return False
    return copy.run(f"SELECT {column} FROM {table} WHERE rowid=?", row[0]) != [(old,)]  # noqa: S608


def delete_a_row(copy: Copy, draw: random.Random) -> bool:
    table = draw.choice(list(TABLES))
    rows = copy.rows(table)
    if rows:
        copy.run(f"DELETE FROM {table} WHERE rowid=?", draw.choice(rows)[0])  # noqa: S608
    return bool(rows)


def insert_an_entry(copy: Copy, draw: random.Random) -> bool:
    rows = copy.run("SELECT * FROM audit_entries")
    there = {row[0] for row in rows}
    free = [it for it in range(-2, max(there) + 3) if it not in there]
    row = (draw.choice(free), *draw.choice(rows)[1:])
    copy.run(f"INSERT INTO audit_entries VALUES ({','.join('?' * len(row))})", *row)  # noqa: S608
    return True


def insert_a_node(copy: Copy, draw: random.Random) -> bool:
    there = {row[1:3] for row in copy.rows("audit_nodes")}
    size = copy.run("SELECT size FROM audit_tip")[0][0]
    new = (draw.randrange(size), draw.randrange(4))
    if new not in there:
        copy.run("INSERT INTO audit_nodes VALUES (?,?,?)", *new, bytes(32))
    return new not in there


def cut_more(copy: Copy, draw: random.Random) -> bool:
    """Cut off more of the beginning, and compute all that needs no key as a pruning would."""
    rows = copy.run("SELECT * FROM audit_entries ORDER BY seq")
    before = (copy.run("SELECT before FROM audit_pruned") or [(0,)])[0][0]
    size = rows[-1][0] + 1
    if before >= size - 1:
        return False
    cut = draw.randrange(before + 1, size)
    held = {(leaf, level): value for _, leaf, level, value in copy.rows("audit_nodes")}
    for row in rows:
        held |= {(row[0], at // 32): row[9][at : at + 32] for at in range(0, len(row[9]), 32)}
    edge = Frontier(before, [held[it.leaf, it.level] for it in peaks_of(before)])
    for row in rows:
        if before <= row[0] < cut:
            edge.append(hash_leaf(encode(row[0], Entry(*row[1:9]))))
    copy.run("DELETE FROM audit_entries WHERE seq < ?", cut)
    copy.run("DELETE FROM audit_heads WHERE size < ?", cut)
    copy.run("DELETE FROM audit_nodes")
    for node, value in zip(peaks_of(cut), edge.peaks, strict=True):
        copy.run("INSERT INTO audit_nodes VALUES (?,?,?)", node.leaf, node.level, value)
    copy.run("DELETE FROM audit_pruned")
    told = [row[0] for row in rows if row[2] == "audit.pruned" and row[0] >= cut]
    copy.run("INSERT INTO audit_pruned VALUES (1,?,?)", cut, told[-1] if told else size - 1)
    return True


def drop_a_survivor(copy: Copy, draw: random.Random) -> bool:
    """Remove one, and keep its hash in its place, as pruning would."""
    before = (copy.run("SELECT before FROM audit_pruned") or [(0,)])[0][0]
    rows = copy.run("SELECT seq, hashes FROM audit_entries WHERE seq < ?", before)
    if not rows:
        return False
    seq, hashes = draw.choice(rows)
    copy.run("DELETE FROM audit_entries WHERE seq=?", seq)
    there = copy.run("SELECT 1 FROM audit_nodes WHERE leaf=? AND level=0", seq)
    if not there:
        copy.run("INSERT INTO audit_nodes VALUES (?,0,?)", seq, hashes[:32])
    return True


def replace_a_survivor(copy: Copy, draw: random.Random) -> bool:
    """Change one, and mend every hash that needs no key."""
    before = (copy.run("SELECT before FROM audit_pruned") or [(0,)])[0][0]
    rows = copy.run("SELECT * FROM audit_entries WHERE seq < ?", before)
    if not rows:
        return False
    row = draw.choice(rows)
    entry = Entry(row[1], "decision.write", *row[3:9])
    leaf = hash_leaf(encode(row[0], entry))
    if not row[0] & 1:
        copy.run("UPDATE audit_entries SET kind=?, hashes=? WHERE seq=?", entry.kind, leaf, row[0])
    else:
        copy.run(
            "UPDATE audit_entries SET kind=?, hashes=? WHERE seq=?",
            entry.kind,
            leaf + row[9][32:],
            row[0],
        )
    copy.run("UPDATE audit_nodes SET hash=? WHERE leaf=? AND level=0", leaf, row[0])
    return True


TAMPERINGS: list[Callable[[Copy, random.Random], bool]] = [
    change_a_cell,
    delete_a_row,
    insert_an_entry,
    insert_a_node,
    cut_more,
    drop_a_survivor,
    replace_a_survivor,
]


@pytest.mark.parametrize("tamper", TAMPERINGS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=scaled(20))
def test_whatever_is_done_to_a_pruned_log_is_found(
    tmp_path_factory: pytest.TempPathFactory,
    tamper: Callable[[Copy, random.Random], bool],
    seed: int,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    with grow(folder / "whole.db", seed) as (grown, draw):
        grown.prune(some_retention(draw), step=draw.choice([3, 1000]))
        for _ in range(draw.randint(0, 2)):
            grown.append(draw)
    copy = Copy(folder / "whole.db", folder / "copy.db")
    assert copy.verify(*grown.heads).ok
    if tamper(copy, draw):
        assert not copy.verify().ok


@given(seed=st.integers(0, 2**32))
@settings(max_examples=scaled(20))
def test_a_pruned_log_that_was_replaced_is_found_with_a_head_kept_before(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    with grow(folder / "whole.db", seed) as (grown, _):
        head = grown.log.append([Entry.make("x", Outcome.DONE, at=1)])
        note_witness(grown.database, "elsewhere", head)
    # Another log, of whoever holds the key as well, and pruned in the same way.
    with grow(folder / "other.db", seed + 1) as (other, draw):
        while len(other.entries) <= head.size:
            other.append(draw)
        note_witness(other.database, "elsewhere", head)
        other.prune(Retention(5, 1, 5, 1, hold=0), step=1000)
        assert verify(other.database, KEYS).ok
        verdict = verify(other.database, KEYS, kept=[head])
        assert [one.message for one in verdict.findings] == [
            f"the log does not extend the head of size {head.size}"
        ] or verdict.first_bad is not None


def test_nodes_connect_each_tree_with_each_later_one() -> None:
    """The arithmetic of what stays, for all small sizes: every needed node is there."""
    for size in range(1, 40):
        peaks = peaks_of(size)
        assert sum(1 << it.level for it in peaks) == size
        for seq in range(size):
            climbed = TreeNode(0, seq)
            for sibling in climbed.siblings_below(size):
                assert sibling == climbed.sibling
                climbed = climbed.parent
            assert climbed in peaks

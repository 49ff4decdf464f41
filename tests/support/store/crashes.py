"""Kills writers of a store, again and again, and checks what they leave behind.

Run as a program of its own: one process with a single thread imports everything once and
forks the writers from there, so that a kill costs milliseconds. It prints a line of JSON.

    crashes.py writers SEED KILLS URL …   kills writers, so often for each new store
    crashes.py visits SEED KILLS URL …    lets one process hold a store open and write,
                                          while others open it, write and close or die
    crashes.py servers SEED KILLS         kills a PostgreSQL server under its writers

What every writer does with each change, so that half of one would show:
- it moves an amount between two accounts: the sum of all stays 1000;
- it writes down the epoch that the change makes, in the document `last`;
- it puts or deletes the document `odd`, which exists at odd epochs only.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import alembic.command  # noqa: F401 (loaded before the forks, not in each of them)
import sqlalchemy as sa

from penstock.components import PostgresServer
from penstock.errors import UnavailableError
from penstock.model.document import Document, Key
from penstock.store.database import Database
from penstock.store.definitions.documents import Delete, Edit, Put, Snapshot
from penstock.store.definitions.history import Definitions
from penstock.store.schema import epochs, revisions

ACCOUNTS = 6
TOTAL = 1000
WRITERS = 2
LONGEST_LIFE = 0.1
SERVER_LIFE = 0.3
PATIENCE = 20
LAST, ODD = Key("note", "last"), Key("note", "odd")


def transfer(random_: random.Random) -> Callable[[Snapshot], Sequence[Edit]]:
    """Return the edit of one change."""

    def edit(now: Snapshot) -> Sequence[Edit]:
        accounts = [Key("account", str(number)) for number in range(ACCOUNTS)]
        held = {
            key: now.documents[key].body["amount"] if now.epoch else TOTAL if not index else 0
            for index, key in enumerate(accounts)
        }
        giver, taker = random_.sample(accounts, 2)
        amount = random_.randint(1, 100)
        held[giver] -= amount
        held[taker] += amount
        changed = accounts if now.epoch == 0 else [giver, taker]
        edits: list[Edit] = [Put(Document(*key, {"amount": held[key]})) for key in changed]
        edits.append(Put(Document(*LAST, {"epoch": now.epoch + 1})))
        edits.append(Delete(ODD) if now.epoch % 2 else Put(Document(*ODD, {})))
        return edits

    return edit


def write(url: str, seed: int, report: int) -> None:
    """Change the store for ever; report each change once the store has acknowledged it."""
    random_ = random.Random(seed)
    with Database.open(url) as database:
        definitions = Definitions(database)
        while True:
            change = definitions.change(transfer(random_), actor="writer", reason="")
            os.write(report, f"{change.epoch} {change.after.mark}\n".encode())


def hold(url: str, seed: int, report: int) -> None:
    """Hold the store open, twice, as a pipeline with a vault does; write now and then."""
    random_ = random.Random(seed)
    with Database.open(url) as database:
        definitions = Definitions(database)
        definitions.snapshot()
        with Database.open(url) as beside:
            Definitions(beside).snapshot()
            while True:
                change = definitions.change(transfer(random_), actor="holder", reason="")
                os.write(report, f"{change.epoch} {change.after.mark}\n".encode())
                time.sleep(0.01)


def visit(url: str, seed: int, report: int) -> None:
    """Open the store, change it once and close it, as a command does."""
    with Database.open(url) as database:
        edit = transfer(random.Random(seed))
        change = Definitions(database).change(edit, actor="visitor", reason="")
        os.write(report, f"{change.epoch} {change.after.mark}\n".encode())


@dataclass
class Writer:
    """A forked process that writes, and what it said was acknowledged."""

    pid: int
    reports: int

    @classmethod
    def fork(cls, url: str, seed: int, work: Callable[[str, int, int], None] = write) -> Writer:
        reports, report = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(reports)
                work(url, seed, report)
                code = 0
            except UnavailableError:
                code = 3
            finally:
                os._exit(code)
        os.close(report)
        return cls(pid, reports)

    def wait_for_report(self) -> None:
        """Wait until the first change is acknowledged."""
        select.select([self.reports], [], [], PATIENCE)

    def end(self) -> int:
        """Kill the writer; return how it ended: minus 9, or the exit code if it was faster."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def lost_files(self) -> list[str]:
        """Return the files that it holds open and that were deleted under it."""
        held = [str(link.readlink()) for link in Path(f"/proc/{self.pid}/fd").iterdir()]
        return [name for name in held if name.endswith("(deleted)")]

    def wait(self) -> int:
        """Wait until the writer has ended by itself."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def acknowledged(self) -> dict[int, str]:
        """Read all that was reported before the end: marks by epoch."""
        with os.fdopen(self.reports, "rb") as stream:
            lines = stream.read().decode().splitlines()
        return {int(epoch): mark for epoch, mark in (line.split() for line in lines)}


@dataclass
class Watch:
    """Compares the store with what was acknowledged."""

    url: str
    kills: int = 0
    acknowledged: dict[int, str] = field(default_factory=dict)
    checked: int = 0
    problems: list[str] = field(default_factory=list)

    def expect(self, holds: bool, problem: str) -> None:  # noqa: FBT001
        if not holds:
            self.problems.append(problem)

    def hear(self, writers: Sequence[Writer]) -> None:
        """Take in what writers that ended had reported."""
        for writer in writers:
            reported = writer.acknowledged()
            twice = reported.keys() & self.acknowledged.keys()
            self.expect(not twice, f"acknowledged twice: {sorted(twice)}")
            self.acknowledged.update(reported)

    def check(self) -> None:
        with Database.open(self.url) as database:
            definitions = Definitions(database)
            current = definitions.snapshot()
            for epoch in range(self.checked + 1, current.epoch + 1):
                self.check_epoch(definitions.snapshot_at(epoch))
            newest = max(self.acknowledged, default=0)
            self.expect(newest <= current.epoch, f"epoch {newest} is lost: {current.epoch}")
            self.expect(
                current.epoch <= len(self.acknowledged) + self.kills,
                f"{current.epoch} epochs, {len(self.acknowledged)} acknowledged",
            )
            if current.epoch:
                again = definitions.snapshot_at(current.epoch)
                self.expect(again == current, f"current set and history differ at {current.epoch}")
            self.checked = current.epoch

    def check_epoch(self, found: Snapshot) -> None:
        amounts = [
            document.body["amount"]
            for key, document in found.documents.items()
            if key.kind == "account"
        ]
        at = f"epoch {found.epoch}"
        self.expect(len(amounts) == ACCOUNTS, f"{at}: {len(amounts)} accounts")
        self.expect(sum(amounts) == TOTAL, f"{at}: the sum is {sum(amounts)}")
        last = found.documents[LAST].body["epoch"]
        self.expect(last == found.epoch, f"{at}: half of epoch {last}")
        self.expect((ODD in found.documents) == (found.epoch % 2 == 1), f"{at}: odd")
        mark = self.acknowledged.get(found.epoch, found.mark)
        self.expect(mark == found.mark, f"{at}: another change was acknowledged")

    def check_history(self) -> None:
        """Check that the revisions of every key follow each other without gap or overlap."""
        with Database.open(self.url) as database, database.read() as connection:
            rows = connection.execute(
                sa.select(revisions).order_by(revisions.c.kind, revisions.c.name, revisions.c.epoch)
            ).all()
            for row, after in zip(rows, [*rows[1:], None], strict=True):
                follows = after is not None and (after.kind, after.name) == (row.kind, row.name)
                expected = after.epoch if after is not None and follows else None
                self.expect(row.superseded == expected, f"{row.kind}/{row.name} at {row.epoch}")
            numbers = connection.scalars(sa.select(epochs.c.epoch).order_by(epochs.c.epoch)).all()
            self.expect(list(numbers) == list(range(len(numbers))), "the epochs have gaps")
            if not database.is_postgresql:
                sound = connection.exec_driver_sql("PRAGMA integrity_check").scalar()
                self.expect(sound == "ok", f"SQLite says: {sound}")
                dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                self.expect(not dangling, f"{len(dangling)} rows refer to nothing")


def kill_writers(watch: Watch, kills: int, random_: random.Random) -> None:
    """Start writers two by two and kill each at a random moment; check after each pair."""
    endings: Counter[int] = Counter()
    while watch.kills < kills:
        writers = [Writer.fork(watch.url, random_.getrandbits(32)) for _ in range(WRITERS)]
        for writer in writers:
            if random_.random() < 0.5:  # the others die young: while they open or make the store
                writer.wait_for_report()
            time.sleep(random_.uniform(0, LONGEST_LIFE / WRITERS))
            endings[writer.end()] += 1
            watch.kills += 1
        watch.hear(writers)
        watch.check()
    watch.check_history()
    watch.expect(endings[-signal.SIGKILL] == watch.kills, f"not all were killed: {endings}")


def visit_often(watch: Watch, kills: int, random_: random.Random) -> None:
    """Let visitors come two by two, half of them to be killed, while one process stays."""
    holder = Writer.fork(watch.url, random_.getrandbits(32), hold)
    holder.wait_for_report()
    visitors = []
    while watch.kills < kills:
        pair = [Writer.fork(watch.url, random_.getrandbits(32), visit) for _ in range(WRITERS)]
        pair[0].wait_for_report()
        time.sleep(random_.uniform(0, LONGEST_LIFE / 10))
        pair[0].end()
        watch.kills += 1
        watch.expect(pair[1].wait() == 0, "a visitor failed")
        visitors += pair
        lost = holder.lost_files()
        watch.expect(not lost, f"deleted under the one that stays: {lost}")
    holder.end()
    watch.kills += 1
    watch.hear([holder, *visitors])
    watch.check()
    watch.check_history()


def kill_servers(watch: Watch, server: PostgresServer, kills: int, random_: random.Random) -> None:
    """Let the server crash under its writers, start it again, and check."""
    while watch.kills < kills * WRITERS:
        writers = [Writer.fork(watch.url, random_.getrandbits(32)) for _ in range(WRITERS)]
        for writer in writers:
            writer.wait_for_report()
        time.sleep(random_.uniform(0, SERVER_LIFE))
        server.kill()
        for writer in writers:
            ending = writer.wait()
            watch.expect(ending == UnavailableError.exit_code, f"a writer ended with {ending}")
            watch.kills += 1
        watch.hear(writers)
        server.start()
        watch.check()
    watch.check_history()


def main(what: str, seed: str, kills: str, *where: str) -> None:
    """Run, and print the outcome."""
    random_ = random.Random(int(seed))
    watches = []
    if what != "servers":
        series = kill_writers if what == "writers" else visit_often
        for url in where:
            watches.append(Watch(url))
            series(watches[-1], int(kills), random_)
    else:
        with PostgresServer() as server:
            watches.append(Watch(server.url))
            kill_servers(watches[-1], server, int(kills), random_)
    outcome = {
        "kills": sum(watch.kills for watch in watches),
        "epochs": sum(watch.checked for watch in watches),
        "acknowledged": sum(len(watch.acknowledged) for watch in watches),
        "problems": [problem for watch in watches for problem in watch.problems][:20],
    }
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

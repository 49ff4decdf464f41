"""Several processes append to one audit log, and some of them are killed while they do."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.components import PostgresServer
from penstock.config.secrets import SecretFile
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.reader import read_after
from penstock.store.audit.signatures import Signer
from penstock.store.audit.verification import verify
from penstock.store.audit.writer import AuditWriter
from penstock.store.database import Database
from tests.support.scale import scaled

OTHER = 1_000_000
"""The number of the process that appends after all kills."""

# Prints the number of each batch when it is durable: from then on it must not be lost.
APPEND = """
import sys
from pathlib import Path
from penstock.config.secrets import SecretFile
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.database import Database

url, key, me, batches = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with Database.open(url) as database:
    log = AuditLog.open(database, SecretFile(Path(key)))
    for batch in range(batches):
        log.append(
            [
                Entry.make("test.append", Outcome.DONE, count=me, created=batch, updated=at)
                for at in range(7)
            ]
        )
        print(batch, flush=True)
    log.close()
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgresql"))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/penstock.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return tmp_path / "audit-signing.key"


def start(url: str, key: Path, me: int, batches: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", APPEND, url, str(key), str(me), str(batches)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def batches_of(database: Database) -> dict[tuple[int, int], list[int]]:
    """For each process and batch: the places of its entries, in the order of the log."""
    found: dict[tuple[int, int], list[int]] = {}
    with database.read() as connection:
        for one in read_after(connection, 0, limit=1_000_000):
            details = json.loads(one.entry.details)
            found.setdefault((details["count"], details["created"]), []).append(details["updated"])
    return found


def test_processes_append_side_by_side(url: str, key: Path) -> None:
    with Database.open(url) as database:
        keys = AuditLog.open(database, SecretFile(key)).signer.public_keys
        processes = [start(url, key, me, 15) for me in range(4)]
        for process in processes:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0
            assert out.split() == [str(batch) for batch in range(15)]
        verdict = verify(database, keys)
        assert verdict.ok, verdict.findings
        assert verdict.size == 1 + 4 * 15 * 7
        found = batches_of(database)
        assert set(found) == {(me, batch) for me in range(4) for batch in range(15)}
        assert all(places == list(range(7)) for places in found.values())


def test_killed_processes_leave_whole_batches_and_a_good_log(url: str, key: Path) -> None:
    draw = random.Random(3)
    with Database.open(url) as database:
        log = AuditLog.open(database, SecretFile(key))
        acknowledged = set()
        for me in range(scaled(6)):
            process = start(url, key, me, 1_000_000)
            assert process.stdout is not None
            assert process.stdout.readline() == "0\n"
            time.sleep(draw.uniform(0.0, 0.15))
            process.kill()
            rest = process.stdout.read()
            process.wait()
            # The kill may have cut the last line.
            whole = rest[: rest.rfind("\n") + 1].split()
            acknowledged |= {(me, 0), *((me, int(batch)) for batch in whole)}
        log.append([Entry.make("test.after", Outcome.DONE, count=OTHER, created=0, updated=0)])
        verdict = verify(database, log.signer.public_keys)
        assert verdict.ok, verdict.findings
        found = batches_of(database)
        assert acknowledged <= set(found)
        assert all(places == list(range(7)) for at, places in found.items() if at[0] != OTHER)


# Appends and prunes in turn, for ever; says so before each pruning and after it.
PRUNE = """
import sys, time
from pathlib import Path
from penstock.config.secrets import SecretFile
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pruning import Retention, prune
from penstock.store.database import Database

with Database.open(sys.argv[1]) as database:
    log = AuditLog.open(database, SecretFile(Path(sys.argv[2])))
    retention = Retention(1e9, 30, 1e9, 20, hold=0)
    while True:
        log.append(
            [
                Entry.make("x", Outcome.DENIED if n % 3 else Outcome.ALLOWED, at=1)
                for n in range(40)
            ]
        )
        print("about to prune", flush=True)
        prune(log, retention, step=15)
        print("pruned", flush=True)
"""


def test_a_pruning_that_is_killed_leaves_a_log_that_verifies(url: str, key: Path) -> None:
    draw = random.Random(5)
    with Database.open(url) as database:
        for _ in range(scaled(6)):
            process = subprocess.Popen(
                [sys.executable, "-c", PRUNE, url, str(key)],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            for _ in range(draw.randint(1, 6)):
                assert process.stdout.readline()
            time.sleep(draw.uniform(0.0, 0.03))
            process.kill()
            process.wait()
            log = AuditLog.open(database, SecretFile(key))
            head = log.append([Entry.make("test.after", Outcome.DONE)])
            verdict = verify(database, log.signer.public_keys, kept=[head])
            assert verdict.ok, verdict.findings
            log.close()
        assert verdict.pruned > 0


@pytest.mark.needs("postgresql")
def test_a_database_that_goes_down_is_waited_for() -> None:
    server = PostgresServer()
    server.start()
    try:
        with Database.open(server.url) as database:
            log = AuditLog(database, Signer.generate())
            writer = AuditWriter(log, delay=0)
            writer.wait(writer.submit(Entry.make("test.before", Outcome.DONE)))
            server.kill()
            ticket = writer.submit(Entry.make("test.during", Outcome.DONE))
            deadline = time.monotonic() + 30
            while writer.check() is None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            server.start()
            writer.wait(ticket, timeout=60)
            writer.close()
            with database.read() as connection:
                kinds = [one.entry.kind for one in read_after(connection, 0)]
            assert kinds == ["test.before", "test.during"]
            assert verify(database, log.signer.public_keys).ok
    finally:
        server.stop()

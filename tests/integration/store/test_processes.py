"""Several processes on one store: no change is lost, and followers learn of all of them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.clock import boot_clock
from penstock.components import PostgresServer
from penstock.errors import UnavailableError
from penstock.model.document import Document, Key
from penstock.store.database import Database
from penstock.store.definitions.documents import Put, Update
from penstock.store.definitions.history import Definitions
from penstock.store.follower import Follower, StaleError

SOON = 60.0
COUNTER = Key("counter", "shared")
WRITERS, CHANGES = 4, 25

# Each process raises one shared counter and puts a document of its own with each change.
WRITE = """
import sys
from penstock.model.document import Document, Key
from penstock.store.database import Database
from penstock.store.definitions.history import Definitions
from penstock.store.definitions.documents import Put

url, me, changes = sys.argv[1], sys.argv[2], int(sys.argv[3])

def raise_counter(now):
    held = now.documents.get(Key("counter", "shared"))
    count = held.body["count"] + 1 if held else 1
    return [
        Put(Document("counter", "shared", {"count": count})),
        Put(Document("mine", f"{me}-{number}", {"count": count})),
    ]

with Database.open(url) as database:
    definitions = Definitions(database)
    for number in range(changes):
        change = definitions.change(raise_counter, actor=me, reason=str(number))
        assert change.after.documents[Key("counter", "shared")].body["count"] == change.epoch
"""


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def start_writer(url: str, number: int, changes: int = CHANGES) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITE, url, f"writer {number}", str(changes)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def change_together(url: str) -> None:
    followed: list[Update] = []
    with Database.open(url) as database, Follower(database) as follower:
        follower.subscribe(followed.append)
        writers = [start_writer(url, number) for number in range(WRITERS)]
        said = [writer.communicate(timeout=SOON)[1] for writer in writers]
        assert [writer.returncode for writer in writers] == [0] * WRITERS, said

        total = WRITERS * CHANGES
        known = follower.wait_for(total, SOON)
        definitions = Definitions(database)
        assert known == definitions.snapshot()
        assert known.documents[COUNTER].body == {"count": total}
        listed = definitions.epochs(limit=1000)
        assert [epoch.epoch for epoch in listed] == list(range(total, -1, -1))
        counts = [revision.document for revision in definitions.history(COUNTER, limit=1000)]
        assert [found and found.body["count"] for found in counts] == list(range(total, 0, -1))
        made = sorted((epoch.actor, epoch.reason) for epoch in listed if epoch.epoch)
        assert made == sorted(
            (f"writer {number}", str(change))
            for number in range(WRITERS)
            for change in range(CHANGES)
        )
    numbers = [update.snapshot.epoch for update in followed]
    assert numbers == sorted(set(numbers))
    assert frozenset().union(*(update.changed for update in followed)) == known.documents.keys()


def test_no_change_is_lost_on_sqlite(tmp_path: Path) -> None:
    change_together(f"sqlite:///{tmp_path}/penstock.db")


@pytest.mark.needs("postgresql")
def test_no_change_is_lost_on_postgresql(postgres_url: str) -> None:
    change_together(postgres_url)


@pytest.mark.needs("postgresql")
def test_a_follower_outlives_its_server() -> None:
    def put(name: str) -> int:
        document = Document("topic", name, {})
        with Database.open(server.url) as database:
            change = Definitions(database).change(lambda _: [Put(document)], actor="ann", reason="")
        return change.epoch

    changed: set[Key] = set()
    with PostgresServer() as server, Database.open(server.url) as database:
        with Follower(database, lease=1.0) as follower:
            follower.subscribe(lambda update: changed.update(update.changed))
            follower.wait_for(put("before"), SOON)

            server.kill()
            eventually(lambda: not follower.status().is_fresh)
            with pytest.raises(StaleError, match=r"epoch 1 .* longer than the lease of 1 s \(the"):
                follower.current()
            with pytest.raises(UnavailableError, match="is not available"):
                Definitions(database).snapshot()

            server.start()
            epoch = put("while away")  # committed, perhaps, before the follower is back
            follower.wait_for(epoch, SOON)
            follower.wait_for(put("after"), SOON)
            assert follower.status().trouble is None
        database.close()
    assert {key.name for key in changed} == {"before", "while away", "after"}


@pytest.mark.needs("postgresql")
def test_a_change_is_learned_without_the_notice(postgres_url: str) -> None:
    with Database.open(postgres_url) as database, Follower(database, lease=1.0) as follower:
        follower.wait_for(0, SOON)
        with database.write("definitions") as connection:
            change = "INSERT INTO epochs SELECT epoch + 1, 'x', at, actor, reason FROM epochs"
            connection.exec_driver_sql(change)
        assert follower.wait_for(1, SOON).mark == "x"


def test_a_stopped_writer_blocks_no_follower(tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path}/penstock.db") as database:
        inside, go_on = threading.Event(), threading.Event()

        def dawdle(_: object) -> list[Put]:
            inside.set()
            go_on.wait(SOON)
            return [Put(Document("topic", "a", {}))]

        writer = threading.Thread(
            target=Definitions(database).change,
            args=[dawdle],
            kwargs={"actor": "ann", "reason": ""},
        )
        writer.start()
        assert inside.wait(SOON)
        with Follower(database) as follower:
            follower.wait_for(0, SOON)
            started = boot_clock()
            eventually(lambda: boot_clock() - (follower.status().age or 0) > started + 0.2)
            go_on.set()
            follower.wait_for(1, SOON)
        writer.join()

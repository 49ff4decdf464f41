"""A store that is set back never leaves grants of its lost epochs at the cluster."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.components import KafkaCluster
from penstock.kafka import Cluster, Reconciler, open_reconciler
from penstock.model.document import Document
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.kafka.officers import settings_for, stream, view
from tests.support.store.installation import FileStore, until

pytestmark = pytest.mark.needs("java", "jars")


class Place:
    """A store, a cluster, and reconcilers as several processes have them."""

    def __init__(self, kafka: KafkaCluster, folder: Path) -> None:
        self.settings = settings_for(kafka, folder)
        self.store = FileStore(folder)
        self.database = Database.open(self.store.url)
        self.definitions = CheckedDefinitions(Definitions(self.database))
        self.one, self.other = (f"u-{uuid.uuid4().hex[:8]}" for _ in range(2))
        self.apply(stream("clinic"), view("clinic", "care", "carer"), Document("role", "carer", {}))
        self.apply(self.user(self.one))

    def user(self, name: str) -> Document:
        return Document("user", name, {"roles": ["carer"]})

    def apply(self, *documents: Document) -> None:
        self.definitions.apply(documents, actor="officer")

    def open(self) -> Reconciler:
        """Return a reconciler as another process would open it."""
        return open_reconciler(self.settings, self.database, self.definitions)

    def acls(self, *users: str) -> int:
        with Cluster(self.settings) as cluster:
            return sum(len(held) for held in cluster.acls_of(users).values())

    @contextmanager
    def watch(self, reconciler: Reconciler) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=reconciler.watch, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@pytest.fixture
def place(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Place]:
    made = Place(kafka, tmp_path)
    try:
        yield made
    finally:
        keys = [it for it in made.definitions.current()[0].documents if it.kind == "user"]
        made.definitions.delete(keys, actor="officer")
        made.open().repair()
        made.database.close()


def test_what_another_process_brought_to_the_cluster_is_taken_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = place.open()
    looks: list[bool] = []
    is_behind = watching.is_behind
    may_look = threading.Event()
    may_look.set()

    def look() -> bool:
        may_look.wait(60)
        looks.append(is_behind())
        return looks[-1]

    monkeypatch.setattr(watching, "is_behind", look)
    with place.watch(watching):
        until(lambda: place.acls(place.one) > 0, "the first user")
        until(lambda: looks and not looks[-1], "rest")
        place.store.copy()
        # A verb of another process brings the cluster forward; the watch only looks on.
        may_look.clear()
        place.apply(place.user(place.other))
        place.open().follow_up()
        until(lambda: place.acls(place.other) > 0, "the other user")
        seen = len(looks)
        may_look.set()
        until(lambda: len(looks) > seen + 3 and not looks[-1], "looks")
        place.store.replace()
        until(lambda: place.acls(place.other) == 0, "the end of what the store lost")
    assert place.acls(place.one) > 0


def test_who_may_be_at_the_cluster_is_remembered_over_a_restart(place: Place) -> None:
    place.store.copy()
    place.apply(place.user(place.other))
    place.open().repair()
    assert place.acls(place.other) > 0
    # Nothing ran while the store was set back.
    place.store.replace()
    place.open().repair()
    assert place.acls(place.other) == 0
    assert place.acls(place.one) > 0
    assert not place.open().is_behind()


def test_a_verb_after_a_restart_takes_it_back_too(place: Place) -> None:
    place.open().repair()
    place.store.copy()
    place.apply(place.user(place.other))
    place.open().follow_up()
    place.store.replace()
    place.apply(Document("role", "porter", {}))
    place.open().follow_up()
    assert place.acls(place.other) == 0

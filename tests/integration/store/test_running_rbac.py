"""Kafka follows what command lines change in the store, on a file as on a server."""

from __future__ import annotations

import contextlib
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.components import KafkaCluster, PostgresServer
from penstock.components.processes import free_port
from penstock.config import load
from penstock.errors import UnavailableError
from penstock.kafka import Cluster
from penstock.store.database import Database
from penstock.store.kafka_users import KafkaUsers
from tests.support.store.installation import (
    FileStore,
    Installation,
    ServerStore,
    Store,
    ask_ready,
    until,
)

# Each command is a process of its own, which takes long on a busy machine.
pytestmark = [pytest.mark.needs("java", "jars", "postgresql"), pytest.mark.timeout(900)]

DEFINITIONS = """
{kind: stream, name: ward, fields: [{name: pid, type: int}]}
---
{kind: view, name: beds, stream: ward, roles: [porter]}
---
{kind: role, name: porter}
"""
USER = "{{kind: user, name: {}, roles: [{}]}}"
ACLS = 2
"""How many one needs who reads a view."""


class Office(Installation):
    """An installation whose supervisor runs nothing but users and roles."""

    def __init__(self, folder: Path, store: Store, kafka: KafkaCluster) -> None:
        self.port = free_port()
        of_kafka = {
            "bootstrap": kafka.bootstrap,
            "security": "sasl_plaintext",
            "password": {"file": str(kafka.admin_password_file)},
            "monitor_port": self.port,
        }
        super().__init__(folder, store, {"parts": ["rbac"], "kafka": of_kafka})

    def acls(self, *users: str) -> int:
        """Return how many ACLs users have at the cluster."""
        with Cluster(load(self.folder / "penstock.yaml").kafka) as cluster:
            return sum(len(held) for held in cluster.acls_of(users).values())

    def is_behind(self) -> bool:
        """Say whether the cluster is known to lack what the definitions say."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as told:
            return b"penstock_kafka_behind 1" in told.read()

    def knows(self, user: str) -> bool:
        """Say whether the store tells that a user may be at the cluster."""
        with contextlib.suppress(UnavailableError), Database.open(self.store.url) as database:
            return user in KafkaUsers(database).names()
        return False

    def confirms(self, epoch: int) -> bool:
        """Say whether an epoch is the newest one that the store has confirmed."""
        ready, said = ask_ready(self.port)
        return ready and bool(said["details"]["store"]["epoch"] == epoch)


@pytest.fixture(params=["sqlite", "postgresql"])
def office(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kafka: KafkaCluster,
    postgres_server: PostgresServer,
) -> Iterator[Office]:
    store: Store = FileStore(tmp_path)
    if request.param == "postgresql":
        store = ServerStore(postgres_server, f"office-{uuid.uuid4().hex[:8]}")
    made = Office(tmp_path, store, kafka)
    try:
        yield made
    finally:
        made.stop()


def test_the_cluster_follows_while_the_store_changes_goes_and_is_set_back(office: Office) -> None:
    one, other = (f"u-{uuid.uuid4().hex[:8]}" for _ in range(2))
    office.apply("\n---\n".join((DEFINITIONS, USER.format(one, "porter"))))
    office.run("up", "--detach")
    until(lambda: office.acls(one) == ACLS, "the role at the cluster")
    epoch = office.apply(USER.format(one, ""))
    until(lambda: office.acls(one) == 0, "the end of the role at the cluster")
    until(lambda: office.confirms(epoch), "the epoch")
    office.run("audit", "tail", "-n", "3")
    assert office.lost_files() == []

    office.store.take_away()
    until(lambda: not ask_ready(office.port)[0], "being unready")
    office.store.bring_back()
    until(lambda: office.confirms(epoch), "being ready again")
    office.store.copy()
    both = "\n---\n".join((USER.format(one, "porter"), USER.format(other, "porter")))
    newest = office.apply(both)
    until(lambda: office.acls(one, other) == 2 * ACLS, "a change after the store was away")
    until(lambda: office.confirms(newest))

    # The store of before knows neither the role nor the other user. Its audit log has lost entries,
    # which only somebody who says that it was on purpose can make good; until then it is told.
    office.store.replace()
    until(office.is_behind, "notice of another history")
    # A store that is away while it is replaced is told in the same way: this comes of the notice.
    until(lambda: office.knows(other), "note of who may be at the cluster")
    office.run("down")
    office.forget_newest_head()
    office.run("up", "--detach")
    until(lambda: office.acls(one, other) == 0, "what the store of before says")
    assert office.apply(USER.format(one, "porter")) == newest
    until(lambda: office.acls(one) == ACLS, "a change of the restored store")
    office.apply(USER.format(one, ""))
    until(lambda: office.acls(one, other) == 0)
    assert office.lost_files() == []
    assert office.restarts() == {"rbac": 0}, office.log()
    office.run("audit", "verify")
    office.run("down")

"""Whoever brings Kafka up to date may be killed at any moment.

The next one who comes leads to exactly what is declared, and at no moment does a user have a
rule that neither the old nor the new state gives: what is taken away goes first, so that
what a user has is always within one of the two.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import Connection

from penstock.components import KafkaCluster
from penstock.kafka import Acl, Cluster
from penstock.kafka.admin_connection import AdminConnection
from penstock.kafka.credentials import CredentialVault, LoginRefusedError, derive
from penstock.model.document import Document, Key
from penstock.store.definitions.history import Change
from penstock.store.kafka_users import KafkaUsers
from tests.support.kafka.officers import Officer, open_officer, stream
from tests.support.scale import scaled

pytestmark = [pytest.mark.needs("java", "jars"), pytest.mark.timeout(1800)]

KILLS = scaled(5)
ROOT = Path(__file__).parents[3]
USERS = [f"killed{number}" for number in range(12)]
ROLES = ["red", "green", "blue"]
TOPICS = [f"kills{number}" for number in range(6)]
PASSWORD = "pw"  # noqa: S105 - of users that live as long as the test

Access = dict[str, set[Acl]]


@dataclass
class State:
    """Who has which roles, and what roles may read; users that are missing do not exist."""

    roles: dict[str, list[str]] = field(default_factory=dict)
    topics: dict[str, list[str]] = field(default_factory=lambda: {role: [] for role in ROLES})

    @classmethod
    def draw(cls, chance: random.Random) -> State:
        there = [user for user in USERS if chance.random() < 0.8]
        return cls(
            {user: chance.sample(ROLES, chance.randint(0, len(ROLES))) for user in there},
            {role: sorted(chance.sample(TOPICS, chance.randint(0, 4))) for role in ROLES},
        )

    def documents(self) -> list[Document]:
        roles = [
            Document("role", role, {"permissions": [{"topic": name} for name in names]})
            for role, names in self.topics.items()
        ]
        users = [Document("user", user, {"roles": roles}) for user, roles in self.roles.items()]
        return [*roles, *users]

    def acls(self) -> Access:
        """Return what each user has, read off the tables as a person would."""
        found: Access = {user: set() for user in USERS}
        for user, roles in self.roles.items():
            names = {name for role in roles for name in self.topics[role]}
            found[user] = {Acl("topic", "literal", name, "read") for name in names}
            if names:
                found[user].add(Acl("group", "prefixed", f"{user}:", "read"))
        return found


@pytest.fixture
def officer(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Officer]:
    monkeypatch.setattr("penstock.kafka.reconciler.BUSY_SECONDS", 300.0)
    with open_officer(kafka, tmp_path) as made:
        made.apply(stream("clinic"))
        yield made


def declare(officer: Officer, state: State) -> None:
    """Store a state, with passwords for those who come new; Kafka is not told."""
    before = officer.definitions.current()[0].documents
    rows = KafkaUsers(officer.database)
    vault = CredentialVault.open(officer.settings.key)
    credential = derive(PASSWORD, officer.settings.mechanism, officer.settings.iterations)

    def give_passwords(connection: Connection, _: Change) -> None:
        for user in state.roles:
            if Key("user", user) not in before:
                rows.put_within(connection, user, vault.seal(user, credential))

    officer.definitions.apply(
        state.documents(), actor="officer", prune=["user", "role"], then=give_passwords
    )


@contextmanager
def mending(officer: Officer) -> Iterator[subprocess.Popen[str]]:
    """Start a process that waits for the word to bring Kafka up to date."""
    folder = officer.settings.key.path.parent
    words = [str(folder), officer.cluster.bootstrap, str(officer.cluster.admin_password_file)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.kafka.reconciler_process", *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def say(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


@contextmanager
def watching(officer: Officer, old: Access, new: Access) -> Iterator[None]:
    """Look at the cluster all the time; afterwards, refuse what neither state gives."""
    ended = threading.Event()
    excess: list[str] = []
    looks = [0]

    def look() -> None:
        with Cluster(officer.settings) as cluster:
            while not ended.is_set():
                held = cluster.acls_of(USERS)
                looks[0] += 1
                excess.extend(
                    f"{user} has {sorted(map(str, acls))}"
                    for user, acls in held.items()
                    if not (acls <= old[user] or acls <= new[user])
                )

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    assert looks[0], "nobody looked"
    assert excess == []


def can_log_in(officer: Officer, user: str) -> bool:
    try:
        AdminConnection.open(officer.settings, user, PASSWORD).close()
    except LoginRefusedError:
        return False
    return True


def check(officer: Officer, state: State) -> None:
    """Refuse any difference between the cluster and a state."""
    with Cluster(officer.settings) as cluster:
        assert cluster.acls_of(USERS) == state.acls()
    assert {user for user in USERS if can_log_in(officer, user)} == set(state.roles)
    assert officer.open().reconciler.compare().is_empty
    assert not officer.open().reconciler.is_behind()


def test_kills_at_random_moments_are_made_good(officer: Officer) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", "0")) or random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    sys.stderr.write(f"PENSTOCK_SEED={seed}\n")
    state = State.draw(chance)
    declare(officer, state)
    # How long the work takes by itself says when to kill.
    with mending(officer) as process:
        began = time.monotonic()
        say(process, "repair")
        assert process.wait(300) == 0
        seconds = time.monotonic() - began
    check(officer, state)
    early = 0
    for _ in range(KILLS):
        old, state = state, State.draw(chance)
        declare(officer, state)
        with watching(officer, old.acls(), state.acls()):
            with mending(officer) as process:
                say(process, chance.choice(["follow", "repair"]))
                time.sleep(chance.uniform(0, seconds))
                early += process.poll() is None
                process.send_signal(signal.SIGKILL)
                process.wait()
            officer.open().reconciler.follow_up()
        check(officer, state)
    sys.stderr.write(f"{early} of {KILLS} were killed before they were done\n")

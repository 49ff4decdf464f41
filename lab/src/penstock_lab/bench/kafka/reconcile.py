"""How long a cluster takes to follow the roles, and a reader to stop who lost one.

Method:
- 10,000 users, 100 roles with two views each of 200; every user has three roles, drawn with
  a fixed seed. That makes six rules on topics for most users and one on groups.
- `fill`: a cluster that has nothing is repaired: users and rules. `compare` and `repair`
  find nothing to do. `restore`: the ACLs of 20 users were deleted behind our back.
  `take_one_role`: a role is taken from one user among all. `close_a_view`: a view is closed
  to its role, that is to some hundred users. Memory is the process's own peak,
  above what it had before the first of these.
- `revocation`: a reader reads what a writer writes every 5 ms; a role is taken away and
  given back, some times. From just before the command to the last record that came, and to
  the command's return.
"""

from __future__ import annotations

import random
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from penstock.components import KafkaCluster
from penstock.config.brokers import KafkaSettings
from penstock.config.secrets import KeyFile, SecretFile
from penstock.eventlog.connection import admin_settings
from penstock.kafka import Administration, Cluster, consumer_settings, open_administration
from penstock.kafka.credentials import CredentialVault, derive
from penstock.model.document import Document
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock.store.kafka_users import KafkaUsers

USERS, ROLES, ROLES_EACH = 10_000, 100, 3
GOAL_SECONDS = 60.0
GOAL_REVOCATION_MS = 1000.0
_BATCH = 5000
_PAUSE = 0.005


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure both."""
    users = USERS // 50 if quick else USERS
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, KafkaCluster() as kafka:
        folder = Path(name)
        settings = KafkaSettings(
            bootstrap=kafka.bootstrap,
            security="sasl_plaintext",
            password=SecretFile(kafka.admin_password_file),
            key=KeyFile(folder / "credentials.key"),
            timeout=60,
        )
        with Database.open(f"sqlite:///{folder}/penstock.db") as database:
            definitions = CheckedDefinitions(Definitions(database))
            _define(definitions, users)
            _give_passwords(settings, database, users)
            officer = open_administration(settings, database, definitions, actor="bench")
            return {
                "users": users,
                "roles": ROLES,
                "reconcile": _measure_repairs(officer, settings, users),
                "revocation": _measure_revocation(officer, settings, 3 if quick else 20),
            }


def _define(definitions: CheckedDefinitions, users: int) -> None:
    draw = random.Random(1)
    stream = Document("stream", "s", {"fields": [{"name": "a", "type": "int"}]})
    views = [
        Document("view", f"v{number}", {"stream": "s", "roles": [f"r{number // 2}"]})
        for number in range(2 * ROLES)
    ]
    roles = [Document("role", f"r{number}", {}) for number in range(ROLES)]
    names = [role.name for role in roles]
    people = [
        Document("user", f"u{number}", {"roles": draw.sample(names, ROLES_EACH)})
        for number in range(users)
    ]
    definitions.apply([stream, *views, *roles], actor="bench")
    for first in range(0, users, _BATCH):
        definitions.apply(people[first : first + _BATCH], actor="bench")


def _give_passwords(settings: KafkaSettings, database: Database, users: int) -> None:
    """Give all users passwords; one derivation serves all, for it is not what is measured."""
    vault, rows = CredentialVault.open(settings.key), KafkaUsers(database)
    credential = derive("secret", settings.mechanism, settings.iterations)
    with database.write() as connection:
        for number in range(users):
            name = f"u{number}"
            rows.put_within(connection, name, vault.seal(name, credential))


def _measure_repairs(
    officer: Administration, settings: KafkaSettings, users: int
) -> dict[str, Any]:
    before = _peak_mib()
    reconciler = officer.reconciler
    fill, filled = _timed(reconciler.repair)
    compare, found = _timed(reconciler.compare)
    if not found.is_empty:
        raise RuntimeError("the cluster differs after it was filled")
    repair, _ = _timed(reconciler.repair)
    with Cluster(settings) as cluster:
        robbed = [f"u{number}" for number in range(0, users, max(1, users // 20))]
        held = cluster.acls_of(robbed)
        gone = [(f"User:{user}", acl) for user, acls in held.items() for acl in acls]
        removal, _ = _timed(lambda: list(cluster.delete_acls(gone)))
    restore, restored = _timed(reconciler.repair)
    if restored.put != len(gone):
        raise RuntimeError(f"{len(gone)} ACLs were missing, {restored.put} were put")
    role = officer.user_status("u1").roles[0]
    one, _ = _timed(lambda: officer.remove_role("u1", role))
    close, closed = _timed(lambda: officer.remove_permission("r0", "v0"))
    return {
        "rules": filled.put,
        "fill_s": round(fill, 2),
        "goal_s": GOAL_SECONDS,
        "met": fill <= GOAL_SECONDS,
        "compare_s": round(compare, 2),
        "repair_nothing_s": round(repair, 2),
        "remove_behind_our_back": {"rules": len(gone), "s": round(removal, 2)},
        "restore_s": round(restore, 2),
        "take_one_role_s": round(one, 3),
        "close_a_view": {"users": closed.removed, "s": round(close, 2)},
        "added_peak_mib": round(_peak_mib() - before, 1),
    }


def _measure_revocation(
    officer: Administration, settings: KafkaSettings, rounds: int
) -> dict[str, Any]:
    officer.add_role("watched", ["topic:watched"])
    officer.add_user("reader", "secret", ["watched"])
    with Cluster(settings) as cluster:
        cluster.make_topics(["watched"])
    stop = threading.Event()
    last = [0.0]
    threads = [
        threading.Thread(target=_write, args=(settings, stop)),
        threading.Thread(target=_read, args=(settings, stop, last)),
    ]
    for thread in threads:
        thread.start()
    stopped, returned, resumed = [], [], []
    try:
        for _ in range(rounds):
            _await(lambda: time.monotonic() - last[0] < 10 * _PAUSE)
            began = time.monotonic()
            officer.remove_role("reader", "watched")
            returned.append(time.monotonic() - began)
            _await(lambda: time.monotonic() - last[0] > 1.5)  # noqa: PLR2004 - a second and more
            stopped.append(max(0.0, last[0] - began))
            resumed.append(_give_back(officer, last))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return {
        "rounds": rounds,
        "last_record_after_ms": _spread(stopped),
        "command_ms": _spread(returned),
        "reads_again_after_ms": _spread(resumed),
        "goal_ms": GOAL_REVOCATION_MS,
        "met": max(stopped) * 1000 <= GOAL_REVOCATION_MS,
    }


def _give_back(officer: Administration, last: list[float]) -> float:
    began = time.monotonic()
    officer.assign_role("reader", "watched")
    _await(lambda: last[0] > began)
    return last[0] - began


def _write(settings: KafkaSettings, stop: threading.Event) -> None:
    producer = Producer({**admin_settings(settings), "linger.ms": 0})
    while not stop.wait(_PAUSE):
        producer.produce("watched", b"x")
        producer.poll(0)
    producer.flush(10)


def _read(settings: KafkaSettings, stop: threading.Event, last: list[float]) -> None:
    reader = Consumer(
        {**consumer_settings(settings, "reader", "secret"), "auto.offset.reset": "latest"}
    )
    reader.subscribe(["watched"])
    while not stop.is_set():
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            last[0] = time.monotonic()
    reader.close()


def _await(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("what was waited for did not happen")
        time.sleep(0.005)


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = act()
    return time.perf_counter() - began, found


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _spread(seconds: list[float]) -> dict[str, float]:
    found = sorted(value * 1000 for value in seconds)
    return {"median": round(statistics.median(found), 1), "most": round(found[-1], 1)}

"""The reconciler: brings a cluster to what the definitions say, keeps it there, and is watched.

    change of definitions ──▶ epoch 8 ─┐
                                       ├──▶ delete ACLs ──▶ create ACLs ──▶ users ──▶ note 8
    the cluster has epoch 7 ───────────┘          (any failure: 7 stays, with the reason)

Rules that hold here:
- The database comes first: a change is an epoch there, or a new version of a password, and
  that is the order to the cluster. As long as the cluster has not all of it, the epoch that
  it has stays behind, and whoever comes next goes on. Nothing is forgotten by a crash.
- A change counts as done when the cluster has it, what is removed at each of its brokers;
  until then it is reported as pending.
- What is taken away goes first. What is given follows, and only if all of that worked.
- A store that is set back is compared with what is remembered outside it: what its lost epochs
  gave is taken back from the cluster.
- Nothing is changed at the cluster before the audit log has it, where one is kept.
- What the cluster has is looked at before it is changed: it is never guessed.
- Users that Penstock owns have exactly the ACLs that are wanted. ACLs of others are shown,
  and deleted only where pruning is asked for; users of others are left alone.
- `rbac watch` is ready when the store can be read, and the cluster was tried. A cluster out of
  reach does not make it unready, for it will be tried again and a restart would not help:
  `penstock_kafka_behind` and `penstock rbac diff` show it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.config import Config
from penstock.config.brokers import KafkaSettings
from penstock.errors import PenstockError
from penstock.kafka.acls import WantedAccess
from penstock.kafka.cluster import PRINCIPAL, Cluster, ClusterMemory, ReachedFile
from penstock.kafka.credentials import CredentialVault
from penstock.kafka.drift import (
    AccessAudit,
    Drift,
    compare_acls,
    compare_users,
    confirm_revoked,
    find_undeclared,
)
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.documents import Snapshot
from penstock.store.kafka_users import BusyError, Holding, KafkaUser, KafkaUsers, Progress
from penstock.telemetry import Endpoint, Health, counter, gauge, get_logger
from penstock.telemetry.health import Figures

MANY = 200
"""Beyond this many users it is cheaper to list all ACLs than those of each."""

BUSY_SECONDS = 30.0
LOOK_SECONDS = 0.2
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0

_log = get_logger("kafka")


@dataclass(slots=True)
class ReconcileResult:
    """What was done at the cluster, and the epoch it has now."""

    epoch: int
    removed: int = 0
    put: int = 0
    users_put: int = 0
    users_removed: int = 0

    def counts(self) -> dict[str, int]:
        """Return how much was done, as records name it."""
        return {
            "acls_put": self.put,
            "acls_removed": self.removed,
            "users_put": self.users_put,
            "users_removed": self.users_removed,
        }

    def add(self, other: ReconcileResult) -> None:
        """Add what was done after it."""
        self.epoch = other.epoch
        self.removed += other.removed
        self.put += other.put
        self.users_put += other.users_put
        self.users_removed += other.users_removed


class Reconciler:
    """Compares and repairs one cluster. `own` are users that are never Penstock's to keep."""

    def __init__(
        self,
        definitions: CheckedDefinitions,
        users: KafkaUsers,
        connect: Callable[[], Cluster],
        vault: CredentialVault,
        *,
        own: Iterable[str],
        audit: AccessAudit | None = None,
        memory: ReachedFile | None = None,
    ) -> None:
        self._definitions = definitions
        self._users = users
        self._connect = connect
        self._vault = vault
        self._own = frozenset(own)
        self._audit = audit
        self._ordered = False
        self._memory = ClusterMemory(definitions.definitions, users, self._own, memory)
        self._due: int | None = None
        """When time alone may change who has which roles, in milliseconds since 1970."""

    def compare(self) -> Drift:
        """Return how the whole cluster differs from the definitions; change nothing."""
        with self._connect() as cluster:
            wanted = WantedAccess(self._definitions.current()[1])
            return self._compare_all(cluster, wanted, self._users.users())

    def repair(self, *, prune: bool = False) -> ReconcileResult:
        """Compare the whole cluster, and repair what differs; `prune`: also ACLs of others."""
        return self._work(lambda holding: self._repair(holding, prune=prune))

    def follow_up(self) -> ReconcileResult:
        """Bring to the cluster what has changed since the epoch that it has."""
        return self._work(self._follow_up)

    def watch(
        self,
        stop: threading.Event,
        on_done: Callable[[ReconcileResult], None] | None = None,
        failed: Callable[[PenstockError], None] | None = None,
    ) -> None:
        """Repair at first, then follow every change until `stop` is set; retry what fails."""
        pause = 0.0
        full = True
        while not stop.wait(pause or LOOK_SECONDS):
            try:
                full = self._memory.is_set_back() or self._is_due() or full
                if not full and not pause and not self.is_behind():
                    continue
                done = self.repair() if full else self.follow_up()
            except PenstockError as error:
                pause = min(LONGEST_PAUSE, 2 * pause or FIRST_PAUSE)
                _log.warning("Kafka is not up to date; trying again", error=error)
                if failed is not None:
                    failed(error)
                continue
            pause, full = 0.0, False
            if on_done is not None:
                on_done(done)

    def is_behind(self) -> bool:
        """Say whether the cluster lacks something that the database has."""
        snapshot = self._definitions.definitions.snapshot()
        progress = self._users.progress()
        if (progress.epoch, progress.mark) != (snapshot.epoch, snapshot.mark):
            return True
        return bool(self._users.pending())

    def _is_due(self) -> bool:
        """Say whether time alone may have changed who has which roles."""
        return self._due is not None and time.time() * 1000 >= self._due

    def progress(self) -> Progress:
        """Return the epoch that the cluster has, and what stands in the way of the next."""
        return self._users.progress()

    def confirmed(self) -> Figures:
        """Return the newest epoch of definitions that the store has confirmed, and its age."""
        return self._definitions.definitions.confirmed()

    def _work(self, act: Callable[[Holding], ReconcileResult]) -> ReconcileResult:
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                with self._users.working() as holding:
                    return self._act(act, holding)
            except BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_SECONDS)

    def _act(self, act: Callable[[Holding], ReconcileResult], holding: Holding) -> ReconcileResult:
        """Do the work, and record how it ended if there was any, or if it failed before."""
        self._ordered = False
        failed = self._users.progress().attempts > 0
        self._memory.is_set_back()
        try:
            done = act(holding)
        except PenstockError as error:
            holding.fail(error.message)
            if self._audit is not None and self._ordered:
                self._audit.note_end(None, {}, failed=True)
            raise
        if self._audit is not None and (self._ordered or failed):
            self._audit.note_end(done.epoch, done.counts(), failed=False)
        return done

    def _follow_up(self, holding: Holding) -> ReconcileResult:
        done = ReconcileResult(-1)
        with self._connect() as cluster:
            identity = cluster.identity()
            while True:
                snapshot, definitions = self._definitions.current()
                before = self._memory.recall(identity)
                if before is None:
                    # Another cluster, another history, or none yet: nothing can be built on.
                    done.add(self._repair_with(cluster, identity, holding, prune=False))
                    continue
                wanted = WantedAccess(definitions)
                touched = wanted.touched(before.documents, snapshot.documents)
                touched |= self._users.pending() | (self._users.names() - wanted.principals.keys())
                touched -= self._own
                if len(touched) > MANY:
                    kept = self._users.users()
                    found = self._compare_all(cluster, wanted, kept)
                else:
                    kept = self._users.some_users(touched)
                    found = self._compare_some(cluster, wanted, kept, touched)
                done.add(
                    self._repair_drift(cluster, found, wanted, touched, kept, snapshot, holding)
                )
                self._complete(holding, identity, snapshot, wanted)
                # Whoever came while we were at work found us busy, and relies on us.
                if self._definitions.definitions.snapshot().mark == snapshot.mark:
                    return done

    def _repair(self, holding: Holding, *, prune: bool) -> ReconcileResult:
        with self._connect() as cluster:
            return self._repair_with(cluster, cluster.identity(), holding, prune=prune)

    def _repair_with(
        self, cluster: Cluster, identity: str, holding: Holding, *, prune: bool
    ) -> ReconcileResult:
        snapshot, definitions = self._definitions.current()
        kept = self._users.users()
        wanted = WantedAccess(definitions)
        found = self._compare_all(cluster, wanted, kept)
        touched = (wanted.principals.keys() | kept.keys()) - self._own
        done = self._repair_drift(cluster, found, wanted, touched, kept, snapshot, holding)
        if prune:
            # Brokers need the ACLs on the cluster resource; those are for people to see.
            foreign = [item for item in found.foreign if item[1].resource != "cluster"]
            if foreign and self._audit is not None:
                self._audit.note_pruning(foreign, snapshot.epoch)
                self._ordered = True
            done.removed += sum(cluster.delete_acls(foreign))
        self._complete(holding, identity, snapshot, wanted)
        return done

    def _complete(
        self, holding: Holding, identity: str, snapshot: Snapshot, wanted: WantedAccess
    ) -> None:
        holding.complete(identity, snapshot.epoch, snapshot.mark)
        self._due = wanted.due
        self._memory.remember(snapshot)

    def _compare_all(
        self, cluster: Cluster, wanted: WantedAccess, kept: dict[str, KafkaUser]
    ) -> Drift:
        found = Drift(
            refused=sorted(wanted.users.keys() & self._own), undeclared=find_undeclared(wanted)
        )
        defined = wanted.principals.keys() - self._own
        compare_users(found, wanted, kept, cluster.users(), self._own)
        compare_acls(found, wanted, defined | kept.keys(), cluster.acls())
        return found

    def _compare_some(
        self,
        cluster: Cluster,
        wanted: WantedAccess,
        kept: dict[str, KafkaUser],
        touched: set[str],
    ) -> Drift:
        found = Drift()
        for name in sorted(touched):
            row = kept.get(name)
            if name not in wanted.principals:
                found.users_to_remove.append(name)
            elif row is not None and row.credential is not None and row.is_pending:
                found.users_to_put.append(name)
        acls = cluster.acls_of(touched)
        compare_acls(
            found,
            wanted,
            touched,
            ((PRINCIPAL + user, acl) for user, some in acls.items() for acl in some),
        )
        # Nobody else was looked at, so it is not known who else has an ACL.
        found.holders.clear()
        return found

    def _repair_drift(
        self,
        cluster: Cluster,
        found: Drift,
        wanted: WantedAccess,
        touched: Iterable[str],
        kept: dict[str, KafkaUser],
        snapshot: Snapshot,
        holding: Holding,
    ) -> ReconcileResult:
        """Remove the drift of the users that were compared."""
        done = ReconcileResult(snapshot.epoch)
        holding.renew()
        if self._audit is not None and not found.is_empty:
            self._audit.note_order(found, snapshot.epoch)
            self._ordered = True
        for count in _remove(cluster, found):
            done.removed += count
            holding.renew()
        confirm_revoked(cluster, {user: wanted.acls(user) for user in touched})
        holding.renew()
        if found.users_to_remove:
            cluster.remove_credentials(found.users_to_remove)
            self._users.forget(
                (name, kept[name].version) for name in found.users_to_remove if name in kept
            )
            done.users_removed = len(found.users_to_remove)
        self._users.register({user for user, _ in found.missing})
        for count in cluster.create_acls(found.missing):
            done.put += count
            holding.renew()
        credentials = (
            (user, self._vault.unseal(user, credential))
            for user in found.users_to_put
            if (credential := kept[user].credential) is not None
        )
        for users in cluster.put_credentials(credentials):
            self._users.mark_applied((user, kept[user].version) for user in users)
            done.users_put += len(users)
            holding.renew()
        return done


def _remove(cluster: Cluster, found: Drift) -> Iterator[int]:
    """Delete ACLs of users, and yield how many are gone after each batch.

    For each deletion the controller scans all ACLs. Where all were read, and many are to go,
    those that are to go from everyone who has them go at once.
    """
    left = found.extra
    if len(left) > MANY:
        going = Counter(acl for _, acl in left)
        shared = {acl: count for acl, count in going.items() if 1 < count == found.holders[acl]}
        yield from cluster.delete_from_all(shared)
        left = [item for item in left if item[1] not in shared]
    yield from cluster.delete_acls((PRINCIPAL + user, acl) for user, acl in left)


def open_reconciler(
    settings: KafkaSettings,
    database: Database,
    definitions: CheckedDefinitions,
    *,
    audit: AccessAudit | None = None,
) -> Reconciler:
    """Return the reconciler of the cluster of these settings."""
    return Reconciler(
        definitions,
        KafkaUsers(database),
        partial(Cluster, settings),
        CredentialVault.open(settings.key),
        own=[settings.user],
        audit=audit,
        memory=ReachedFile(settings.key.path.with_suffix(".reached")),
    )


EPOCH: Final = gauge("penstock_kafka_epoch", "The epoch of the definitions that Kafka has.").plain
BEHIND: Final = gauge(
    "penstock_kafka_behind", "1 while Kafka could not be given what the definitions say, else 0."
).plain
FAILURES: Final = counter(
    "penstock_kafka_failures", "Attempts to bring Kafka up to date that failed."
).plain
ACLS: Final = counter(
    "penstock_kafka_acls", "ACLs of users changed at Kafka.", change=("put", "removed")
)
USERS: Final = counter(
    "penstock_kafka_users", "Logins of users changed at Kafka.", change=("put", "removed")
)


def run_watch(
    config: Config,
    reconciler: Reconciler,
    stop: threading.Event,
    on_done: Callable[[ReconcileResult], None] | None = None,
) -> None:
    """Reconcile with every change of definitions, and answer probes, until `stop` is set."""
    tried = threading.Event()

    def note_done(done: ReconcileResult) -> None:
        EPOCH.set(done.epoch)
        BEHIND.set(0)
        for metric, change, count in (
            (ACLS, "put", done.put),
            (ACLS, "removed", done.removed),
            (USERS, "put", done.users_put),
            (USERS, "removed", done.users_removed),
        ):
            metric[change].inc(count)
        tried.set()
        if on_done is not None:
            on_done(done)

    def note_failure(_: PenstockError) -> None:
        BEHIND.set(1)
        FAILURES.inc()
        tried.set()

    with _endpoint(config, make_health(reconciler, tried)):
        reconciler.watch(stop, note_done, note_failure)


def make_health(reconciler: Reconciler, tried: threading.Event) -> Health:
    """Make the checks of the watch."""
    health = Health()

    def check_store() -> str | None:
        reconciler.progress()
        return None

    def check_kafka() -> str | None:
        return None if tried.is_set() else "Kafka was not tried yet"

    health.register("store", check_store, details=reconciler.confirmed)
    health.register("kafka", check_kafka)
    return health


@contextmanager
def _endpoint(config: Config, health: Health) -> Iterator[None]:
    if not config.monitor.enabled:
        yield
        return
    with Endpoint(health, host=config.monitor.host, port=config.kafka.monitor_port) as endpoint:
        _log.info("answering probes", port=endpoint.port)
        yield

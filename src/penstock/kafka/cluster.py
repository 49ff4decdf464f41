"""A Kafka cluster as its administrator sees it: users, ACLs, topics; what it was brought to.

Rules that hold here:
- Every call has a timeout, and what fails is `UnavailableError` in our words.
- ACLs travel in batches that a controller takes as one.
- ACLs are deleted by exact filters; only `delete_from_all` leaves the principal open.
- What the cluster was last brought to is remembered outside the database, too: one that is set
  back sets its own note back. Then only memory, and after a restart the file, tells which users
  may still be at the cluster. Where another process of the same history went further, that counts.
- The file names users and no secret; its mode is 0600 all the same, and it stands beside the key of
  the credentials. It is whole at every moment. One that is missing tells nothing; one that is
  unreadable is reported and tells nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.config.brokers import KafkaSettings
from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError, UsageError
from penstock.eventlog.connection import TOPIC_CONFIG, admin_settings
from penstock.kafka.acls import Acl, principals_of
from penstock.kafka.admin_connection import MECHANISMS, AdminConnection
from penstock.kafka.credentials import Credential
from penstock.model.kinds import Stream, View
from penstock.store.definitions.documents import Snapshot
from penstock.store.definitions.history import Definitions
from penstock.store.kafka_users import KafkaUsers
from penstock.telemetry import get_logger

PRINCIPAL: Final = "User:"
PUT_BATCH: Final = 4000
# To delete an ACL the controller scans all there are.
REMOVE_BATCH: Final = 200
# A controller takes at most 10,000 changes at once.
SHARED_LIMIT: Final = 8000
CREDENTIAL_BATCH: Final = 1000
SESSION_SECONDS: Final = 20.0
REASON_LIMIT: Final = 300
_NOT_ALLOWED: Final = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
_FORGIVEN: Final = {KafkaError.TOPIC_ALREADY_EXISTS}

Item = TypeVar("Item")


class Cluster(ExitStack):
    """One cluster; use it as a context manager. Opening it logs in, or says why not."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__()
        self.settings = settings
        self._timeout = settings.timeout
        self._connection = self.enter_context(AdminConnection.open(settings))
        self._since = time.monotonic()

    def identity(self) -> str:
        """Return the id of this cluster."""
        return self._broker().identity()

    def brokers(self) -> list[str]:
        """Return the addresses of all brokers that run."""
        return self._broker().brokers()

    def connect_broker(self, address: str) -> AdminConnection:
        """Log in at one broker."""
        return AdminConnection.open(self.settings, address=address)

    def users(self) -> set[str]:
        """Return the users that have a credential."""
        return self._broker().users()

    def acls(self) -> Iterator[tuple[str, Acl]]:
        """Yield all ACLs with their principals."""
        yield from self._broker().acls()

    def acls_of(self, users: Iterable[str]) -> dict[str, set[Acl]]:
        """Return the ACLs of some users."""
        broker = self._broker()
        return {user: {acl for _, acl in broker.acls(PRINCIPAL + user)} for user in users}

    def create_acls(self, acls: Iterable[tuple[str, Acl]]) -> Iterator[int]:
        """Create ACLs for users, and yield how many are there after each batch."""
        for batch in _batches(acls, PUT_BATCH):
            self._broker().create_acls((PRINCIPAL + user, acl) for user, acl in batch)
            yield len(batch)

    def delete_acls(self, acls: Iterable[tuple[str, Acl]]) -> Iterator[int]:
        """Delete ACLs of principals, and yield how many are gone after each batch."""
        for batch in _batches(acls, REMOVE_BATCH):
            yield self._broker().delete_acls(batch)

    def delete_from_all(self, acls: Mapping[Acl, int]) -> Iterator[int]:
        """Delete ACLs from everyone who has them, so many as said, and yield how many went.

        Who got one of them in this very moment loses it: that denies, and is seen by the next
        comparison.
        """
        for acl, count in acls.items():
            if count > SHARED_LIMIT:
                holders = [who for who, found in self.acls() if found == acl]
                yield from self.delete_acls((who, acl) for who in holders)
            else:
                yield self._broker().delete_acls([(None, acl)])

    def put_credentials(self, credentials: Iterable[tuple[str, Credential]]) -> Iterator[list[str]]:
        """Put users' credentials, and yield the users that have theirs after each batch."""
        for batch in _batches(credentials, CREDENTIAL_BATCH):
            _refuse(self._broker().alter_credentials(put=batch))
            yield [user for user, _ in batch]

    def remove_credentials(self, users: Iterable[str]) -> None:
        """Remove users; who is not there is no trouble."""
        for batch in _batches(users, CREDENTIAL_BATCH):
            for mechanism in MECHANISMS:
                gone = [(user, mechanism) for user in batch]
                _refuse(self._broker().alter_credentials(delete=gone))

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        try:
            return set(self._admin.list_topics(timeout=self._timeout).topics)
        except KafkaException as error:
            raise _failed("it did not list its topics", error) from error

    def make_topics(self, names: Iterable[str]) -> list[str]:
        """Make the topics that are not there yet, and return their names."""
        missing = sorted(set(names) - self.topics())
        if not missing:
            return []
        copies = self.settings.replication or -1
        wanted = [
            NewTopic(name, self.settings.partitions, copies, config=TOPIC_CONFIG)
            for name in missing
        ]
        answers = self._admin.create_topics(wanted, request_timeout=self._timeout)
        for name, future in answers.items():
            self._wait(future, f"it did not make the topic {name}")
        return missing

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(admin_settings(self.settings))

    def _broker(self) -> AdminConnection:
        # Brokers end connections that do not log in again from time to time.
        if time.monotonic() - self._since > SESSION_SECONDS:
            self.close()
            self._connection = self.enter_context(AdminConnection.open(self.settings))
            self._since = time.monotonic()
        return self._connection

    def _wait(self, future: Future[Any], what: str) -> Any:
        try:
            return future.result(self._timeout + 5)
        except KafkaException as error:
            if error.args[0].code() in _FORGIVEN:
                return None
            raise _failed(what, error) from error
        except TimeoutError:
            raise UnavailableError(
                f"Kafka: {what} in {self._timeout:g} s", fix="check that its brokers run"
            ) from None


def _failed(what: str, error: KafkaException) -> UnavailableError:
    cause: KafkaError = error.args[0]
    reason = cause.str()
    if cause.code() in _NOT_ALLOWED:
        # Brokers put their own innards into the text of this one.
        reason = "it does not allow that to Penstock's user"
    return UnavailableError(
        f"Kafka: {what}: {reason[:REASON_LIMIT]}",
        fix="check that its brokers run, and that kafka.user is one of its super users",
    )


def _refuse(wrong: dict[str, str]) -> None:
    if wrong:
        user, reason = min(wrong.items())
        raise UnavailableError(
            f"Kafka did not change {len(wrong)} of its users, {user} among them: {reason}",
            fix="check that kafka.user is one of its super users",
        )


def _batches(items: Iterable[Item], size: int) -> Iterator[Sequence[Item]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def wanted_topics(definitions: DefinitionSet, streams: Iterable[str] | None = None) -> list[str]:
    """Return the topics of streams and of their views; of all streams where none is named."""
    asked = set(definitions.of(Stream) if streams is None else streams)
    found = {item.topic for name, item in definitions.of(Stream).items() if name in asked}
    found |= {view.topic for view in definitions.of(View).values() if view.stream in asked}
    return sorted(found)


def make_topics(
    cluster: Cluster, definitions: DefinitionSet, streams: Iterable[str] | None = None
) -> list[str]:
    """Make the topics of streams and views that are not there yet, and return their names."""
    return cluster.make_topics(wanted_topics(definitions, streams))


_LIMIT = 100_000_000
_log = get_logger("kafka")


@dataclass(frozen=True, slots=True)
class Reached:
    """The epoch that the cluster was brought to, and whose users it then had."""

    epoch: int
    mark: str
    users: frozenset[str]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """Return what these definitions bring to a cluster."""
        users = frozenset(
            name
            for key, document in snapshot.documents.items()
            if key.kind == "user"
            for name in principals_of(key.name, document.body.get("certificate"))
        )
        return cls(snapshot.epoch, snapshot.mark, users)


class ReachedFile:
    """The file, and what it holds."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Reached | None:
        """Read what was noted last."""
        try:
            with self._path.open() as file:
                document = json.loads(file.read(_LIMIT))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("the note of what Kafka has cannot be read", error=error)
            return None
        match document:
            case {"epoch": int(epoch), "mark": str(mark), "users": list(users)}:
                return Reached(epoch, mark, frozenset(it for it in users if isinstance(it, str)))
        _log.warning("the note of what Kafka has is not one")
        return None

    def save(self, reached: Reached) -> None:
        """Note what the cluster has; that it cannot be noted is no reason to undo it."""
        document = {"epoch": reached.epoch, "mark": reached.mark, "users": sorted(reached.users)}
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            beside.touch(mode=0o600)
            beside.write_text(json.dumps(document) + "\n")
            beside.replace(self._path)
        except OSError as error:
            _log.error("what Kafka has cannot be noted outside the database", error=error)


class ClusterMemory:
    """Remembers what the cluster has, and notices a store that tells another history."""

    def __init__(
        self,
        definitions: Definitions,
        users: KafkaUsers,
        own: frozenset[str],
        file: ReachedFile | None = None,
    ) -> None:
        self._definitions = definitions
        self._users = users
        self._own = own
        self._file = file
        self._known = file.load() if file is not None else None
        self._had: Snapshot | None = None  # saves reading it again
        self._distrusted = False  # the store's own note of what the cluster has is too old

    def is_set_back(self) -> bool:
        """Say whether the store tells another history than the cluster was brought to.

        Its own note of what the cluster has is then as old as the rest of it.
        """
        known = self._known
        progress = self._users.progress()
        if self._distrusted or known is None or progress.mark == known.mark:
            return self._distrusted
        if self._snapshot_at(known.epoch, known.mark) is not None:
            if progress.epoch > known.epoch:
                reached = self._snapshot_at(progress.epoch, progress.mark)
                if reached is not None:
                    self.remember(reached)
            return False
        _log.warning("the store was set back to another history", epoch=known.epoch)
        # Users of then may be at the cluster, and the store does not know of them any more.
        self._users.register(known.users - self._own)
        self._had = None
        self._distrusted = True
        return True

    def recall(self, identity: str) -> Snapshot | None:
        """Return the definitions that this cluster has, if that is known."""
        progress = self._users.progress()
        if self._distrusted or progress.cluster != identity or progress.epoch < 0:
            return None
        if self._had is not None and self._had.mark == progress.mark:
            return self._had
        return self._snapshot_at(progress.epoch, progress.mark)

    def remember(self, snapshot: Snapshot) -> None:
        """Take note that the cluster has all of these definitions."""
        self._distrusted = False
        self._had = snapshot
        if self._known is None or self._known.mark != snapshot.mark:
            self._known = Reached.of(snapshot)
            if self._file is not None:
                self._file.save(self._known)

    def _snapshot_at(self, epoch: int, mark: str) -> Snapshot | None:
        """Return the definitions of an epoch, if the store has it and it is of this history."""
        try:
            snapshot = self._definitions.snapshot_at(epoch)
        except UsageError:
            return None  # it has no such epoch
        return snapshot if snapshot.mark == mark else None

"""A Kafka cluster as its administrator sees it: users, ACLs, topics.

Rules that hold here:
- Every call has a timeout, and what fails is `UnavailableError` in our words.
- ACLs travel in batches that a controller takes as one.
- ACLs are deleted by exact filters; only `delete_from_all` leaves the principal open.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import cached_property
from itertools import islice
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.config.brokers import KafkaSettings
from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError
from penstock.eventlog.connection import TOPIC_CONFIG, admin_settings
from penstock.kafka.acls import Acl
from penstock.kafka.admin_connection import MECHANISMS, AdminConnection
from penstock.kafka.credentials import Credential
from penstock.model.kinds import Stream, View

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

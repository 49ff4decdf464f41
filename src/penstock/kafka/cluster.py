"""A Kafka cluster as its administrator sees it: users, rules, topics.

Rules that hold here:
- Every call ends in time, and what fails is `UnavailableError` in our words.
- Many rules travel together, in batches that a controller takes as one.
- Rules are removed by exact description, never by a pattern that could match more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from penstock.config.sections.kafka import KafkaSettings
from penstock.errors import UnavailableError, quote
from penstock.kafka.connection import admin_settings
from penstock.kafka.rules import Rule
from penstock.kafka.scram import Credential
from penstock.kafka.wire import Wire

PRINCIPAL: Final = "User:"
PUT_BATCH: Final = 4000
# To remove a rule the controller looks at all there are.
REMOVE_BATCH: Final = 500
CREDENTIAL_BATCH: Final = 1000
_RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.BROKER,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
}
REASON_LIMIT: Final = 300
_NOT_ALLOWED: Final = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
_FORGIVEN: Final = {KafkaError.TOPIC_ALREADY_EXISTS}

Item = TypeVar("Item")


class Cluster:
    """One cluster; use it as a context manager. Opening it logs in, or says why not."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._timeout = settings.timeout
        with Wire.open(settings):
            pass
        self._admin = AdminClient(admin_settings(settings))

    def identity(self) -> str:
        """Return what tells this cluster from any other."""
        try:
            found = self._admin.list_topics(timeout=self._timeout).cluster_id
        except KafkaException as error:
            raise _failed("it did not tell its topics", error) from error
        return str(found)

    def users(self) -> set[str]:
        """Return the users that have a credential."""
        with Wire.open(self.settings) as wire:
            return wire.users()

    def rules(self) -> Iterator[tuple[str, Rule]]:
        """Yield all rules with their principals."""
        with Wire.open(self.settings) as wire:
            yield from wire.rules()

    def rules_of(self, users: Iterable[str]) -> dict[str, set[Rule]]:
        """Return the rules of some users."""
        with Wire.open(self.settings) as wire:
            return {user: {rule for _, rule in wire.rules(PRINCIPAL + user)} for user in users}

    def put_rules(self, rules: Iterable[tuple[str, Rule]]) -> Iterator[int]:
        """Put rules for users, and yield how many are there after each batch."""
        for batch in _batches(rules, PUT_BATCH):
            bindings = [_binding(PRINCIPAL + user, rule) for user, rule in batch]
            answers = self._admin.create_acls(bindings, request_timeout=self._timeout)
            for future in answers.values():
                self._wait(future, "it did not take a rule")
            yield len(batch)

    def remove_rules(self, rules: Iterable[tuple[str, Rule]]) -> Iterator[int]:
        """Remove rules of principals, and yield how many are gone after each batch."""
        for batch in _batches(rules, REMOVE_BATCH):
            filters = [_exactly(principal, rule) for principal, rule in batch]
            answers = self._admin.delete_acls(filters, request_timeout=self._timeout)
            for future in answers.values():
                self._wait(future, "it did not remove a rule")
            yield len(batch)

    def put_credentials(self, credentials: Iterable[tuple[str, Credential]]) -> Iterator[list[str]]:
        """Put users' credentials, and yield the users that have theirs after each batch."""
        for batch in _batches(credentials, CREDENTIAL_BATCH):
            with Wire.open(self.settings) as wire:
                _refuse(wire.alter_credentials(put=batch))
            yield [user for user, _ in batch]

    def remove_credentials(self, users: Iterable[str]) -> None:
        """Remove users; who is not there is no trouble."""
        for batch in _batches(users, CREDENTIAL_BATCH):
            for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256"):
                with Wire.open(self.settings) as wire:
                    _refuse(wire.alter_credentials(delete=[(user, mechanism) for user in batch]))

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        try:
            return set(self._admin.list_topics(timeout=self._timeout).topics)
        except KafkaException as error:
            raise _failed("it did not tell its topics", error) from error

    def make_topics(self, names: Iterable[str], config: dict[str, str] | None = None) -> list[str]:
        """Make the topics that are not there yet, and return their names."""
        missing = sorted(set(names) - self.topics())
        if not missing:
            return []
        copies = self.settings.replication or -1
        wanted = [
            NewTopic(name, self.settings.partitions, copies, config=config or {})
            for name in missing
        ]
        answers = self._admin.create_topics(wanted, request_timeout=self._timeout)
        for name, future in answers.items():
            self._wait(future, f"it did not make the topic {name}")
        return missing

    def close(self) -> None:
        """Let go of the connection."""
        # librdkafka has no call for it: the client ends with its last reference.
        del self._admin

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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


def _parts(principal: str, rule: Rule) -> tuple[Any, ...]:
    try:
        return (
            _RESOURCES[rule.resource],
            rule.name,
            ResourcePatternType[rule.pattern.upper()],
            principal,
            rule.host,
            AclOperation[rule.operation.upper()],
            AclPermissionType[rule.permission.upper()],
        )
    except KeyError:
        # Others may have made rules of kinds that librdkafka cannot express.
        raise UnavailableError(
            f"Kafka has a rule for {quote(principal)} that Penstock cannot change: {rule}",
            fix="remove it with kafka-acls.sh",
        ) from None


def _binding(principal: str, rule: Rule) -> AclBinding:
    return AclBinding(*_parts(principal, rule))


def _exactly(principal: str, rule: Rule) -> AclBindingFilter:
    return AclBindingFilter(*_parts(principal, rule))

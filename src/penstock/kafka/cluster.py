"""A Kafka cluster as its administrator sees it: users, rules, topics.

Rules that hold here:
- Every call ends in time, and what fails is `UnavailableError` in our words.
- Many rules travel together, in batches that a controller takes as one.
- Rules are removed by exact description; only `remove_from_all` leaves the user open.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.config.sections.kafka import KafkaSettings
from penstock.errors import UnavailableError
from penstock.eventlog.connection import admin_settings
from penstock.kafka.rules import Rule
from penstock.kafka.scram import Credential
from penstock.kafka.wire import MECHANISMS, Wire

PRINCIPAL: Final = "User:"
PUT_BATCH: Final = 4000
# To remove a rule the controller looks at all there are.
REMOVE_BATCH: Final = 200
# A controller takes at most 10,000 changes at once.
SHARED_LIMIT: Final = 8000
CREDENTIAL_BATCH: Final = 1000
WIRE_SECONDS: Final = 20.0
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
        self._held = Wire.open(settings)
        self._since = time.monotonic()

    def identity(self) -> str:
        """Return what tells this cluster from any other."""
        return self._wire().identity()

    def brokers(self) -> list[str]:
        """Return the addresses of all brokers that run."""
        return self._wire().brokers()

    def open_broker(self, address: str) -> Wire:
        """Log in at one broker."""
        return Wire.open(self.settings, address=address)

    def users(self) -> set[str]:
        """Return the users that have a credential."""
        return self._wire().users()

    def rules(self) -> Iterator[tuple[str, Rule]]:
        """Yield all rules with their principals."""
        yield from self._wire().rules()

    def rules_of(self, users: Iterable[str]) -> dict[str, set[Rule]]:
        """Return the rules of some users."""
        wire = self._wire()
        return {user: {rule for _, rule in wire.rules(PRINCIPAL + user)} for user in users}

    def put_rules(self, rules: Iterable[tuple[str, Rule]]) -> Iterator[int]:
        """Put rules for users, and yield how many are there after each batch."""
        for batch in _batches(rules, PUT_BATCH):
            self._wire().put_rules((PRINCIPAL + user, rule) for user, rule in batch)
            yield len(batch)

    def remove_rules(self, rules: Iterable[tuple[str, Rule]]) -> Iterator[int]:
        """Remove rules of principals, and yield how many are gone after each batch."""
        for batch in _batches(rules, REMOVE_BATCH):
            yield self._wire().remove_rules(batch)

    def remove_from_all(self, rules: Mapping[Rule, int]) -> Iterator[int]:
        """Remove rules from everyone who has them, so many as said, and yield how many went.

        Who got one of them in this very moment loses it: that denies, and is seen by the next
        comparison.
        """
        for rule, count in rules.items():
            if count > SHARED_LIMIT:
                holders = [who for who, found in self.rules() if found == rule]
                yield from self.remove_rules((who, rule) for who in holders)
            else:
                yield self._wire().remove_rules([(None, rule)])

    def put_credentials(self, credentials: Iterable[tuple[str, Credential]]) -> Iterator[list[str]]:
        """Put users' credentials, and yield the users that have theirs after each batch."""
        for batch in _batches(credentials, CREDENTIAL_BATCH):
            _refuse(self._wire().alter_credentials(put=batch))
            yield [user for user, _ in batch]

    def remove_credentials(self, users: Iterable[str]) -> None:
        """Remove users; who is not there is no trouble."""
        for batch in _batches(users, CREDENTIAL_BATCH):
            for mechanism in MECHANISMS:
                gone = [(user, mechanism) for user in batch]
                _refuse(self._wire().alter_credentials(delete=gone))

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
        self._held.close()

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(admin_settings(self.settings))

    def _wire(self) -> Wire:
        # Brokers end connections that do not log in again from time to time.
        if time.monotonic() - self._since > WIRE_SECONDS:
            self._held.close()
            self._held = Wire.open(self.settings)
            self._since = time.monotonic()
        return self._held

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

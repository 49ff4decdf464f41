"""Tells services through topics of the Kafka cluster.

Rules that hold here:
- A message counts as sent when all copies have it. It is tried once within its time; when it is
  tried again is the worker's business.
- Only topics with the prefix of the settings are written: no definition can put messages into the
  topics of streams, views, or others.
- A record's key is the request: it names nobody.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.config.sections.brokers import KafkaSettings
from penstock.config.sections.rights import RightsKafkaSettings
from penstock.errors import UnavailableError
from penstock.rights.dispatch.message import (
    NOT_CONFIGURED,
    SENT,
    Dispatched,
    Letter,
    failed,
    find_trouble,
)

if TYPE_CHECKING:
    from confluent_kafka import Producer

SCHEME: Final = "kafka:"
_POLL_SECONDS: Final = 0.05
_TROUBLES: Final = (
    (UnavailableError, "credentials"),
    (TimeoutError, "timeout"),
    (BufferError, "backlog"),
)


class KafkaChannel:
    """Appends messages to topics."""

    def __init__(
        self, cluster: KafkaSettings, settings: RightsKafkaSettings, timeout: float
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._timeout = timeout
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def send(self, place: str, letter: Letter) -> Dispatched:
        """Append a message; return when all copies have it, or it failed."""
        topic = place.removeprefix(SCHEME)
        if not topic.startswith(self._settings.prefix):
            return failed("topic-refused")
        if self._cluster.bootstrap is None:
            return NOT_CONFIGURED
        try:
            from confluent_kafka import KafkaException  # noqa: PLC0415 - for those who use Kafka
        except ImportError:
            return NOT_CONFIGURED
        try:
            error = self._append(topic, letter)
        except (UnavailableError, TimeoutError, BufferError) as trouble:
            return find_trouble(trouble, _TROUBLES)
        except KafkaException as trouble:
            error = trouble.args[0]
        return SENT if error is None else self._fail(error)

    def _append(self, topic: str, letter: Letter) -> Any:
        """Append a message, and return what the brokers say: None for success."""
        ends: list[Any] = []
        producer = self._open()
        producer.produce(
            topic,
            letter.body,
            key=letter.request.encode(),
            headers=list(letter.headers.items()),
            on_delivery=lambda error, _: ends.append(error),
        )
        # A little longer than the producer tries, so that its own word counts.
        latest = time.monotonic() + self._timeout + 2
        while not ends and time.monotonic() < latest:
            producer.poll(_POLL_SECONDS)
        if not ends:
            raise TimeoutError
        return ends[0]

    def close(self) -> None:
        """Let go of the producer."""
        with self._lock:
            self._producer = None

    def _open(self) -> Producer:
        from confluent_kafka import Producer  # noqa: PLC0415 - for those who use Kafka

        from penstock.eventlog.connection import (  # noqa: PLC0415
            producer_settings,
            read_password,
        )

        own = self._settings
        with self._lock:
            if self._producer is None:
                user = own.user or self._cluster.user
                password = own.password.read_text() if own.password else None
                made = producer_settings(
                    self._cluster, user, password or read_password(self._cluster)
                )
                milliseconds = int(self._timeout * 1000)
                self._producer = Producer(
                    {**made, "message.timeout.ms": milliseconds, "linger.ms": 1}
                )
            return self._producer

    def _fail(self, error: Any) -> Dispatched:
        if error.fatal():
            self.close()  # it does nothing any more: the next one gets another
        name = str(error.name())
        return failed("timeout" if name == "_MSG_TIMED_OUT" else f"kafka-{name.strip('_')}")

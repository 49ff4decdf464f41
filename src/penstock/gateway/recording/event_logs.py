"""The event logs that streams are kept in, as the gateway writes to them.

Rules that hold here:
- A stream says where it is kept: in the embedded files, or at Kafka (`source: kafka`).
- Several gateways on one host may write to the same files: they take turns (`eventlog.files`).
  Gateways on several hosts share a stream through Kafka.
- A topic that is missing at Kafka is made, once more if somebody has deleted it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.config import Config
from penstock.errors import PenstockError
from penstock.eventlog import EventLog
from penstock.gateway.recording.feeds import Target
from penstock.gateway.recording.log_writer import Appendable

if TYPE_CHECKING:
    from penstock.eventlog.kafka import KafkaLog


class Logs:
    """The logs that the settings name. Used by one thread."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._files = EventLog(config.pipeline.event_log)
        self._at_kafka: dict[str, _TopicAtKafka] = {}

    def topic(self, target: Target) -> Appendable:
        """Return the topic that keeps a stream."""
        if not target.at_kafka:
            return self._files.topic(target.topic)
        if target.topic not in self._at_kafka:
            self._at_kafka[target.topic] = _TopicAtKafka(self._kafka, target.topic)
        return self._at_kafka[target.topic]

    @cached_property
    def _kafka(self) -> KafkaLog:
        # Only who uses Kafka needs its client.
        from penstock.eventlog.kafka import KafkaLog  # noqa: PLC0415

        return KafkaLog(self._config.kafka)


class _TopicAtKafka:
    """A topic that is made where it is missing."""

    def __init__(self, log: KafkaLog, name: str) -> None:
        self._log = log
        self._topic = log.topic(name)
        self._made = False

    def append(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes] | None = None,
        *,
        milliseconds: int | None = None,
    ) -> Any:
        """Append records, and return when all copies have them."""
        if not self._made:
            self._log.make_topic(self._topic.name)
            self._made = True
        try:
            return self._topic.append(values, keys, milliseconds=milliseconds)
        except PenstockError:
            # It may have been deleted.
            self._made = False
            raise

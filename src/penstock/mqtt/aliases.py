"""Topic aliases: numbers that a sender uses in place of topics.

Rules that hold here:
- Aliases belong to one direction of one network connection.
- The table never holds more than the maximum that this side announced, which is also the
  limit on what a sender can make us remember.
- After `expand` a message has its topic; the alias stays behind, as
  `PublishProperties.kept` never carries one.
"""

from __future__ import annotations

from penstock.mqtt.errors import ProtocolError, TopicAliasError
from penstock.mqtt.publish import Publish


class Aliases:
    """The aliases that the other side has introduced."""

    __slots__ = ("_maximum", "_topics")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._topics: dict[int, tuple[bytes, str]] = {}

    def expand(self, message: Publish) -> None:
        """Learn the alias that a message introduces, or fill in the topic it stands for."""
        alias = message.properties.topic_alias
        if not alias:
            return
        if alias > self._maximum:
            raise TopicAliasError(f"PUBLISH: topic alias {alias} is above {self._maximum}")
        if message.topic:
            self._topics[alias] = (message.topic_field, message.topic)
            return
        known = self._topics.get(alias)
        if known is None:
            raise ProtocolError(f"PUBLISH: topic alias {alias} was never introduced")
        message.topic_field, message.topic = known

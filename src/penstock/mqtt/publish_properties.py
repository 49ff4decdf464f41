"""The properties of PUBLISH, read so that equal lists are read once.

Messages of one publisher mostly carry the same few properties. `PropertyLists` remembers
the lists that it has found valid, so that the usual message costs one lookup.

Rules that hold here:
- A `PublishProperties` is shared between messages and never changed.
- What is remembered is bounded in number and length, and valid: remembering changes
  nothing but the time it takes.
- `kept` is what may go on: a topic alias and subscription identifiers mean something on
  one connection only, and reserved user properties are the gateway's own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from penstock.mqtt.codes import PacketType, Sender
from penstock.mqtt.errors import ProtocolError
from penstock.mqtt.properties import (
    SUBSCRIPTION_IDENTIFIER,
    TABLE,
    TOPIC_ALIAS,
    USER,
    UserProperties,
    scan,
)


@dataclass(slots=True)
class PublishProperties:
    """The properties of a PUBLISH, read once per distinct list of bytes."""

    raw: bytes
    """The list as it came, without its length."""
    kept: bytes
    """The list without topic alias, subscription identifiers and reserved user properties."""
    user: UserProperties = ()
    """User properties whose names are not reserved, in order."""
    reserved: UserProperties = ()
    """User properties whose names begin with a reserved prefix, in order."""
    subscription_identifiers: tuple[int, ...] = ()
    topic_alias: int = 0
    """0 where there is none."""
    payload_format: int | None = None
    message_expiry: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None

    def __repr__(self) -> str:
        # Values are the publisher's data and do not belong in logs.
        given = [item.name for item in fields(self)[2:] if getattr(self, item.name) != item.default]
        return f"PublishProperties({', '.join(given)})"


NO_PUBLISH_PROPERTIES: Final = PublishProperties(b"", b"")


class PropertyLists(dict[bytes, PublishProperties]):
    """Valid property lists of PUBLISH packets; `lists[raw]` parses new ones.

    One instance serves one direction: clients may not send subscription identifiers. User
    properties whose names begin with one of the `reserved` prefixes are told apart.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        reserved: tuple[str, ...] = (),
        entries: int = 8_192,
        longest: int = 256,
    ) -> None:
        super().__init__()
        self.sender = sender
        self.reserved = reserved
        self._entries = entries
        self._longest = longest

    def __missing__(self, raw: bytes) -> PublishProperties:
        properties = self.parse(raw)
        if len(raw) <= self._longest:
            if len(self) >= self._entries:
                self.clear()
            self[raw] = properties
        return properties

    def parse(self, raw: bytes) -> PublishProperties:
        """Read a property list without remembering it."""
        if not raw:
            return NO_PUBLISH_PROPERTIES
        properties = PublishProperties(raw, raw)
        kept: list[bytes] = []
        user: list[tuple[str, str]] = []
        reserved: list[tuple[str, str]] = []
        numbers: list[int] = []
        for identifier, value, data in scan("PUBLISH", raw, PacketType.PUBLISH):
            if identifier == USER:
                if value[0].startswith(self.reserved):
                    reserved.append(value)
                    continue
                user.append(value)
            elif identifier == SUBSCRIPTION_IDENTIFIER:
                if self.sender is Sender.CLIENT:
                    raise ProtocolError("PUBLISH: a client sent a subscription identifier")
                numbers.append(value)
                continue
            elif identifier == TOPIC_ALIAS:
                properties.topic_alias = value
                continue
            else:
                setattr(properties, TABLE[identifier].name, value)
            kept.append(data)
        properties.kept = b"".join(kept)
        properties.user = tuple(user)
        properties.reserved = tuple(reserved)
        properties.subscription_identifiers = tuple(numbers)
        return properties

"""Whether a client's message goes to the broker: what is not known yet about a topic.

Rules that hold here:
- The answer is the stamp to send the message with, None where it was dealt with here, or
  what must be awaited: a command.
- Everything that begins with the prefix of commands is a command or malformed; it never
  reaches the broker.
- Purposes that a message carries travel in the gateway's own properties.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.gateway import commanding
from penstock.gateway.answers import deny
from penstock.gateway.translation import MESSAGE_AIP, MESSAGE_PIP
from penstock.model.purposes import PurposeSet
from penstock.mqtt import Publish, ReasonCode, encode_user_properties
from penstock.policy.commands import SendFor, parse_publish
from penstock.store.follower import boot_clock

if TYPE_CHECKING:
    from penstock.gateway.downstream import Downstream

_KNOWN_LIMIT = 2_048
_LATER = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
_NO_TOPIC = ReasonCode.TOPIC_NAME_INVALID
_NOT_ALLOWED = ReasonCode.NOT_AUTHORIZED
AIP_PROPERTY = "purpose-aip"
PIP_PROPERTY = "purpose-pip"

Outcome = bytes | None | Coroutine[Any, Any, None]


def admit(client: Downstream, packet: Publish) -> Outcome:  # noqa: PLR0911 (one per answer)
    """Decide on a message whose topic was not admitted before, or which carries purposes."""
    gateway = client.gateway
    rules = gateway.rules
    if boot_clock() > rules.fresh_until:
        deny(client, packet, "stale", "the definitions are stale", _LATER)
        return None
    limits = gateway.limits
    if (
        len(packet.topic_field) - 2 > limits.topic_bytes
        or packet.topic.count("/") >= limits.topic_levels
    ):
        deny(client, packet, "topic", "the topic is too long", _NO_TOPIC)
        return None
    try:
        purposes = read_purposes(packet)
        if gateway.notation.is_command(packet.topic):
            command = parse_publish(packet.topic, packet.payload, gateway.notation)
            if not isinstance(command, SendFor):
                return commanding.run(client, packet, command)
            packet.rename(command.topic)
            purposes = command.purposes if purposes is None else _narrow(purposes, command.purposes)
    except PenstockError as error:
        gateway.denials.refused(client.session, "malformed")
        deny(client, packet, "malformed", str(error), _NO_TOPIC)
        return None
    if not rules.may_publish(client.session, packet.topic):
        gateway.denials.publication(client.session, "right")
        deny(client, packet, "right", "not allowed to write here", _NOT_ALLOWED)
        return None
    if purposes is not None:
        return client.stamp + encode_purposes(purposes)
    if len(client.writes) >= _KNOWN_LIMIT:
        client.writes.clear()
    client.writes.add(packet.topic)
    return client.stamp


def read_purposes(packet: Publish) -> PurposeSet | None:
    """Read the purposes that a message carries in user properties."""
    allowed: list[str] = []
    prohibited: list[str] = []
    found = False
    for name, value in packet.properties.reserved:
        if name in {AIP_PROPERTY, PIP_PROPERTY}:
            found = True
            if value:
                (allowed if name == AIP_PROPERTY else prohibited).extend(value.split(","))
    return PurposeSet.of(allowed, prohibited) if found else None


def encode_purposes(purposes: PurposeSet) -> bytes:
    """Encode the purposes of a message as the gateway's own properties."""
    return encode_user_properties(
        (
            (MESSAGE_AIP, ",".join(sorted(purposes.aip))),
            (MESSAGE_PIP, ",".join(sorted(purposes.pip))),
        )
    )


def _narrow(one: PurposeSet, other: PurposeSet) -> PurposeSet:
    """Join two sets that both narrow a message: what both allow, without what either prohibits."""
    either = one.prohibits_only or other.prohibits_only
    aip = one.aip | other.aip if either else one.aip & other.aip
    return PurposeSet(aip, one.pip | other.pip)

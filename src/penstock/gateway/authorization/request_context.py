"""What checks know of a message beside the rules: its stamp, its fields, time and place.

    publish:  user properties, purposes in the topic ──▶ narrow ──▶ stamp ──▶ broker
    deliver:  reserved properties ──▶ `StampReader` ──▶ who published it, for whom, what for

Rules that hold here:
- User properties, all of them, and the purposes in the topic narrow what the topic allows;
  where several are given, all of them do. What has nothing in common admits nobody.
- On their way they stand in the gateway's own properties, also in retained messages. What
  cannot be read there admits nobody.
- What is read is remembered, in limited number and length.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from penstock.gateway.broker import CLIENT, CREDENTIAL, FOR, MESSAGE_AIP, MESSAGE_PIP, PUBLISHER
from penstock.model.purposes import PurposeError, PurposeSet
from penstock.mqtt import Publish, PublishProperties
from penstock.mqtt.codes import PacketType
from penstock.mqtt.properties import Properties, UserProperties, encode_items
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.principals import ANONYMOUS
from penstock.policy.access.requests import collect
from penstock.policy.decision import Decision, Depends

AIP_PROPERTY: Final = "purpose-aip"
PIP_PROPERTY: Final = "purpose-pip"

_LIMIT: Final = 65_536
_LONGEST: Final = 512


class Stamp(NamedTuple):
    """What the gateway's own properties say of a message."""

    stamped: bool = False
    """Whether they name its publisher, be it nobody."""
    user: str | None = None
    client: str | None = None
    behalf: str | None = None
    """The user for whom it was published."""
    purposes: PurposeSet | None = None
    """The purposes that it carries for itself."""


class StampReader:
    """Reads stamps, each once."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[UserProperties, Stamp] = {}

    def read(self, reserved: UserProperties) -> Stamp:
        """Return what reserved properties say."""
        known = self._known.get(reserved)
        if known is not None:
            return known
        stamp = _read_stamp(reserved)
        if sum(len(name) + len(value) for name, value in reserved) <= _LONGEST:
            if len(self._known) >= _LIMIT:
                self._known.clear()
            self._known[reserved] = stamp
        return stamp


def _read_stamp(reserved: UserProperties) -> Stamp:
    found = dict(reserved)
    purposes = _read_own_purposes(found)
    if PUBLISHER not in found:
        return Stamp(purposes=purposes)
    user = found[PUBLISHER]
    return Stamp(
        stamped=True,
        user=None if user == ANONYMOUS else user,
        client=found.get(CLIENT),
        behalf=found.get(FOR),
        purposes=purposes,
    )


def _read_own_purposes(found: dict[str, str]) -> PurposeSet | None:
    if MESSAGE_AIP not in found and MESSAGE_PIP not in found:
        return None
    allowed, prohibited = found.get(MESSAGE_AIP), found.get(MESSAGE_PIP)
    try:
        return PurposeSet.of(
            allowed.split(",") if allowed else (), prohibited.split(",") if prohibited else ()
        )
    except PurposeError:
        return PurposeSet()


def read_purposes(pairs: UserProperties) -> PurposeSet | None:
    """Read the purposes in a client's user properties; None where there are none."""
    allowed: list[str] = []
    prohibited: list[str] = []
    found = False
    for name, value in pairs:
        if name in {AIP_PROPERTY, PIP_PROPERTY}:
            found = True
            if value:
                (allowed if name == AIP_PROPERTY else prohibited).extend(value.split(","))
    return PurposeSet.of(allowed, prohibited) if found else None


def narrow(one: PurposeSet | None, other: PurposeSet | None) -> PurposeSet | None:
    """Join what two places say, where both say something."""
    if one is None or other is None:
        return other if one is None else one
    return one.narrow(other)


def as_properties(purposes: PurposeSet) -> UserProperties:
    """Return the gateway's own properties for a message with these purposes."""
    return (
        (MESSAGE_AIP, ",".join(sorted(purposes.aip))),
        (MESSAGE_PIP, ",".join(sorted(purposes.pip))),
    )


def bind(properties: PublishProperties) -> bytes:
    """Return what of a message's properties nobody may change on its way, in one encoding.

    That is all but what the broker itself counts down or adds: expiry and subscriptions.
    """
    if not (properties.user or properties.reserved or properties.kept):
        return b""
    if properties.bound is None:
        properties.bound = _write_bound(properties)
    return properties.bound


def _write_bound(properties: PublishProperties) -> bytes:
    texts = [
        (properties.content_type or "").encode(),
        (properties.response_topic or "").encode(),
        properties.correlation_data or b"",
    ]
    for pairs in (properties.user, properties.reserved):
        found = [text.encode() for pair in pairs if pair[0] != CREDENTIAL for text in pair]
        texts += (b"%d" % len(found), *found)
    return b"".join(len(it).to_bytes(4, "big") + it for it in texts)


_OBJECT: Final = int(Depends.OBJECT)
_EVERYTHING: Final = sum(Depends)
KEPT_APART: Final = _EVERYTHING & ~int(Depends.PUBLISHER | Depends.ENVIRONMENT)
"""What counts where decisions are cached by property list: publisher and purpose are in it."""


def make_environment(now: int, place: str | None) -> dict[str, Any]:
    """Return what conditions know as `e`; what is not known has no name there."""
    e: dict[str, Any] = {"time": datetime.fromtimestamp(now / 1000, UTC)}
    if place is not None:
        e["place"] = place
    return e


def packet_fields(packet: Publish) -> dict[str, Any]:
    """Return the fields of `t` that follow from the packet alone."""
    properties = packet.properties
    return {
        "qos": packet.first >> 1 & 3,
        "retain": bool(packet.first & 1),
        "size": len(packet.payload),
        "contentType": properties.content_type,
        "properties": collect(properties.user),
    }


def trim(properties: PublishProperties) -> bytes:
    """Return the properties of a message, encoded, without what its publisher chose freely."""
    if not (properties.user or properties.response_topic or properties.correlation_data):
        return properties.kept
    return encode_items(
        Properties(
            payload_format=properties.payload_format,
            message_expiry=properties.message_expiry,
            content_type=properties.content_type,
        ),
        PacketType.PUBLISH,
    )


def is_lasting(
    decision: Decision, access: AccessEngine, topic: str, counting: int = _EVERYTHING
) -> bool:
    """Say whether a decision holds for all messages of the topic, as far as `counting` goes."""
    if not decision.depends:
        return True
    depends = int(decision.depends) & counting
    # Where all of the object is in the topic, the topic says all.
    return not depends or (depends == _OBJECT and not access.layout(topic).paths)

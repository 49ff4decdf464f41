"""What both checks know of a packet beside the rules: who, when, where, and how long it holds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from penstock.mqtt import Publish
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.objects import collect
from penstock.policy.decision import Decision, Depends

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


def is_lasting(
    decision: Decision, access: AccessEngine, topic: str, counting: int = _EVERYTHING
) -> bool:
    """Say whether a decision holds for all messages of the topic, as far as `counting` goes."""
    if not decision.depends:
        return True
    depends = int(decision.depends) & counting
    # Where all of the object is in the topic, the topic says all.
    return not depends or (depends == _OBJECT and not access.layout(topic).paths)

"""The purposes that a message carries for itself, from whichever place they come.

Rules that hold here:
- User properties, all of them, and the purposes in the topic narrow what the topic allows;
  where several are given, all of them do.
- What has nothing in common admits nobody.
- On their way they stand in the gateway's own properties, also in retained messages.
"""

from __future__ import annotations

from penstock.gateway.translation import MESSAGE_AIP, MESSAGE_PIP
from penstock.model.purposes import PurposeSet
from penstock.mqtt.properties import UserProperties

AIP_PROPERTY = "purpose-aip"
PIP_PROPERTY = "purpose-pip"


def read_purposes(pairs: UserProperties) -> PurposeSet | None:
    """Read the purposes in user properties; None where there are none."""
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

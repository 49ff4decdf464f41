"""What has a key of its own: an event type as a whole, and each attribute of it.

Rules that hold here:
- A resource belongs to the issuer of the type, and its UUID follows from the issuer's key: a type
  of another issuer that names the same attribute has another key.
- An attribute that a type has from one that it extends keeps the key that it has there: who may
  read it in the one may read it in the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from penstock.errors import UsageError, quote
from penstock.model.grants import Grant
from penstock.model.kinds import EventType
from penstock.trust.event_types import TypeRegistry, type_id
from penstock.trust.keys import digest

_ATTRIBUTE: Final = b"penstock sealed attribute v1"
_DIGITS: Final = 32


class Resource(NamedTuple):
    """Something that has a key."""

    id: UUID
    owner: str
    """The key of the issuer, whose installation manages the group."""
    label: str
    """The friendly name of the type that it belongs to."""
    attribute: str | None = None
    """The friendly name of an attribute; None: the event as a whole."""

    def is_granted(self, grants: tuple[Grant, ...]) -> bool:
        """Tell whether somebody with these grants may have the key.

        Not where a value is fixed: a key opens and seals all values, and nobody could hold its
        holder to the one.
        """
        for grant in grants:
            if grant.values:
                continue
            publishes = grant.allows("type", self.label, "publish")
            reads = grant.allows("type", self.label, "subscribe")
            if self.attribute is None:
                is_seen = grant.attributes is None
            else:
                is_seen = grant.sees(self.attribute)
            if (publishes or reads) and is_seen:
                return True
        return False


def find_resources(event_type: EventType, registry: TypeRegistry) -> Iterator[Resource]:
    """Yield what of a type has a key: the type, then its attributes in their order."""
    whole = UUID(hex=type_id(event_type)[:_DIGITS])
    yield Resource(whole, event_type.issuer, event_type.label)
    for attribute in event_type.attributes:
        origin = _find_origin(event_type, attribute.id, registry)
        named = digest(_ATTRIBUTE, {"issuer": origin.issuer, "attribute": attribute.id})
        id_ = UUID(hex=named[:_DIGITS])
        yield Resource(id_, origin.issuer, origin.label, attribute.name)


def _find_origin(event_type: EventType, attribute: str, registry: TypeRegistry) -> EventType:
    """Return the type that an attribute comes from."""
    for certificate in event_type.certificates:
        base = registry.get(certificate.extends) if certificate.extends is not None else None
        if base is not None and any(it.id == attribute for it in base.attributes):
            return _find_origin(base, attribute, registry)
    return event_type


def find_resource(event_type: EventType, registry: TypeRegistry, name: str | None) -> Resource:
    """Return the resource of a type that has a name; None: the type as a whole."""
    for resource in find_resources(event_type, registry):
        if resource.attribute == name:
            return resource
    raise UsageError(
        f"{quote(event_type.label)} has no attribute {quote(name)}",
        fix=f"name one of {', '.join(it.name for it in event_type.attributes)}",
    )

"""Signed event types: making them, and saying why one is not believed.

    issuer ──signs──▶ version ──manager, with rights──▶ version ──…      one label, one issuer
                         └──other issuer, with `extend`──▶ another type, with all its attributes

Rules that hold here:
- The id of a type is the SHA-256 of issuer, label and version. It travels between gateways, and
  tells nobody what it stands for.
- A version that a manager signed is judged against the one that it revises: each change needs its
  right (addAttribute, removeAttribute, editAttributeName, editAttributeType) in the capability
  that the version carries, and that begins with the issuer's key.
- A friendly name never passes from one attribute to another by a manager's hand: what is granted
  by name would be granted for other data.
- A type that extends another has all of its attributes, under the same names, UUIDs and types.
- Times of certificates are judged where a type is registered, once: what was signed in time stays.
- An event type has a key of its own as a whole, and so has each attribute of it: a `Resource`. It
  belongs to the issuer of the type, and its UUID follows from the issuer's key: a type of another
  issuer that names the same attribute has another key. An attribute that a type has from one that
  it extends keeps the key that it has there: who may read it in the one may read it in the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from penstock.errors import UsageError, quote
from penstock.model.grants import ADD, EXTEND, REMOVE, RENAME, RETYPE, Grant
from penstock.model.kinds import EventType
from penstock.model.kinds.trust import TypeAttribute, TypeCertificate
from penstock.trust import capabilities
from penstock.trust.capabilities import Capability, Revocations
from penstock.trust.keys import DomainKey, TrustError, digest, fingerprint, verify

_TYPE: Final = b"penstock event type v1"
_NAME: Final = b"penstock event type name v1"
_DEPTH_LIMIT: Final = 256
"""Versions and types behind one another."""


def type_id(event_type: EventType) -> str:
    """Return what names a type between gateways: 64 hexadecimal digits."""
    return digest(
        _NAME,
        {"issuer": event_type.issuer, "label": event_type.label, "version": event_type.version},
    )


class TypeRegistry:
    """All types that an installation knows, by what names them."""

    def __init__(self, types: Iterable[EventType] = ()) -> None:
        self._by_id: dict[str, EventType] = {}
        self._believed: set[int] = set()
        """Objects that were looked at with all behind them: once each, however many lead there."""
        for it in types:
            self._by_id.setdefault(type_id(it), it)

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id_: str) -> EventType | None:
        """Return the type with an id."""
        return self._by_id.get(id_)

    def version(self, like: EventType, version: str) -> EventType | None:
        """Return another version of a type."""
        other = {"issuer": like.issuer, "label": like.label, "version": version}
        return self._by_id.get(digest(_NAME, other))

    def object_to(self, event_type: EventType) -> str | None:
        """Say why a type is not believed; None where it is. Times are not asked about."""
        return self._object_to(event_type, frozenset())

    def _object_to(self, event_type: EventType, behind: frozenset[str]) -> str | None:
        if id(event_type) in self._believed:
            return None
        own = type_id(event_type)
        if own in behind or len(behind) >= _DEPTH_LIMIT:
            return "it goes back to itself, or to too many others"
        behind |= {own}
        try:
            signer = self._find_signer(event_type)
        except TrustError as error:
            return error.message
        if not verify(signer, _TYPE, event_type.statement(), event_type.signature):
            return f"it is not signed by {fingerprint(signer)}, or was changed since"
        for certificate in event_type.certificates:
            try:
                reason = (
                    self._object_to_revision(event_type, certificate, behind)
                    if certificate.revises is not None
                    else self._object_to_extension(event_type, certificate, behind)
                )
            except TrustError as error:
                reason = error.message
            if reason is not None:
                return reason
        if self._by_id.get(own) is event_type:  # what is held here stays, and so does its `id`
            self._believed.add(id(event_type))
        return None

    def _find_signer(self, event_type: EventType) -> str:
        revising = event_type.revises
        if revising is None or revising.token is None:
            return event_type.issuer
        held = capabilities.read(revising.token)
        key = held.links[-1].holder_key
        if held.owner != event_type.issuer or key is None:
            raise TrustError("the capability of its manager is not of its issuer, or for no key")
        return key

    def _object_to_revision(
        self, event_type: EventType, certificate: TypeCertificate, behind: frozenset[str]
    ) -> str | None:
        base = self.version(event_type, certificate.revises or "")
        if base is None:
            return f"the version {quote(certificate.revises)} that it revises is not known"
        reason = self._object_to(base, behind)
        if reason is not None:
            return f"the version that it revises is not believed: {reason}"
        held = capabilities.read(certificate.token or "")
        for right in list_changes(base, event_type):
            if not any(it.allows("type", event_type.label, right) for it in held.grants):
                return f"its manager has no right to {right}"
        for attribute in event_type.attributes:
            holder = self._find_holder(base, attribute.name)
            if holder is not None and holder != attribute.id:
                return f"the name {quote(attribute.name)} was that of another attribute"
        return None

    def _find_holder(self, event_type: EventType | None, name: str) -> str | None:
        """Return the attribute that a name stood for, in a version or in those behind it."""
        while event_type is not None:
            for attribute in event_type.attributes:
                if attribute.name.casefold() == name.casefold():
                    return attribute.id
            revising = event_type.revises
            event_type = (
                self.version(event_type, revising.revises or "") if revising is not None else None
            )
        return None

    def _object_to_extension(
        self, event_type: EventType, certificate: TypeCertificate, behind: frozenset[str]
    ) -> str | None:
        base = self.get(certificate.extends or "")
        if base is None:
            return f"the type {quote(certificate.extends)} that it extends is not known"
        reason = self._object_to(base, behind)
        if reason is not None:
            return f"the type that it extends is not believed: {reason}"
        missing = [it.name for it in base.attributes if it not in event_type.attributes]
        if missing:
            return f"it extends a type, and has not its attribute {quote(missing[0])}"
        if base.issuer != event_type.issuer:
            _check_extension(event_type, base, certificate.token)
        return None


def _check_extension(event_type: EventType, base: EventType, token: str | None) -> None:
    """Raise `TrustError` unless the owner of a type lets somebody else extend it."""
    if token is None:
        raise TrustError("it extends the type of another issuer without a capability")
    held = capabilities.read(token)
    if held.owner != base.issuer or held.links[-1].holder_key != event_type.issuer:
        raise TrustError("the capability to extend is not of that issuer, or is for somebody else")
    if not any(it.allows("type", base.label, EXTEND) for it in held.grants):
        raise TrustError(f"its issuer has no right to {EXTEND} {quote(base.label)}")


def object_to_times(event_type: EventType, now: float, revocations: Revocations) -> str | None:
    """Say why the certificates of a type do not hold at a time: asked when it is registered."""
    for certificate in event_type.certificates:
        if certificate.token is not None:
            reason = capabilities.read(certificate.token).object_to(now, revocations)
            if reason is not None:
                return f"its certificate does not hold: {reason}"
    return None


def list_changes(before: EventType, after: EventType) -> list[str]:
    """Return the rights that somebody needs to make one version of another."""
    old = {it.id: it for it in before.attributes}
    new = {it.id: it for it in after.attributes}
    found = []
    if new.keys() - old.keys():
        found.append(ADD)
    if old.keys() - new.keys():
        found.append(REMOVE)
    both = [(old[it], new[it]) for it in old.keys() & new.keys()]
    if any(was.name != now.name for was, now in both):
        found.append(RENAME)
    if any((was.type, was.optional) != (now.type, now.optional) for was, now in both):
        found.append(RETYPE)
    return found


def sign_type(
    signer: DomainKey,
    name: str,
    label: str,
    version: str,
    attributes: Iterable[TypeAttribute],
    *,
    issuer: str | None = None,
    certificates: Iterable[TypeCertificate] = (),
) -> EventType:
    """Sign a type; the issuer is who signs, unless a manager does."""
    unsigned = EventType(
        name=name,
        issuer=issuer or signer.key,
        label=label,
        version=version,
        attributes=tuple(attributes),
        certificates=tuple(certificates),
        signature="0" * 128,
    )
    signature = signer.sign(_TYPE, unsigned.statement())
    return unsigned.model_copy(update={"signature": signature})


def attribute_ids(event_type: EventType) -> Mapping[str, str]:
    """Return the UUID of each friendly name."""
    return {it.name: it.id for it in event_type.attributes}


def certificates_of(event_type: EventType) -> list[Capability]:
    """Return the capabilities that a type carries."""
    return [capabilities.read(it.token) for it in event_type.certificates if it.token is not None]


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

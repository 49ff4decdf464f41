"""What crosses the borders of a domain: signed event types, capabilities, lists of revocations.

Rules that hold here:
- These documents are exchanged as they are: all that a signature is over stands in them, and the
  name under which an installation keeps one does not.
- An event type is named by three of its items: the key of its issuer, its friendly name and its
  version. Two that differ in one of them are two types.
- Attributes have the types of a stream's fields. Friendly names are for clients; what travels
  between gateways is the UUID.
- Whether a signature is right is not asked here (`penstock.trust`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from penstock.errors import quote
from penstock.model.definition import (
    Concern,
    Definition,
    Part,
    PlainName,
    register,
)
from penstock.model.kinds.streams import FIELD_LIMIT, FieldName

TOKEN_LIMIT: Final = 16_384
REVOKED_LIMIT: Final = 100_000
CERTIFICATE_LIMIT: Final = 8
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)


def _check_uuid(text: str) -> str:
    if not _UUID.fullmatch(text):
        raise ValueError(f"{quote(text)} is not a UUID → write it in small letters, with hyphens")
    return text


Uuid = Annotated[str, Field(max_length=36), AfterValidator(_check_uuid)]
PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A key of a domain (Ed25519), as `penstock cert key` prints it."""
Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
Token = Annotated[str, Field(min_length=1, max_length=TOKEN_LIMIT)]
"""The text of a capability."""


class TypeAttribute(Part):
    """One attribute of an event type."""

    name: FieldName = Field(description="What clients call it, in this version.")
    id: Uuid = Field(description="What gateways call it, in all versions.")
    type: Literal["string", "int", "long", "float", "double", "boolean", "date", "timestamp"] = (
        Field(description="What its values are, as in a stream.")
    )
    optional: bool = Field(default=False, description="Whether it may be null or missing.")


class TypeCertificate(Part):
    """Who lets the signer of a type do this: revise it for its issuer, or extend another one."""

    token: Token | None = Field(
        default=None,
        description="The capability of the signer. Left out: it extends a type of the same issuer.",
    )
    revises: Uuid | None = Field(
        default=None, description="The version of this type that a manager has changed."
    )
    extends: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="The id of the type whose attributes this one has too."
    )

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        if (self.revises is None) == (self.extends is None):
            raise ValueError("a certificate is for one thing → give revises or extends")
        if self.revises is not None and self.token is None:
            raise ValueError("a manager needs the capability of the issuer → give token")
        return self


@register
class EventType(Definition):
    """A signed event type: who may publish what is told by capabilities of its issuer."""

    kind: ClassVar[str] = "event-type"
    concerns: ClassVar[Concern] = Concern.TRUST

    issuer: PublicKey = Field(description="The public key of the domain that owns the type.")
    label: PlainName = Field(description="Its friendly name, the same in all versions.")
    version: Uuid = Field(description="Which version this is; any number may be in use.")
    attributes: tuple[TypeAttribute, ...] = Field(
        min_length=1, max_length=FIELD_LIMIT, strict=False, description="What its events have."
    )
    certificates: tuple[TypeCertificate, ...] = Field(
        default=(),
        max_length=CERTIFICATE_LIMIT,
        strict=False,
        description="What lets somebody else than the issuer sign it, and what it extends.",
    )
    signature: Signature = Field(description="The signature over all other items.")

    @model_validator(mode="after")
    def _check_attributes(self) -> Self:
        names = [it.name.casefold() for it in self.attributes]
        ids = [it.id for it in self.attributes]
        for at, attribute in enumerate(self.attributes):
            if names.index(names[at]) != at or ids.index(ids[at]) != at:
                raise ValueError(
                    f"attributes: {quote(attribute.name)} has the name or the UUID of another → "
                    "give each its own; case does not count"
                )
        if sum(it.revises is not None for it in self.certificates) > 1:
            raise ValueError("certificates: a version revises one other → leave one out")
        return self

    @property
    def revises(self) -> TypeCertificate | None:
        """What lets a manager sign this version; None: the issuer signed it."""
        return next((it for it in self.certificates if it.revises is not None), None)

    def statement(self) -> Mapping[str, Any]:
        """Return what the signature is over: all items but itself."""
        return {
            "issuer": self.issuer,
            "label": self.label,
            "version": self.version,
            "attributes": [it.model_dump() for it in self.attributes],
            "certificates": [it.model_dump() for it in self.certificates],
        }


@register
class Capability(Definition):
    """A capability that this installation holds: what another domain lets it do."""

    kind: ClassVar[str] = "capability"
    concerns: ClassVar[Concern] = Concern.TRUST

    token: Token = Field(description="The chain of grants, as `penstock cert` wrote it.")


@register
class RevocationList(Definition):
    """Which links of capabilities a key has revoked; all of its other links are refreshed."""

    kind: ClassVar[str] = "revocation-list"
    concerns: ClassVar[Concern] = Concern.TRUST

    name: PlainName = Field(description="The key that signed it: there is one list of each.")
    issued: Annotated[int, Field(ge=0)] = Field(
        description="When it was signed, in seconds since 1970. A later one takes its place."
    )
    revoked: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")], ...] = Field(
        default=(), max_length=REVOKED_LIMIT, strict=False, description="The links, in order."
    )
    signature: Signature = Field(description="The signature over key, time and links.")

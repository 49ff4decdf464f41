"""Purposes: what data may be used for, which topics serve which, and how that is enforced."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from penstock.errors import quote
from penstock.model.definition import (
    NAME_LIMIT,
    Concern,
    Definition,
    Marker,
    Part,
    Reference,
    Steps,
    register,
)
from penstock.model.kinds.fields import FilterName, PurposePath, TopicFilter, as_value_error
from penstock.model.purposes import PURPOSE_LIMIT, SET_LIMIT, PurposeSet, check_purpose

CLIENT_LIMIT = 65535
STATE_LOG = 64
"""How many commands a purpose state lists."""


# A concept of DPV or of one of its extensions, as a prefixed name or an IRI.
_DPV = re.compile(
    r"(?:dpv|[a-z]{2,16}(?:-[a-z]{2,16})?|https://w3id\.org/dpv(?:/[a-z0-9-]{1,32}){0,4}#)"
    r"(?:(?<=#)|:)[A-Z][A-Za-z0-9]{0,99}",
    re.ASCII,
)


def _check_dpv(text: str) -> str:
    if text and not _DPV.fullmatch(text):
        raise ValueError(
            f"{quote(text)} is not an identifier of the Data Privacy Vocabulary → "
            "write dpv:Marketing or https://w3id.org/dpv#Marketing"
        )
    return text


@register
class Purpose(Definition):
    """A purpose that data may be used for."""

    kind: ClassVar[str] = "purpose"
    concerns: ClassVar[Concern] = Concern.PURPOSES

    name: Annotated[
        str, Field(max_length=NAME_LIMIT), AfterValidator(as_value_error(check_purpose))
    ] = Field(description="A path such as marketing/individualized; its parent is declared too.")
    dpv: Annotated[str, Field(max_length=NAME_LIMIT), AfterValidator(_check_dpv)] = Field(
        default="",
        description="The identifier of this purpose in the W3C Data Privacy Vocabulary: "
        "dpv:Marketing, or https://w3id.org/dpv#Marketing.",
    )

    def implied(self) -> Iterator[tuple[Marker, Steps, str]]:
        """Yield the parent, which must be declared too."""
        parent, slash, _ = self.name.rpartition("/")
        if slash:
            fix = f"declare {parent!r} too: a purpose stands below its parent"
            yield Reference("purpose", fix=fix), ("name",), parent


@register
class Reservation(Definition):
    """The purposes that the topics of a filter are reserved for."""

    kind: ClassVar[str] = "reservation"
    concerns: ClassVar[Concern] = Concern.PURPOSES

    name: FilterName = Field(description="The topic filter; `home/#` covers `home` too.")
    allow: tuple[PurposePath, ...] = Field(
        default=(),
        max_length=SET_LIMIT,
        strict=False,
        description="Purposes that subscribers may have, each with all below it. "
        "Empty: this reservation allows nobody.",
    )
    prohibit: tuple[PurposePath, ...] = Field(
        default=(),
        max_length=SET_LIMIT,
        strict=False,
        description="Purposes that are refused, each with all below it, whatever is allowed.",
    )

    @property
    def purposes(self) -> PurposeSet:
        """What this reservation says, as the engine takes it."""
        return PurposeSet(frozenset(self.allow), frozenset(self.prohibit))


@register
class Presubscription(Definition):
    """The purpose that applies when a client subscribes to a filter without naming one."""

    kind: ClassVar[str] = "presubscription"
    concerns: ClassVar[Concern] = Concern.PURPOSES

    client: str = Field(
        min_length=1, max_length=CLIENT_LIMIT, description="The MQTT client identifier."
    )
    filter: TopicFilter = Field(description="The topic filter, exactly as the client writes it.")
    purpose: PurposePath = Field(
        max_length=PURPOSE_LIMIT,
        description="The access purpose of that subscription, from the next time the client "
        "subscribes on.",
    )


@register
class PurposeSettings(Definition):
    """How purposes are enforced: one definition, named `default`.

    What it does not name stays as `gateway.filtering` configures it.
    """

    kind: ClassVar[str] = "purpose-settings"
    concerns: ClassVar[Concern] = Concern.PURPOSES

    name: Literal["default"] = Field(default="default", description="There is one: `default`.")
    allow_without_reservation: bool = Field(
        default=True,
        description="Topics without a reservation are open to all; false: strict mode.",
    )
    claims_need_right: bool = Field(
        default=False,
        description="Who subscribes for a purpose needs the right to claim it.",
    )
    filter_on_subscribe: bool = Field(
        default=False,
        description="Subscriptions are refused unless no topic of their filter is forbidden.",
    )
    filter_on_publish: bool = Field(
        default=True,
        description="Each delivery is checked; beside `filter_on_subscribe`: as well.",
    )
    filter_hybrid: bool = Field(
        default=False,
        description="Subscriptions are refused unless the combined purposes of their filter allow "
        "them, and each delivery is checked.",
    )
    hybrid_partial: bool = Field(
        default=False,
        description="hybrid: refused is only what every topic of the filter forbids.",
    )
    hybrid_tag: bool = Field(
        default=False,
        description="hybrid: deliveries of subscriptions of which no topic is forbidden are not "
        "checked.",
    )
    use_tree_store: bool = Field(
        default=True,
        description="Reservations are found in a tree; false: by a scan of a flat list.",
    )
    cache_reservations: bool = Field(
        default=True, description="Which purposes apply to a topic is cached."
    )
    cache_subscriptions: bool = Field(
        default=True, description="Decisions on deliveries are cached by topic."
    )
    auto_persist: bool = Field(
        default=True,
        description="Changes by commands are stored at once, for all gateways; false: they hold at "
        "one gateway until PERSIST.",
    )


class StateCommand(Part):
    """One command on the purpose state."""

    epoch: Annotated[int, Field(ge=1)] = Field(description="The epoch in which it was stored.")
    did: Literal["persist", "clear", "reload"] = Field(
        description="What it did; RESET clears, too."
    )


@register
class PurposeState(Definition):
    """What PERSIST, CLEAR, RESET and RELOAD did last; these commands write it, named `default`."""

    kind: ClassVar[str] = "purpose-state"
    concerns: ClassVar[Concern] = Concern.STATE

    name: Literal["default"] = Field(default="default", description="There is one: `default`.")
    persisted: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="The epoch of which PERSIST kept the reservations and presubscriptions.",
    )
    commands: tuple[StateCommand, ...] = Field(
        default=(),
        max_length=STATE_LOG,
        strict=False,
        description="The last commands, oldest first.",
    )

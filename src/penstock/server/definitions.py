"""Controls, front ends and services, registered over the network; event types for other domains.

    PUT /v1/definitions/KIND/NAME ──▶ checked as `apply` checks ──▶ stored, audited, followed
                                           └─▶ 422, with every problem and what to write instead

Rules that hold here:
- It takes the right to administer, as everywhere: whoever changes a service's address, or who acts
  for it, says where people's requests go.
- Only these three kinds can be named. No right, role or policy changes here.
- Signed event types are for other domains to know: whoever has a token may read them all.
- The answer comes when this server follows the change; others follow within their lease.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Path
from pydantic import Field

from penstock.model.document import Document, Key
from penstock.server import shapes
from penstock.server.connection import caller_of
from penstock.server.operations import DefinitionChange, PrivacyOperations

TEXT_LIMIT = 100_000

Kind = Literal["control", "control-publisher", "control-subscriber"]
KindInPath = Annotated[Kind, Path(description="What is defined.")]
NameInPath = Annotated[shapes.Name, Path(description="Its name.")]
User = Annotated[str, Depends(caller_of)]


class DefinitionShape(shapes.Shape):
    """A definition without kind and name: its fields, as in YAML."""

    body: dict[str, Any] = Field(
        examples=[{"stateful": False, "operation": "delete", "time_to_honor": "30d"}]
    )


class NamedDefinitionShape(DefinitionShape):
    """A definition."""

    kind: Kind
    name: str


class ChangeShape(shapes.Shape):
    """What became of a definition."""

    kind: Kind
    name: str
    epoch: int = Field(description="The epoch of the definitions that holds since.")
    changed: bool = Field(description="Whether it was another before.")

    @classmethod
    def of(cls, kind: Kind, made: DefinitionChange) -> ChangeShape:
        """Write a change down."""
        return cls(kind=kind, name=made.key.name, epoch=made.epoch, changed=made.changed)


class DefinitionQuery(shapes.Shape):
    """Which definition, by gRPC."""

    kind: Kind
    name: shapes.Name


class DefinitionText(DefinitionQuery):
    """A definition by gRPC: its fields as JSON."""

    json_text: Annotated[str, Field(max_length=TEXT_LIMIT)]


class EventTypesShape(shapes.Shape):
    """Signed event types, as definitions: each proves itself to whoever applies it."""

    event_types: list[dict[str, Any]]


def add_routes(app: FastAPI, operations: PrivacyOperations) -> None:
    """Add the routes of definitions."""

    @app.get("/v1/event-types")
    async def list_event_types(user: User) -> EventTypesShape:
        """Give the signed event types that are registered here, for other domains."""
        found = await operations.event_types(user)
        return EventTypesShape(event_types=[it.fields() for it in found])

    @app.get("/v1/definitions/{kind}/{name}")
    async def show_definition(
        kind: KindInPath, name: NameInPath, user: User
    ) -> NamedDefinitionShape:
        """Show a control, publisher or subscriber; takes the right to administer."""
        found = await operations.definition(user, Key(kind, name))
        return NamedDefinitionShape(kind=kind, name=name, body=dict(found.body))

    @app.put("/v1/definitions/{kind}/{name}")
    async def define(
        kind: KindInPath, name: NameInPath, given: DefinitionShape, user: User
    ) -> ChangeShape:
        """Register or change one; takes the right to administer.

        It is checked as a whole with all others. What is wrong with it stands in `places`.
        """
        made = await operations.define(user, Document(kind, name, given.body))
        return ChangeShape.of(kind, made)

    @app.delete("/v1/definitions/{kind}/{name}")
    async def undefine(kind: KindInPath, name: NameInPath, user: User) -> ChangeShape:
        """Delete one that no other names; takes the right to administer.

        Requests that a deleted service still has to do its part of fail, and its team is alerted.
        """
        made = await operations.undefine(user, Key(kind, name))
        return ChangeShape.of(kind, made)

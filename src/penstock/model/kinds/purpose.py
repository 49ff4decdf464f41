"""Purposes: what data may be used for, as paths in a hierarchy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from penstock.model.definition import (
    NAME_LIMIT,
    Concern,
    Definition,
    Marker,
    Reference,
    Steps,
    register,
)
from penstock.model.kinds.fields import as_value_error
from penstock.model.purposes import check_purpose


@register
class Purpose(Definition):
    """A purpose that data may be used for."""

    kind: ClassVar[str] = "purpose"
    concerns: ClassVar[Concern] = Concern.PURPOSES

    name: Annotated[
        str, Field(max_length=NAME_LIMIT), AfterValidator(as_value_error(check_purpose))
    ] = Field(description="A path such as marketing/individualized; its parent is declared too.")
    dpv: str = Field(
        default="",
        max_length=NAME_LIMIT,
        description="The identifier of this purpose in the W3C Data Privacy Vocabulary.",
    )

    def implied(self) -> Iterator[tuple[Marker, Steps, str]]:
        """Yield the parent, which must be declared too."""
        parent, slash, _ = self.name.rpartition("/")
        if slash:
            fix = f"declare {parent!r} too: a purpose stands below its parent"
            yield Reference("purpose", fix=fix), ("name",), parent

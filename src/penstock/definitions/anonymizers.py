"""Stateful anonymizers, which look at many records: what all share, and those of a window.

Two families. Those of a *window* see all records of a stretch of time at once; several may
work on the same window, one after the other. One of a *table* sees the stream as a whole
and holds records back until they are hidden among others; it stands alone.

Rules that hold here:
- `output` declares the schema that follows, so that masks behind it are checked too.
- What a parameter may be is said here and in `k_anonymity` and `differential_privacy`, once; the
  pipeline carries it out. `views.STATEFUL_ANONYMIZERS` has all by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field as Parameter

from penstock.errors import Problem, quote
from penstock.masks.fields import NUMBERS, Field, FieldType, Schema
from penstock.masks.mask import FieldName
from penstock.masks.supplies import Hierarchy
from penstock.model.definition import Part
from penstock.model.kinds import Stream, View

MAX_K: Final = 1_000_000
MAX_KEYS: Final = 256
MAX_SEED: Final = 2**63 - 1

Keys = Annotated[tuple[FieldName, ...], Parameter(max_length=MAX_KEYS, strict=False)]
Hierarchies = Mapping[str, Hierarchy]


class StatefulAnonymizer(Part):
    """The parameters of an anonymizer over many records."""

    name: ClassVar[str]
    family: ClassVar[Literal["window", "table"]]
    windowed: ClassVar[bool] = False
    """Whether it works on the view's window."""

    def check(self, schema: Schema, hierarchies: Hierarchies) -> Iterator[Problem]:
        """Yield what is wrong with the parameters for a schema."""
        raise NotImplementedError

    def check_view(self, view: View, stream: Stream) -> Iterator[Problem]:  # noqa: ARG002
        """Yield what the view or its stream lacks."""
        return iter(())

    def output(self, schema: Schema) -> Schema:
        """Return the schema that follows."""
        raise NotImplementedError

    def needs(self, schema: Schema) -> tuple[str, ...]:
        """Return the fields that it must be given to make what follows."""
        return tuple(schema)

    def check_keys(
        self, keys: tuple[str, ...], schema: Schema, place: str, takes: frozenset[FieldType]
    ) -> Iterator[Problem]:
        """Yield keys that are not there, twice there, or of a type that is not taken."""
        for index, key in enumerate(keys):
            where = f"{place}[{index}]"
            found = schema.get(key)
            if found is None:
                fix = f"fields are {', '.join(schema)}"
                yield Problem(where, f"there is no field {quote(key)}", fix)
            elif found.type not in takes:
                message = f"{self.name} does not take {quote(key)}, which is {found.type}"
                yield Problem(where, message, f"it takes {', '.join(sorted(takes))}")
            elif key in keys[:index]:
                yield Problem(where, f"{quote(key)} is listed twice", "name each field once")


class WindowAnonymizer(StatefulAnonymizer):
    """What all anonymizers of a window have."""

    family: ClassVar[Literal["window", "table"]] = "window"
    windowed: ClassVar[bool] = True

    keys: Annotated[Keys, Parameter(min_length=1)] = Parameter(description="The fields to change.")

    def check(self, schema: Schema, hierarchies: Hierarchies) -> Iterator[Problem]:  # noqa: ARG002
        """Yield keys that are not there, or of a type that is not taken."""
        return self.check_keys(self.keys, schema, "keys", self.takes)

    @property
    def takes(self) -> frozenset[FieldType]:
        """The types of fields that it can change."""
        return frozenset(FieldType)

    def output(self, schema: Schema) -> Schema:
        """Types stay, unless an anonymizer says otherwise."""
        return schema


class Aggregation(WindowAnonymizer):
    """Every record of a window carries the aggregate of all."""

    name: ClassVar[str] = "aggregation"

    aggregation_mode: Literal["sum", "median", "average", "max", "min", "count", "mode"] = (
        Parameter(
            description="What is made of the values of a window; null counts as no value.",
        )
    )

    @property
    def takes(self) -> frozenset[FieldType]:
        """Anything can be counted; the rest needs numbers."""
        return frozenset(FieldType) if self.aggregation_mode in {"count", "mode"} else NUMBERS

    def output(self, schema: Schema) -> Schema:
        """Widen counts and sums; averages have decimals."""
        fields = dict(schema)
        for key in self.keys:
            fields[key] = self._output_field(fields[key])
        return fields

    def _output_field(self, field: Field) -> Field:
        match self.aggregation_mode:
            case "count":
                return Field(FieldType.LONG)
            case "sum" if field.type in {FieldType.INT, FieldType.LONG}:
                return field.as_type(FieldType.LONG)
            case "sum" | "median" | "average":
                return field.as_type(FieldType.DOUBLE)
            case _:
                return field


class Shuffling(WindowAnonymizer):
    """Values change places with those of other records of the window."""

    name: ClassVar[str] = "shuffling"

    seed: int = Parameter(
        default=0, ge=0, le=MAX_SEED, description="Another seed shuffles otherwise. No secret."
    )
    shuffle_individually: bool = Parameter(
        default=False,
        description="Whether each field is shuffled by itself, or all of them together.",
    )


class Microaggregation(WindowAnonymizer):
    """What both kinds of microaggregation have."""

    k: int = Parameter(ge=2, le=MAX_K, description="The least number of records in a group.")
    shortfall: Literal["suppress", "drop", "hold"] = Parameter(
        default="suppress",
        description="What becomes of a window with fewer than k records: its values become "
        "null (`suppress`), its records go to the dead letters (`drop`), or they join the "
        "next window that has records (`hold`; at the end of the stream they are dropped).",
    )

    @property
    def takes(self) -> frozenset[FieldType]:
        """Groups are made by distance, which only numbers have."""
        return NUMBERS

    def output(self, schema: Schema) -> Schema:
        """Means have decimals; a window that is too small leaves null."""
        fields = dict(schema)
        for key in self.keys:
            optional = fields[key].optional or self.shortfall == "suppress"
            fields[key] = replace(fields[key], type=FieldType.DOUBLE, optional=optional)
        return fields


class UnivariateMicroaggregation(Microaggregation):
    """Values are replaced by the mean of their group, each field by itself."""

    name: ClassVar[str] = "univariate_microaggregation"


class MultivariateMicroaggregation(Microaggregation):
    """Values are replaced by the means of their group, all fields together."""

    name: ClassVar[str] = "multivariate_microaggregation"

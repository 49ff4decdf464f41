"""Differential privacy: what a window publishes of its records is noisy aggregates alone.

    epsilon        what one window may tell of one person, over all aggregates together
    contribution   how many records of a person count in a window
    budget         what all windows together may tell of a person, until the budget renews

Rules that hold here:
- Everything the noise depends on is declared: bounds, groups, aggregates. Nothing of it is
  taken from the data, which would tell something about them.
- Budgets are counted in whole units of a billionth, so that no rounding gives a window away.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field as Parameter
from pydantic import model_validator

from penstock.definitions.anonymizers import Hierarchies, StatefulAnonymizer
from penstock.errors import Problem, quote
from penstock.masks.fields import NUMBERS, Field, FieldType, Schema
from penstock.masks.mask import FieldName, Text
from penstock.model.definition import Part
from penstock.model.kinds import Stream, View
from penstock.model.kinds.fields import Milliseconds
from penstock.model.kinds.streams import FieldName as OutputName

START: Final = "window_start"
END: Final = "window_end"
UNITS: Final = 1_000_000_000
"""How many units of budget an epsilon of 1 has."""
MAX_AGGREGATES: Final = 64
MAX_GROUPS: Final = 8
MAX_VALUES: Final = 10_000
MAX_CELLS: Final = 10_000
"""How many rows a window may publish: all combinations of the groups' values."""
MAX_CONTRIBUTION: Final = 1_000_000
MAX_EPSILON: Final = 100
MAX_BUDGET: Final = 1_000_000
LEAST: Final = 1e-6
LARGEST: Final = 1e15
"""The greatest bound of a value: sums of many stay exact far beyond it."""

COARSE: Final = 1000
"""Beside private figures, records are counted in steps of this: the exact number would be the
figure without its noise."""


def coarsen(count: int) -> int:
    """Return a count as it may be told beside private figures."""
    return count // COARSE * COARSE


Bound = Annotated[float | int, Parameter(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]


class NoisyAggregate(Part):
    """One figure that is published of each group of a window."""

    name: OutputName = Parameter(description="What the figure is called in the view.")
    mode: Literal["count", "sum", "average"] = Parameter(
        description="What is made of the records that count; null is no value."
    )
    key: FieldName | None = Parameter(
        default=None, description="The field; left out for a count of records."
    )
    min: Bound | None = Parameter(
        default=None, description="Values below count as this: declared, not found in the data."
    )
    max: Bound | None = Parameter(default=None, description="Values above count as this.")

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        if self.mode == "count":
            if self.min is not None or self.max is not None:
                raise ValueError("a count has no bounds → leave min and max out")
            return self
        if self.key is None or self.min is None or self.max is None:
            raise ValueError(f"a {self.mode} needs key, min and max → give all three")
        if not self.min < self.max:
            raise ValueError(f"min {self.min} is not below max {self.max} → exchange them")
        return self

    @property
    def shares(self) -> int:
        """How many noisy figures it takes: an average is a sum and a count."""
        return 2 if self.mode == "average" else 1

    def output(self) -> Field:
        """Return the field of the figure; with too few records there is no average."""
        if self.mode == "count":
            return Field(FieldType.LONG)
        return Field(FieldType.DOUBLE, optional=self.mode == "average")


class Grouping(Part):
    """A field by whose values records are told apart, and all values that are published."""

    key: FieldName = Parameter(description="The field, a text.")
    values: tuple[Text, ...] = Parameter(
        min_length=1,
        max_length=MAX_VALUES,
        strict=False,
        description="All values, whether they occur or not; records with others do not count.",
    )

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        twice = [value for value, count in Counter(self.values).items() if count > 1]
        if twice:
            raise ValueError(f"{quote(twice[0])} is listed twice → name each value once")
        return self


class DifferentialPrivacy(StatefulAnonymizer):
    """Noisy aggregates of each window, and a budget for each person."""

    name: ClassVar[str] = "differential_privacy"
    family: ClassVar[Literal["window", "table"]] = "table"
    windowed: ClassVar[bool] = True

    aggregates: tuple[NoisyAggregate, ...] = Parameter(
        min_length=1,
        max_length=MAX_AGGREGATES,
        strict=False,
        description="What is published: {name, mode: count}, or {name, mode: sum or average, "
        "key, min, max}.",
    )
    groups: tuple[Grouping, ...] = Parameter(
        default=(),
        max_length=MAX_GROUPS,
        strict=False,
        description="The fields to group by, each with all its values: {key, values}.",
    )
    epsilon: float | int = Parameter(
        ge=LEAST,
        le=MAX_EPSILON,
        allow_inf_nan=False,
        description="How much a window may tell of one person; the aggregates share it evenly.",
    )
    contribution: int = Parameter(
        default=1,
        ge=1,
        le=MAX_CONTRIBUTION,
        description="How many records of a person count in a window: the first so many.",
    )
    budget: float | int = Parameter(
        ge=LEAST,
        le=MAX_BUDGET,
        allow_inf_nan=False,
        description="How much all windows may tell of one person; a person whose budget is "
        "spent does not count any more.",
    )
    renew: Annotated[Milliseconds, Parameter(gt=0)] | None = Parameter(
        default=None,
        description="How often budgets begin anew, such as `30d`; left out: never.",
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.budget_units < self.cost:
            raise ValueError(
                f"budget {self.budget} is below epsilon {self.epsilon}, so that nobody would "
                "ever count → make it several times epsilon"
            )
        if self.cells > MAX_CELLS:
            raise ValueError(
                f"a window would publish {self.cells} rows, more than {MAX_CELLS} → "
                "group by fewer values"
            )
        return self

    @property
    def cost(self) -> int:
        """What a window costs a person, in units of budget, rounded up."""
        return math.ceil(Fraction(str(self.epsilon)) * UNITS)

    @property
    def budget_units(self) -> int:
        """What a person may spend, rounded down."""
        return math.floor(Fraction(str(self.budget)) * UNITS)

    @property
    def shares(self) -> int:
        """Into how many parts epsilon is divided."""
        return sum(aggregate.shares for aggregate in self.aggregates)

    @property
    def cells(self) -> int:
        """How many rows a window publishes."""
        return math.prod(len(group.values) for group in self.groups)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that it looks at, each once."""
        keys = chain(
            (group.key for group in self.groups),
            (aggregate.key for aggregate in self.aggregates if aggregate.key is not None),
        )
        return tuple(dict.fromkeys(keys))

    def needs(self, schema: Schema) -> tuple[str, ...]:
        """Return what groups and figures are made of."""
        return tuple(name for name in schema if name in self.fields)

    def check(self, schema: Schema, hierarchies: Hierarchies) -> Iterator[Problem]:  # noqa: ARG002
        """Yield fields that are not there or have no such values, and names that collide."""
        text, anything = frozenset({FieldType.STRING}), frozenset(FieldType)
        for index, group in enumerate(self.groups):
            for problem in self.check_keys((group.key,), schema, "", text):
                place = f"groups[{index}].key"
                fix = "make it a text by a mask before, such as bucketizing"
                known = group.key in schema
                yield Problem(place, problem.message, fix if known else problem.fix)
        for index, aggregate in enumerate(self.aggregates):
            keys = () if aggregate.key is None else (aggregate.key,)
            takes = anything if aggregate.mode == "count" else NUMBERS
            for problem in self.check_keys(keys, schema, "", takes):
                yield Problem(f"aggregates[{index}].key", problem.message, problem.fix)
        taken = {START, END}
        named = [
            *((f"groups[{index}].key", group.key) for index, group in enumerate(self.groups)),
            *((f"aggregates[{index}].name", it.name) for index, it in enumerate(self.aggregates)),
        ]
        for place, name in named:
            if name.casefold() in taken:
                message = f"the view would have two fields named {quote(name)}"
                yield Problem(place, message, "choose another name; case does not count")
            taken.add(name.casefold())

    def check_view(self, view: View, stream: Stream) -> Iterator[Problem]:
        """Yield what the view or its stream lacks."""
        if stream.subject is None:
            message = f"the stream {quote(stream.name)} does not say whom a record is about"
            yield Problem("budget", message, f"give {quote(stream.name)} a subject")
        window = view.window
        if window is None:
            return
        if window.advance not in {None, window.size}:
            message = "windows that overlap would tell of a record more than once"
            yield Problem("epsilon", message, "leave the window's advance out")
        if self.renew is not None and self.renew % window.size:
            message = f"renew is not a multiple of the window's size, {window.size} ms"
            yield Problem("renew", message, "let a period hold whole windows")

    def output(self, schema: Schema) -> Schema:  # noqa: ARG002
        """Return the fields of a window's rows: its time, the groups, the figures."""
        times = dict.fromkeys((START, END), Field(FieldType.TIMESTAMP))
        groups = {group.key: Field(FieldType.STRING) for group in self.groups}
        return times | groups | {it.name: it.output() for it in self.aggregates}

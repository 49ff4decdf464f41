"""Anonymizers that hold records back until they are hidden among others.

k-anonymity asks for k persons with the same quasi-identifiers; l-diversity and t-closeness
ask besides that the sensitive values of such a group tell little about any of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field as Parameter
from pydantic import ValidatorFunctionWrapHandler, WrapValidator, model_validator

from penstock.definitions.anonymizers import (
    MAX_K,
    MAX_KEYS,
    Hierarchies,
    Keys,
    StatefulAnonymizer,
)
from penstock.errors import Problem, quote
from penstock.masks.fields import DATES, INTEGERS, NUMBERS, Field, FieldType, Schema, read_text
from penstock.masks.generalization import HierarchyOrName
from penstock.masks.mask import FieldName, Text
from penstock.masks.supplies import Hierarchy
from penstock.model.definition import Part
from penstock.model.kinds import Stream, View
from penstock.model.kinds.fields import Milliseconds

MAX_DELTA: Final = 10_000_000
MAX_MU: Final = 1_000_000
MAX_BETA: Final = 10_000
MAX_VALUES: Final = 100_000
SHARE: Final = 2
"""How many times k records a shard holds at least, so that groups can be formed in it."""
CATEGORIES: Final = INTEGERS | {FieldType.STRING}
"""Fields whose values can be listed one by one."""


def _check_bound(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("write a number, or a date such as 2000-01-31")
    return value


# One message, not one for each type that it could be.
Bound = Annotated[float | int | str, WrapValidator(_check_bound)] | None


class Ranged(Part):
    """A field whose values are known: a number or date within bounds, or one of a hierarchy."""

    key: FieldName = Parameter(description="The field.")
    hierarchy: HierarchyOrName | None = Parameter(
        default=None, description="The name of a hierarchy, or its tree: {value, children}."
    )
    min: Bound = Parameter(
        default=None,
        description="The least number, or the first date, such as `1900-01-01`, that the field "
        "can hold.",
    )
    max: Bound = Parameter(
        default=None, description="The greatest number, or the last date, that the field can hold."
    )
    bucket_size: float | int | None = Parameter(
        default=None,
        gt=0,
        description="How wide buckets are, counted from min; ranges are whole buckets. Left out: "
        "ranges begin and end anywhere.",
    )
    unit: Literal["days", "months", "years"] = Parameter(
        default="days", description="What bucket_size counts for dates and timestamps."
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        bounded = self.min is not None or self.max is not None
        if self.hierarchy is not None and (bounded or self.bucket_size is not None):
            raise ValueError("hierarchy stands alone → leave min, max and bucket_size out")
        if bounded and (self.min is None or self.max is None):
            raise ValueError("one bound is missing → give min and max")
        if self.min is not None and self.max is not None:
            self._check_order(self.min, self.max)
        return self

    def _check_order(self, low: float | str, high: float | str) -> None:
        if isinstance(low, str) or isinstance(high, str):
            for bound in (low, high):
                if not isinstance(bound, str) or read_text(FieldType.DATE, bound) is None:
                    raise ValueError(
                        f"{bound!r} is not a date → write both as 2000-01-31, or as numbers"
                    )
            if self.bucket_size is not None and not float(self.bucket_size).is_integer():
                raise ValueError(
                    f"bucket_size {self.bucket_size} is not whole → count whole {self.unit}"
                )
            if (
                self.bucket_size is not None
                and self.unit != "days"
                and not str(low).endswith("-01")
            ):
                raise ValueError(
                    f"buckets of {self.unit} begin on the first day of a month → "
                    f"begin with {str(low)[:-2]}01"
                )
        elif self.unit != "days":
            raise ValueError(f"unit {self.unit} is for dates → leave it out, or give dates")
        if not low < high:  # type: ignore[operator]
            raise ValueError(f"min {low} is not below max {high} → exchange them")

    def check(self, schema: Schema, hierarchies: Hierarchies, place: str) -> Iterator[Problem]:
        """Yield a field that is not there, or has no such values."""
        found = schema.get(self.key)
        if found is None:
            yield Problem(
                place, f"there is no field {quote(self.key)}", f"fields are {', '.join(schema)}"
            )
        elif self.min is not None and found.type not in NUMBERS | DATES:
            message = f"{quote(self.key)} is {found.type}, which has no range"
            yield Problem(place, message, "give a hierarchy")
        elif self.min is not None and isinstance(self.min, str) != (found.type in DATES):
            message = f"{quote(self.key)} is {found.type}, and {self.min!r} is none"
            wanted = "dates such as 2000-01-31" if found.type in DATES else "numbers"
            yield Problem(place, message, f"write min and max as {wanted}")
        elif self.min is None and found.type not in CATEGORIES:
            message = (
                f"{quote(self.key)} is {found.type}; only texts and whole numbers can be listed"
            )
            yield Problem(place, message, "give min and max, or generalize it by a mask first")
        elif isinstance(self.hierarchy, str) and self.hierarchy not in hierarchies:
            known = ", ".join(sorted(hierarchies)) or "none yet"
            message = f"there is no hierarchy {quote(self.hierarchy)}"
            yield Problem(f"{place}.hierarchy", message, f"hierarchies are {known}")
        elif self.min is None and found.type in INTEGERS:
            yield from self._check_numbers(found.type, hierarchies, place)

    def listed(self, hierarchies: Hierarchies) -> Iterable[str]:
        """Return the values that are listed one by one, as texts."""
        tree = self.hierarchy
        found = tree if isinstance(tree, Hierarchy) or tree is None else hierarchies[tree]
        return found.paths if found else ()

    def _check_numbers(
        self, kind: FieldType, hierarchies: Hierarchies, place: str
    ) -> Iterator[Problem]:
        """Yield values that no number has, or two of which are one number."""
        seen: dict[int, str] = {}
        for text in self.listed(hierarchies):
            number = read_text(kind, text)
            if number is None:
                message = f"{quote(text)} is no {kind}, as {quote(self.key)} is"
                yield Problem(place, message, f"write values as {kind}")
            elif seen.setdefault(number, text) != text:
                message = f"{quote(text)} and {quote(seen[number])} are one number"
                yield Problem(place, message, "leave one of them out")


class QuasiIdentifier(Ranged):
    """A field that is generalized."""

    nulls: Literal["share", "reject"] = Parameter(
        default="share",
        description="Of optional fields. share: null is a value that a group can have, or is "
        "generalized with others. reject: the record becomes a dead letter.",
    )

    def shares_null(self, schema: Schema) -> bool:
        """Whether null is a value of the field."""
        return schema[self.key].optional and self.nulls == "share"

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        if self.hierarchy is None and self.min is None:
            raise ValueError("give hierarchy, or min and max → a range needs its bounds")
        return self


class Sensitive(Ranged):
    """A field whose values must be mixed in every group; it is published as it is."""

    values: Annotated[tuple[Text, ...], Parameter(strict=False)] = Parameter(
        default=(),
        max_length=MAX_VALUES,
        description="All values of the field, where they form no hierarchy.",
    )

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        forms = [bool(self.values), self.hierarchy is not None, self.bucket_size is not None]
        if sum(forms) != 1 or (self.bucket_size is not None) != (self.min is not None):
            raise ValueError(
                "give values, or hierarchy, or min, max and bucket_size → exactly one of these"
            )
        if len(set(self.values)) != len(self.values):
            raise ValueError("a value is listed twice → name each once")
        return self

    def listed(self, hierarchies: Hierarchies) -> Iterable[str]:
        """Return the values, or those of the hierarchy."""
        return self.values or super().listed(hierarchies)


class KAnonymization(StatefulAnonymizer):
    """Records are held until k persons share their quasi-identifiers."""

    name: ClassVar[str] = "k_anonymization"
    family: ClassVar[Literal["window", "table"]] = "table"

    keys: Keys = Parameter(default=(), description="The identifiers, which become `*` or null.")
    quasi_identifiers: tuple[QuasiIdentifier, ...] = Parameter(
        min_length=1,
        max_length=MAX_KEYS,
        strict=False,
        description="The fields to generalize: {key, min, max} for numbers and dates, "
        "{key, hierarchy} for texts and whole numbers.",
    )
    k: int = Parameter(ge=2, le=MAX_K, description="The least number of persons in a group.")
    delta: int = Parameter(
        default=10_000, ge=2, le=MAX_DELTA, description="How many records are held at most."
    )
    mu: int = Parameter(
        default=100, ge=1, le=MAX_MU, description="How many groups the mean loss is taken of."
    )
    beta: int = Parameter(
        default=50,
        ge=1,
        le=MAX_BETA,
        description="How many published groups others may join; how many clusters `castle` has.",
    )
    max_wait: Annotated[Milliseconds, Parameter(gt=0)] | None = Parameter(
        default=None,
        description="How long a record is held at most, by the clock where views run; in "
        "milliseconds, or such as `10m`. Left out: until delta records are there.",
    )
    outliers: Literal["suppress", "root"] = Parameter(
        default="suppress",
        description="What becomes of records without a group. suppress: a dead letter. root: "
        "published with everything generalized, once a whole group is.",
    )
    algorithm: Literal["partition", "castle"] = Parameter(
        default="partition",
        description="partition: cuts all records that are held. castle: grows clusters as "
        "published; loses more.",
    )

    def check(self, schema: Schema, hierarchies: Hierarchies) -> Iterator[Problem]:
        """Yield fields that are not there or have no such domain."""
        yield from self.check_keys(self.keys, schema, "keys", frozenset(FieldType))
        if self.delta < self.k:
            message = f"delta {self.delta} is less than k {self.k}, so that no group is ever full"
            yield Problem("delta", message, "make it several times k")
        if self.outliers == "root" and not self.may_join:
            message = f"under the root, one more record could break what {self.name} promises"
            yield Problem("outliers", message, "leave it out")
        names = [quasi.key for quasi in self.quasi_identifiers]
        for index, quasi in enumerate(self.quasi_identifiers):
            place = f"quasi_identifiers[{index}]"
            if quasi.key in self.keys or quasi.key in names[:index]:
                yield Problem(place, f"{quote(quasi.key)} is listed twice", "name it once")
            else:
                yield from quasi.check(schema, hierarchies, place)

    def check_view(self, view: View, stream: Stream) -> Iterator[Problem]:  # noqa: ARG002
        """Yield more shards than delta has records for."""
        if view.shards is not None and view.shards > self.most_shards:
            message = f"delta {self.delta} is too small to be shared by {view.shards} shards"
            fix = f"make it at least {SHARE * self.k * view.shards}, or use {self.most_shards}"
            yield Problem("delta", message, fix)

    @property
    def most_shards(self) -> int:
        """How many shards share delta such that each can still form groups."""
        return max(1, self.delta // (SHARE * self.k))

    @property
    def may_join(self) -> bool:
        """Whether a published group keeps its promise, whoever joins it."""
        return True

    def needs(self, schema: Schema) -> tuple[str, ...]:
        """Leave identifiers out: they are never published."""
        return tuple(name for name in schema if name not in self.keys)

    def output(self, schema: Schema) -> Schema:
        """Generalized fields are texts; identifiers become `*`, or null where they are not text."""
        fields = dict(schema)
        for key in self.keys:
            text = fields[key].type is FieldType.STRING
            fields[key] = replace(fields[key], optional=not text)
        for quasi in self.quasi_identifiers:
            fields[quasi.key] = Field(FieldType.STRING, optional=quasi.shares_null(schema))
        return fields


class Diverse(KAnonymization):
    """What l-diversity and t-closeness have besides."""

    sensitive: tuple[Sensitive, ...] = Parameter(
        min_length=1,
        max_length=MAX_KEYS,
        strict=False,
        description="The fields to mix: {key, values}, {key, hierarchy} or "
        "{key, min, max, bucket_size}.",
    )

    def check(self, schema: Schema, hierarchies: Hierarchies) -> Iterator[Problem]:
        """Yield what is wrong with the fields."""
        yield from super().check(schema, hierarchies)
        if self.algorithm != "partition":
            message = f"{self.algorithm} counts persons, and knows nothing of {self.name}"
            yield Problem("algorithm", message, "leave it out")
        taken = {*self.keys, *(quasi.key for quasi in self.quasi_identifiers)}
        for index, field in enumerate(self.sensitive):
            place = f"sensitive[{index}]"
            if field.key in taken:
                message = f"{quote(field.key)} is changed, so that nothing is left to mix"
                yield Problem(place, message, "name it once")
            else:
                yield from field.check(schema, hierarchies, place)


class LDiversity(Diverse):
    """Groups of k persons with l well-represented sensitive values."""

    name: ClassVar[str] = "l_diversity"

    least: int = Parameter(
        alias="l", ge=2, le=MAX_K, description="How many values are well represented."
    )
    method: Literal["distinct", "entropy", "recursive"] = Parameter(
        default="distinct",
        description="distinct: l values occur. entropy: their entropy is at least log l. "
        "recursive: the most frequent is outweighed c times by the rare ones.",
    )
    c: float | int | None = Parameter(default=None, gt=0, description="For recursive diversity.")

    @model_validator(mode="after")
    def _check_c(self) -> Self:
        if (self.method == "recursive") != (self.c is not None):
            raise ValueError("c and method: recursive go together → give both, or none")
        return self

    @property
    def may_join(self) -> bool:
        """Distinct values stay distinct; what is frequent can become too frequent."""
        return self.method == "distinct"


class TCloseness(Diverse):
    """Groups of k persons whose sensitive values are distributed like those of all."""

    name: ClassVar[str] = "t_closeness"

    t: float | int = Parameter(gt=0, le=1, description="The greatest distance, from 0 to 1.")
    distance: Literal["equal", "ordered", "hierarchical"] = Parameter(
        default="equal",
        description="What moving a share costs: the same between all values, by their "
        "distance in order, or by the hierarchy.",
    )

    @property
    def may_join(self) -> bool:
        """Whoever joins moves the distribution."""
        return False

    def check(self, schema: Schema, hierarchies: Hierarchies) -> Iterator[Problem]:
        """Yield fields that have no such distance."""
        yield from super().check(schema, hierarchies)
        for index, field in enumerate(self.sensitive):
            if self.distance == "hierarchical" and field.hierarchy is None:
                message = f"{quote(field.key)} has no hierarchy"
                yield Problem(f"sensitive[{index}]", message, "give one, or another distance")

"""What every mask is: parameters, the field it makes of a field, and what it does to a row.

    parameters (data) → Mask ┬→ check(schema)      problems, before anything runs
                             ├→ output(field)      the field in the view's schema
                             ├→ compile(…)         steps over one record, in Python
                             └→ penstock.masks.spark: columns over a frame

Rules that hold here:
- A step changes a row in place and returns None, or returns why the record is rejected.
- Null stays null, unless the mask says otherwise. A value that a mask cannot take makes
  the record rejected; the reason names the mask and the field, never the value.
- Chance is drawn from a keyed hash of the record's identity, so that a replay draws the
  same again and nothing is learnt by asking twice.
- A constant in a parameter is text, a finite number, true or false, and fits the type of
  the field that it stands in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from pydantic import AfterValidator, BeforeValidator
from pydantic import Field as Parameter

from penstock.errors import Problem, quote
from penstock.lang.scalars import is_text
from penstock.masks.fields import CHECKS, INTEGERS, Field, FieldType, Schema, read_text
from penstock.masks.supplies import Hierarchy, Keys, Supplies
from penstock.model.definition import Part

MAX_KEYS: Final = 256
MAX_NAME: Final = 256
MAX_TEXT: Final = 4096

Row: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[[Row, str], str | None]
"""Changes a row of a record with this identity; returns the reason of a rejection."""
Transform: TypeAlias = Callable[[Any, str], Any]
"""Makes a value of a value and the record's identity; None where it cannot."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The outcome for a record that must not pass, with the reason; it holds no value."""

    reason: str


@dataclass(frozen=True, slots=True)
class Target:
    """One key of a mask: its name and field, a label that tells repeated masks apart."""

    name: str
    field: Field
    label: str
    supplies: Supplies

    @property
    def keys(self) -> Keys:
        """The keys of the view."""
        return self.supplies.require_keys()


@dataclass(frozen=True, slots=True)
class Stage:
    """The place of a mask in a chain: the schema it meets, and what it may use."""

    schema: Schema
    labels: Mapping[str, str]
    supplies: Supplies

    def target(self, name: str) -> Target:
        """Return one key as the mask meets it."""
        return Target(name, self.schema[name], self.labels[name], self.supplies)


def check_text(text: str) -> str:
    """Refuse a str without a UTF-8 form: Spark could not hold it."""
    if not is_text(text):
        raise ValueError("it holds half of a surrogate pair, which is not text")
    return text


Text = Annotated[str, Parameter(max_length=MAX_TEXT), AfterValidator(check_text)]
FieldName = Annotated[str, Parameter(min_length=1, max_length=MAX_NAME), AfterValidator(check_text)]


def _check_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"{quote(twice[0])} is listed twice → name each field once")
    return keys


class Mask(Part):
    """The parameters of a mask, and what follows from them."""

    name: ClassVar[str]
    accepts: ClassVar[frozenset[FieldType]]
    """The types of fields that the mask takes."""
    refusal: ClassVar[str] = ""
    """Why a value that is not null has no result; empty where each has one."""

    keys: Annotated[
        tuple[FieldName, ...],
        Parameter(min_length=1, max_length=MAX_KEYS),
        AfterValidator(_check_keys),
    ] = Parameter(strict=False, description="The fields to mask.")

    @property
    def needs_identity(self) -> bool:
        """Whether it draws chance, and so needs to know which record it has at hand."""
        return False

    @property
    def needs_keys(self) -> bool:
        """Whether it hashes or encrypts."""
        return False

    @property
    def needs_vault(self) -> bool:
        """Whether it keeps what it replaces."""
        return False

    def check(self, schema: Schema, hierarchies: Mapping[str, Hierarchy]) -> Iterator[Problem]:
        """Yield what is wrong with the parameters for a schema; places are within the mask."""
        for index, key in enumerate(self.keys):
            place = f"keys[{index}]"
            found = schema.get(key)
            if found is None:
                fix = f"fields are {', '.join(schema)}" if schema else None
                yield Problem(place, f"there is no field {quote(key)}", fix)
            elif found.type not in self.accepts:
                takes = ", ".join(sorted(self.accepts))
                message = f"{self.name} does not take {quote(key)}, which is {found.type}"
                yield Problem(place, message, f"it takes {takes}")
            else:
                yield from self.check_field(key, found, hierarchies)

    def check_field(
        self,
        name: str,  # noqa: ARG002 - for those that have more to check
        found: Field,  # noqa: ARG002
        hierarchies: Mapping[str, Hierarchy],  # noqa: ARG002
    ) -> Iterator[Problem]:
        """Yield what is wrong with the parameters for a field of a type that is taken."""
        return iter(())

    def output(self, found: Field) -> Field:
        """Return the field that the view's schema declares in place of this one."""
        raise NotImplementedError

    def transform(self, target: Target) -> Transform:
        """Return the function over values of one key."""
        raise NotImplementedError

    def compile(self, stage: Stage) -> list[Step]:
        """Return the steps over a row, one for each key."""
        return [
            _make_step(key, self.transform(stage.target(key)), self.reason(key))
            for key in self.keys
        ]

    def reason(self, name: str) -> str:
        """Return the reason for a record whose value this mask cannot take."""
        return f"{self.name} of {quote(name)}: {self.refusal}"


def _make_step(name: str, transform: Transform, reason: str) -> Step:
    def step(row: Row, identity: str) -> str | None:
        value = row[name]
        if value is None:
            return None
        value = transform(value, identity)
        if value is None:
            return reason
        row[name] = value
        return None

    return step


MAX_CONSTANTS: Final = 10_000


def check_constant(value: object) -> object:
    """Refuse what is no constant: lists, maps, null, numbers without end."""
    match value:
        case bool() | int():
            return value
        case float():
            if math.isfinite(value):
                return value
            raise ValueError("write a finite number")
        case str():
            if len(value) > MAX_TEXT:
                raise ValueError(f"it has more than {MAX_TEXT} characters")
            return check_text(value)
        case _:
            raise ValueError("write text, a number, true or false")


def _check_number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("write a number")
    return value


Constant = Annotated[Any, AfterValidator(check_constant)]
"""Text, a number, true or false."""

Number = Annotated[int | float, BeforeValidator(_check_number)]
"""A finite number, whole or not; each problem with it is told once."""

Substitutes = Annotated[
    tuple[Constant, ...], Parameter(min_length=1, max_length=MAX_CONSTANTS, strict=False)
]


def fit(constants: Sequence[object], found: Field) -> list[Any]:
    """Return constants as values of a field's type; None for each that is none."""
    return [_fit(constant, found.type) for constant in constants]


def _fit(constant: object, kind: FieldType) -> Any:
    if kind is FieldType.DATE and isinstance(constant, str):
        return read_text(kind, constant)
    if kind in INTEGERS and isinstance(constant, float):
        return None
    return CHECKS[kind](constant)


def check_fit(
    place: str, constants: Sequence[object], name: str, found: Field, fix: str
) -> Iterator[Problem]:
    """Yield a problem for each constant that cannot stand in a field."""
    for index, value in enumerate(fit(constants, found)):
        if value is None:
            message = f"{quote(constants[index])} is no {found.type}, as {quote(name)} is"
            yield Problem(f"{place}[{index}]", message, fix)

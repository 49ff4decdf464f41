"""Suppression, blurring, generalization, buckets: a value is hidden, in part, or less exact.

Rules that hold here:
- Suppressed text becomes `*`, everything else null. Null in a text becomes `*` too: whether there
  was a value is hidden as well.
- Blurring replaces part of a text by Xs, as in `XXXXXXXXXXXXX313`. What is left is shown as it
  was, so that it hides little from who knows the rest. Of a number its notation is blurred, with
  the sign.
- Generalization replaces a value by what it is an instance of (Berlin → Germany). One that the map
  or hierarchy does not know becomes the declared default, or the record is rejected; it never
  passes as it is. Numbers match as numbers: the key "07" of a map is the int 7.
- With `beginning`, the first characters of the value's notation are looked up as a text; the
  notation of a number has no leading zeros.
- Bucketizing replaces a number or date by the range that it falls into, as in `[20 - 30]`. Ranges
  are half-open: 30 lies in `[30 - 40]`, whatever the sign and the origin. A size or origin with
  decimals is taken as it is written: labels are exact decimals, never rounding noise.
- A number that is not finite, or so large that its bounds cannot be written exactly, has no
  bucket: the record is rejected. Dates run from the year 1 to 9999. Timestamps fall into the
  ranges of their day in UTC.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Tag, model_validator
from pydantic import Field as Parameter
from typing_extensions import override

from penstock.errors import Problem, quote
from penstock.masks.fields import (
    DATES,
    DISCRETE,
    INTEGERS,
    MAX_EXACT,
    NUMBERS,
    TEXTS,
    Field,
    FieldType,
    read_text,
    to_single,
)
from penstock.masks.mask import FieldName, Mask, Number, Row, Stage, Step, Target, Text, Transform
from penstock.masks.supplies import MAX_DEPTH, Hierarchy

SYMBOL: Final = "*"


class Suppression(Mask):
    """Replaces values by `*`, or by null where the field is not text."""

    name: ClassVar[str] = "suppression"
    accepts: ClassVar[frozenset[FieldType]] = frozenset(FieldType)

    as_: Literal["text"] | None = Parameter(
        default=None,
        alias="as",
        description="`text`: fields of every type become text, and hold `*`. "
        "Otherwise numbers, dates and the like become null.",
    )

    def output(self, found: Field) -> Field:
        """Text stays text; other types become optional, or text where that is declared."""
        if found.type is FieldType.STRING or self.as_:
            return Field(FieldType.STRING)
        return replace(found, optional=True)

    def compile(self, stage: Stage) -> list[Step]:
        """Return the steps: each sets a constant, also in place of null."""
        return [_set(key, self.replacement(stage.schema[key])) for key in self.keys]

    def replacement(self, found: Field) -> str | None:
        """Return what stands in place of every value of a field."""
        return SYMBOL if self.output(found).type is FieldType.STRING else None


def _set(name: str, constant: str | None) -> Step:
    def step(row: Row, _: str) -> None:
        row[name] = constant

    return step


BLUR_SYMBOL: Final = "X"


class Blurring(Mask):
    """Replaces characters of a text by X."""

    name: ClassVar[str] = "blurring"
    accepts: ClassVar[frozenset[FieldType]] = INTEGERS | {FieldType.STRING}

    n_fields: int | None = Parameter(
        default=None,
        gt=0,
        le=65_536,
        description="How many characters to blur; all where it is left out.",
    )
    keep_length: bool = Parameter(
        default=True,
        description="Whether each blurred character becomes an X; "
        "otherwise one X stands for all of them.",
    )
    from_: Literal["start", "end"] = Parameter(
        default="start", alias="from", description="The end of the text where blurring begins."
    )

    def output(self, found: Field) -> Field:
        """Return a text, whatever the field was."""
        return found.as_type(FieldType.STRING)

    def transform(self, target: Target) -> Transform:
        """Return the function over texts or whole numbers."""
        write = TEXTS[target.field.type]
        limit, at_start = self.n_fields, self.from_ == "start"
        fixed = None if self.keep_length else BLUR_SYMBOL

        def blur(value: object, _: str) -> str:
            text = write(value)
            count = len(text) if limit is None else min(limit, len(text))
            hidden = fixed or BLUR_SYMBOL * count
            return hidden + text[count:] if at_start else text[: len(text) - count] + hidden

        return blur


MAX_ENTRIES: Final = 100_000
MAX_BEGINNING: Final = 4096


def _tell_form(value: object) -> str | None:
    match value:
        case str():
            return "(name)"
        case Hierarchy() | Mapping():
            return "(tree)"
        case _:
            return None


HierarchyOrName = Annotated[
    Annotated[FieldName, Tag("(name)")] | Annotated[Hierarchy, Tag("(tree)")],
    Discriminator(
        _tell_form,
        custom_error_type="hierarchy",
        custom_error_message="name a hierarchy, or write its tree: {value, children}",
    ),
]


class Generalization(Mask):
    """Replaces values by more general ones."""

    name: ClassVar[str] = "generalization"
    accepts: ClassVar[frozenset[FieldType]] = DISCRETE - {FieldType.TIMESTAMP}
    refusal: ClassVar[str] = "the value is not in the map or hierarchy, and there is no default"

    generalization_map: Mapping[Text, Text] | None = Parameter(
        default=None,
        min_length=1,
        max_length=MAX_ENTRIES,
        description="The general value for each value.",
    )
    hierarchy: HierarchyOrName | None = Parameter(
        default=None, description="The name of a hierarchy, or its tree: {value, children}."
    )
    level: int | None = Parameter(
        default=None, gt=0, le=MAX_DEPTH, description="How many steps to go up in the hierarchy."
    )
    beginning: int | None = Parameter(
        default=None,
        gt=0,
        le=MAX_BEGINNING,
        description="How many characters of a value the map knows it by, such as the first "
        "digit of a postcode; left out: all.",
    )
    default: Text | None = Parameter(
        default=None, description="What unknown values become; left out: the record is rejected."
    )

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        if (self.generalization_map is None) == (self.hierarchy is None):
            raise ValueError(
                "give generalization_map, or hierarchy and level → exactly one of both"
            )
        if (self.hierarchy is None) != (self.level is None):
            raise ValueError("hierarchy and level go together → give both")
        if self.beginning is not None:
            if self.generalization_map is None:
                raise ValueError("beginning is for generalization_map → leave it out")
            for text in self.generalization_map:
                if len(text) > self.beginning:
                    raise ValueError(
                        f"{quote(text)} has more than {self.beginning} characters, so that no "
                        "value is found by it → shorten it, or make beginning greater"
                    )
        return self

    def check_field(
        self, name: str, found: Field, hierarchies: Mapping[str, Hierarchy]
    ) -> Iterator[Problem]:
        """Yield an unknown hierarchy, and values that are none of the field's type."""
        if isinstance(self.hierarchy, str) and self.hierarchy not in hierarchies:
            known = ", ".join(sorted(hierarchies)) or "none yet"
            message = f"there is no hierarchy {quote(self.hierarchy)}"
            yield Problem("hierarchy", message, f"hierarchies are {known}")
            return
        place = "hierarchy" if self.hierarchy else "generalization_map"
        seen: dict[Any, str] = {}
        kind = FieldType.STRING if self.beginning is not None else found.type
        for text, general in self.pairs(hierarchies).items():
            value = read_text(kind, text)
            if value is None:
                message = f"{quote(text)} is no {found.type}, as {quote(name)} is"
                yield Problem(place, message, f"write values as {found.type}")
            elif seen.setdefault(value, general) != general:
                message = f"{quote(text)} is there twice, with different general values"
                yield Problem(place, message, "leave one of them out")

    def pairs(self, hierarchies: Mapping[str, Hierarchy]) -> Mapping[str, str]:
        """Return the general value for each value, as texts."""
        if self.generalization_map is not None:
            return self.generalization_map
        chosen = self.hierarchy
        tree = chosen if isinstance(chosen, Hierarchy) else hierarchies[str(chosen)]
        return tree.at_level(self.level or 1)

    def table(self, target: Target) -> dict[str, str]:
        """Return the general value for the notation of each value, or for how it begins."""
        pairs = self.pairs(target.supplies.hierarchies)
        if self.beginning is not None:
            return dict(pairs)
        kind, write = target.field.type, TEXTS[target.field.type]
        return {write(read_text(kind, text)): general for text, general in pairs.items()}

    def output(self, found: Field) -> Field:
        """Return a text, whatever the field was."""
        return found.as_type(FieldType.STRING)

    def transform(self, target: Target) -> Transform:
        """Return the look-up."""
        table, default, end = self.table(target), self.default, self.beginning
        write = TEXTS[target.field.type]
        return lambda value, _: table.get(write(value)[:end], default)


MAX_PLACES: Final = 6
MAX_SIZE: Final = 10**12
MIN_LABEL: Final = -(2**63)
MAX_LABEL: Final = 2**63 - 1
DEFAULT_DATE: Final = date(1900, 1, 1)  # a Monday, and the beginning of a century
MONTHS: Final = 12
FIRST_MONTH: Final = MONTHS
LAST_MONTH: Final = 10_000 * MONTHS - 1


def _places(value: float) -> int:
    exponent = Decimal(repr(value)).normalize().as_tuple().exponent
    return max(0, -int(exponent))


def _check_places(value: float) -> float:
    if _places(value) > MAX_PLACES:
        raise ValueError(f"write at most {MAX_PLACES} decimals")
    if abs(value) > MAX_SIZE:
        raise ValueError(f"write at most {MAX_SIZE}")
    return value


def _check_positive(value: float) -> float:
    if value <= 0:
        raise ValueError("write a number greater than 0")
    return value


def _check_origin(value: object) -> object:
    match value:
        case bool():
            pass
        case int() | float() if math.isfinite(value):
            return _check_places(value)
        case str() if read_text(FieldType.DATE, value) is not None:
            return value
    raise ValueError("write a number, or a date such as 2000-01-31")


@dataclass(frozen=True, slots=True)
class Grid:
    """Where buckets begin and how wide they are, as whole multiples of 10 to the -places."""

    size: int
    origin: int
    places: int

    @property
    def scale(self) -> float:
        """How many units of the grid make 1; exact, as places are few."""
        return float(10**self.places)


class Bucketizing(Mask):
    """Replaces numbers and dates by ranges."""

    name: ClassVar[str] = "bucketizing"
    accepts: ClassVar[frozenset[FieldType]] = NUMBERS | DATES
    refusal: ClassVar[str] = "the value is not finite, or too far out for a bucket"

    bucket_size: Annotated[
        Number, AfterValidator(_check_positive), AfterValidator(_check_places)
    ] = Parameter(description="How wide each range is.")
    origin: Annotated[int | float | str | None, BeforeValidator(_check_origin)] = Parameter(
        default=None,
        description="Where one of the ranges begins: a number (0 where left out), "
        "or a date (1900-01-01, a Monday).",
    )
    unit: Literal["days", "months", "years"] = Parameter(
        default="days", description="What bucket_size counts for dates and timestamps."
    )

    @model_validator(mode="after")
    def _check_whole_dates(self) -> Self:
        if isinstance(self.origin, str) and self.unit != "days" and not self.origin.endswith("01"):
            raise ValueError("ranges of months and years begin on the first day of a month")
        return self

    @override
    def check_field(
        self, name: str, found: Field, hierarchies: Mapping[str, Hierarchy]
    ) -> Iterator[Problem]:
        """Yield sizes and origins that do not fit the field's type."""
        dated = found.type in DATES
        if found.type not in {FieldType.FLOAT, FieldType.DOUBLE} and _places(self.bucket_size):
            message = f"{quote(name)} is {found.type} and needs a whole number"
            yield Problem("bucket_size", message, "write it without decimals")
        if isinstance(self.origin, str) != dated and self.origin is not None:
            message = f"{quote(self.origin)} does not fit {quote(name)}, which is {found.type}"
            wanted = "a date such as 2000-01-31" if dated else "a number"
            yield Problem("origin", message, f"write {wanted}")
        elif not dated and found.type in INTEGERS and _places(self._number()):
            message = f"{quote(name)} is {found.type} and needs a whole number"
            yield Problem("origin", message, "write it without decimals")
        if not dated and self.unit != "days":
            message = f"{quote(name)} is {found.type} and has no unit"
            yield Problem("unit", message, "leave it out")

    def output(self, found: Field) -> Field:
        """Return a text, whatever the field was."""
        return found.as_type(FieldType.STRING)

    def _number(self) -> float:
        return 0 if self.origin is None or isinstance(self.origin, str) else self.origin

    def grid(self, found: Field) -> Grid:
        """Return the ranges for a field; those of dates count days or months."""
        if found.type in DATES:
            first = DEFAULT_DATE
            if isinstance(self.origin, str):
                first = date.fromisoformat(self.origin)
            size = int(self.bucket_size)
            if self.unit == "days":
                return Grid(size, first.toordinal(), 0)
            return Grid(size * (MONTHS if self.unit == "years" else 1), _month(first), 0)
        origin = self._number()
        places = max(_places(self.bucket_size), _places(origin))
        scale = Decimal(10) ** places
        exact = [int(Decimal(repr(value)) * scale) for value in (self.bucket_size, origin)]
        return Grid(exact[0], exact[1], places)

    def transform(self, target: Target) -> Transform:
        """Return the function from values to labels."""
        found, grid = target.field, self.grid(target.field)
        if found.type in INTEGERS:
            return lambda value, _: _label_integer(value, grid)
        if found.type in DATES:
            name_range = _label_days if self.unit == "days" else _label_months
            if found.type is FieldType.DATE:
                return lambda value, _: name_range(value, grid)
            return lambda value, _: name_range(value.date(), grid)
        narrow = to_single if found.type is FieldType.FLOAT else float
        return lambda value, _: _label_decimal(value, grid, narrow)


def _bounds(value: int, grid: Grid) -> tuple[int, int]:
    low = value - (value - grid.origin) % grid.size
    return low, low + grid.size


def _label_integer(value: int, grid: Grid) -> str | None:
    low, high = _bounds(value, grid)
    return f"[{low} - {high}]" if low >= MIN_LABEL and high <= MAX_LABEL else None


def _label_decimal(value: float, grid: Grid, narrow: Callable[[float], float]) -> str | None:
    scale = grid.scale
    scaled = value * scale
    if not -MAX_EXACT < scaled < MAX_EXACT:  # also for NaN
        return None
    units = math.floor(scaled)
    # The product may be rounded across a bound; the bounds themselves decide.
    if narrow((units + 1) / scale) <= value:
        units += 1
    elif narrow(units / scale) > value:
        units -= 1
    low, high = _bounds(units, grid)
    return f"[{_write(low, grid.places)} - {_write(high, grid.places)}]"


def _write(units: int, places: int) -> str:
    if not places:
        return str(units)
    whole, part = divmod(abs(units), 10**places)
    return f"{'-' if units < 0 else ''}{whole}.{part:0{places}}"


def _label_days(value: date, grid: Grid) -> str | None:
    low, high = _bounds(value.toordinal(), grid)
    if low < date.min.toordinal() or high > date.max.toordinal():
        return None
    return f"[{date.fromordinal(low)} - {date.fromordinal(high)}]"


def _month(value: date) -> int:
    return value.year * MONTHS + value.month - 1


def _label_months(value: date, grid: Grid) -> str | None:
    low, high = _bounds(_month(value), grid)
    if low < FIRST_MONTH or high > LAST_MONTH:
        return None
    return f"[{_write_month(low)} - {_write_month(high)}]"


def _write_month(month: int) -> str:
    return f"{month // MONTHS:04}-{month % MONTHS + 1:02}-01"

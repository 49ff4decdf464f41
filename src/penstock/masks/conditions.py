r"""Conditions of conditional substitution, turned into expressions of `penstock.lang`.

    {match_value: Manager}          r["rank"] == "Manager"
    {match_range: [0, 18]}          r["age"] >= 0 && r["age"] <= 18
    {match_regex: "@example\.com"}  r["email"].matches("@example\\.com")

Rules that hold here:
- One language for all conditions: what a condition means on null, on NaN and in Spark is
  what it means there. A condition that has no answer counts as met: what cannot be
  decided must not be shown.
- A range includes both its ends, as the notation [0, 18] says; null leaves an end open.
- A regular expression is looked for anywhere in the text, in linear time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, model_validator
from pydantic import Field as Parameter

from penstock.errors import Problem, quote
from penstock.lang.scalars import RegexError, compile_regex
from penstock.lang.types import BOOL, DOUBLE, INT, STRING, TIMESTAMP, RecordType, Scope, Type
from penstock.masks.fields import DECIMALS, INTEGERS, Field, FieldType, Schema, read_constant
from penstock.masks.mask import check_constant
from penstock.model.definition import Part

ROOT: Final = "r"
MAX_MATCHES: Final = 200
FORMS: Final = frozenset({"match_value", "match_range", "match_regex"})
_TYPES: Final[Mapping[FieldType, Type]] = {
    FieldType.STRING: STRING,
    FieldType.INT: INT,
    FieldType.LONG: INT,
    FieldType.FLOAT: DOUBLE,
    FieldType.DOUBLE: DOUBLE,
    FieldType.BOOLEAN: BOOL,
    FieldType.DATE: TIMESTAMP,
    FieldType.TIMESTAMP: TIMESTAMP,
}


def make_scope(schema: Schema) -> Scope:
    """Return the scope of expressions over one record, whose root is `r`.

    A date is the moment at which it begins in UTC.
    """
    fields = tuple((name, _TYPES[found.type]) for name, found in schema.items())
    return Scope(((ROOT, RecordType(fields)),))


def _check_pattern(text: str) -> str:
    try:
        compile_regex(text)
    except RegexError as error:
        raise ValueError(f"it is no regular expression of RE2: {error}") from None
    return text


def _check_range(ends: tuple[Any, ...]) -> tuple[Any, ...]:
    for end in ends:
        if end is not None and not isinstance(end, int | float | str):
            raise ValueError("write numbers, dates, or null for an open end")
    if ends == (None, None):
        raise ValueError("a range has at least one end")
    return ends


def _list_values(value: Any) -> Any:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not 0 < len(values) <= MAX_MATCHES:
        raise ValueError(f"write 1 to {MAX_MATCHES} values")
    return tuple(map(check_constant, values))


class Condition(Part):
    """A condition on one field: exactly one of three forms."""

    match_value: Annotated[Any, AfterValidator(_list_values)] = Parameter(
        default=None, description="The value, or a list of such values."
    )
    match_range: Annotated[tuple[Any, Any], AfterValidator(_check_range)] | None = Parameter(
        default=None,
        strict=False,
        description="The least and the largest value.",
    )
    match_regex: Annotated[str, AfterValidator(_check_pattern)] | None = Parameter(
        default=None, description="A regular expression (RE2)."
    )

    @model_validator(mode="after")
    def _check_forms(self) -> Self:
        forms = (self.match_value, self.match_range, self.match_regex)
        if sum(form is not None for form in forms) != 1:
            raise ValueError("write exactly one of match_value, match_range and match_regex")
        return self

    def check(self, place: str, name: str, found: Field) -> Iterator[Problem]:
        """Yield what does not fit the type of the field."""
        kind = found.type
        if self.match_regex is not None:
            if kind is not FieldType.STRING:
                message = f"{quote(name)} is {kind}, and a regular expression needs text"
                yield Problem(f"{place}.match_regex", message, "use match_value or match_range")
        elif self.match_range is not None:
            if kind in {FieldType.STRING, FieldType.BOOLEAN, FieldType.TIMESTAMP}:
                message = f"{quote(name)} is {kind}, which has no ranges"
                yield Problem(f"{place}.match_range", message, "use match_value or an expression")
            elif None in [_end(end, kind) for end in self.match_range if end is not None]:
                message = f"an end of the range is no {kind}, as {quote(name)} is"
                yield Problem(f"{place}.match_range", message, f"write both ends as {kind}")
        elif kind is FieldType.TIMESTAMP:
            message = f"{quote(name)} is {kind}, which is never matched exactly"
            yield Problem(f"{place}.match_value", message, "use an expression")
        elif None in [read_constant(kind, value) for value in self.match_value]:
            message = f"a value is no {kind}, as {quote(name)} is"
            yield Problem(f"{place}.match_value", message, f"write it as {kind}")

    def expression(self, name: str, found: Field) -> str:
        """Return the condition as an expression."""
        field = f"{ROOT}[{_literal(name)}]"
        if self.match_regex is not None:
            return f"{field}.matches({_literal(self.match_regex)})"
        if self.match_range is None:
            values = [_literal(read_constant(found.type, value)) for value in self.match_value]
            return f"{field} == {values[0]}" if len(values) == 1 else f"{field} in {_list(values)}"
        low, high = self.match_range
        parts = []
        if low is not None:
            parts.append(f"{field} >= {_literal(_end(low, found.type, math.ceil))}")
        if high is not None:
            parts.append(f"{field} <= {_literal(_end(high, found.type, math.floor))}")
        return " && ".join(parts)


def _end(end: Any, kind: FieldType, whole: Any = math.floor) -> Any:
    """Return the end of a range as a value; of a whole number, the last one within."""
    if kind in INTEGERS and isinstance(end, float) and math.isfinite(end):
        end = whole(end)
    value = read_constant(kind, end)
    return None if kind in DECIMALS and value is not None and not math.isfinite(value) else value


def _list(values: list[str]) -> str:
    return f"[{', '.join(values)}]"


def _literal(value: Any) -> str:
    """Return a value as it is written in an expression."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case date():
            return f'timestamp("{value.isoformat()}T00:00:00Z")'
        case _:
            text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            return f'"{text}"'

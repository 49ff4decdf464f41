"""What operators, functions and methods there are: name, operand types, result.

Rules that hold here:
- One table for the checker, the documentation and the three forms; a test holds that
  every form knows every operation.
- Where several overloads fit, the first one counts. An int argument fits a double
  parameter (it is converted exactly, or missing); nothing else is converted unasked.
- An operation is missing where an argument is missing or its result is out of range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.lang.types import (
    BOOL,
    DOUBLE,
    DURATION,
    INT,
    SCALARS,
    STRING,
    TIMESTAMP,
    ListOf,
    MapOf,
    Scalar,
    Type,
)

# Stand for every list and every map as a parameter.
ANY_LIST: Final = Scalar("list")
ANY_MAP: Final = Scalar("map")

# The operation that gives its argument back: a conversion to the type at hand.
SAME: Final = "same"


@dataclass(frozen=True, slots=True)
class Overload:
    """One way to apply an operator, function or method; a method's target comes first."""

    parameters: tuple[Type, ...]
    result: Type
    operation: str
    swapped: bool = False  # the operation takes its two arguments the other way round


def fits(argument: Type, parameter: Type) -> bool:
    """Tell whether an argument of one type may stand for a parameter of another."""
    if parameter == ANY_LIST:
        return isinstance(argument, ListOf)
    if parameter == ANY_MAP:
        return isinstance(argument, MapOf)
    return argument == parameter or (argument == INT and parameter == DOUBLE)


def find_overload(overloads: Iterable[Overload], arguments: list[Type]) -> Overload | None:
    """Return the first overload that takes these arguments."""
    for overload in overloads:
        if len(overload.parameters) == len(arguments) and all(
            map(fits, arguments, overload.parameters)
        ):
            return overload
    return None


def _compare(operation: str, kinds: Iterable[Type]) -> tuple[Overload, ...]:
    return tuple(Overload((kind, kind), BOOL, operation) for kind in kinds)


_EQUALITY = tuple(SCALARS.values())
_ORDER = (INT, DOUBLE, STRING, TIMESTAMP, DURATION)

BINARY: Final[dict[str, tuple[Overload, ...]]] = {
    "==": _compare("eq", _EQUALITY),
    "!=": _compare("ne", _EQUALITY),
    "<": _compare("lt", _ORDER),
    "<=": _compare("le", _ORDER),
    ">": _compare("gt", _ORDER),
    ">=": _compare("ge", _ORDER),
    "+": (
        Overload((INT, INT), INT, "add_int"),
        Overload((DOUBLE, DOUBLE), DOUBLE, "add_double"),
        Overload((STRING, STRING), STRING, "add_string"),
        Overload((TIMESTAMP, DURATION), TIMESTAMP, "add_time"),
        Overload((DURATION, TIMESTAMP), TIMESTAMP, "add_time", swapped=True),
        Overload((DURATION, DURATION), DURATION, "add_duration"),
    ),
    "-": (
        Overload((INT, INT), INT, "sub_int"),
        Overload((DOUBLE, DOUBLE), DOUBLE, "sub_double"),
        Overload((TIMESTAMP, DURATION), TIMESTAMP, "sub_time"),
        Overload((TIMESTAMP, TIMESTAMP), DURATION, "sub_times"),
        Overload((DURATION, DURATION), DURATION, "sub_duration"),
    ),
    "*": (
        Overload((INT, INT), INT, "mul_int"),
        Overload((DOUBLE, DOUBLE), DOUBLE, "mul_double"),
        Overload((DURATION, INT), DURATION, "mul_duration"),
        Overload((INT, DURATION), DURATION, "mul_duration", swapped=True),
    ),
    "/": (
        Overload((INT, INT), INT, "div_int"),
        Overload((DOUBLE, DOUBLE), DOUBLE, "div_double"),
    ),
    "%": (Overload((INT, INT), INT, "mod_int"),),
}

UNARY: Final[dict[str, tuple[Overload, ...]]] = {
    "!": (Overload((BOOL,), BOOL, "not"),),
    "-": (
        Overload((INT,), INT, "neg_int"),
        Overload((DOUBLE,), DOUBLE, "neg_double"),
        Overload((DURATION,), DURATION, "neg_duration"),
    ),
}

_SIZE = (
    Overload((STRING,), INT, "size_string"),
    Overload((ANY_LIST,), INT, "size_list"),
    Overload((ANY_MAP,), INT, "size_map"),
)

FUNCTIONS: Final[dict[str, tuple[Overload, ...]]] = {
    "size": _SIZE,
    "int": (
        Overload((INT,), INT, SAME),
        Overload((DOUBLE,), INT, "int_from_double"),
        Overload((STRING,), INT, "int_from_string"),
        Overload((TIMESTAMP,), INT, "int_from_timestamp"),
    ),
    "double": (
        Overload((INT,), DOUBLE, "to_double"),
        Overload((STRING,), DOUBLE, "double_from_string"),
        Overload((DOUBLE,), DOUBLE, SAME),
    ),
    "string": (
        Overload((INT,), STRING, "string_from_int"),
        Overload((BOOL,), STRING, "string_from_bool"),
        Overload((STRING,), STRING, SAME),
    ),
    "timestamp": (
        Overload((STRING,), TIMESTAMP, "timestamp_from_string"),
        Overload((STRING, STRING), TIMESTAMP, "moment_in_zone"),
        Overload((INT,), TIMESTAMP, "timestamp_from_int"),
    ),
}

# Parts of a timestamp in UTC, and whole units of a duration.
TIME_PARTS: Final = (
    "year",
    "month",
    "day",
    "hour",
    "minute",
    "second",
    "millisecond",
    "dayOfWeek",
    "dayOfYear",
)
DURATION_UNITS: Final = ("days", "hours", "minutes", "seconds", "milliseconds")

# Of lists as sets: what they come to has each element once, in ascending order.
SET_OPERATIONS: Final = frozenset({"subset", "intersect", "union", "minus"})
# Of a constant time zone, which is the last argument.
ZONED: Final = frozenset({"moment_in_zone", "date_in_zone"})


def _of_sets(operation: str) -> tuple[Overload, ...]:
    lists = [ListOf(kind) for kind in SCALARS.values()]
    return tuple(
        Overload((kind, kind), BOOL if operation == "subset" else kind, operation) for kind in lists
    )


METHODS: Final[dict[str, tuple[Overload, ...]]] = {
    "size": _SIZE,
    "contains": (Overload((STRING, STRING), BOOL, "contains"),),
    "startsWith": (Overload((STRING, STRING), BOOL, "starts_with"),),
    "endsWith": (Overload((STRING, STRING), BOOL, "ends_with"),),
    "lower": (Overload((STRING,), STRING, "lower"),),
    "levels": (Overload((STRING,), ListOf(STRING), "levels"),),
    "level": (Overload((STRING, INT), STRING, "level"),),
    "includes": (Overload((STRING, STRING), BOOL, "includes"),),
    **{name: _of_sets(name) for name in sorted(SET_OPERATIONS)},
    "date": (Overload((TIMESTAMP, STRING), INT, "date_in_zone"),),
    **{part: (Overload((TIMESTAMP,), INT, part),) for part in TIME_PARTS},
    **{unit: (Overload((DURATION,), INT, unit),) for unit in DURATION_UNITS},
}

# Written like functions and methods, but with rules of their own.
SPECIAL_FUNCTIONS: Final = ("has", "duration")
SPECIAL_METHODS: Final = ("matches", "exists", "all")

OPERATIONS: Final = (
    frozenset(
        overload.operation
        for table in (BINARY, UNARY, FUNCTIONS, METHODS)
        for overloads in table.values()
        for overload in overloads
    )
    | {"in_list", "in_map", "keys"}
) - {SAME}

"""User properties as conditions see them: `t.properties`, where a name may stand twice.

MQTT 5 lets a name repeat (MQTT5 3.3.2.3.7), and subscribers see every value of it. A condition sees
one value or none: which of several counts is not for the machine to guess.

Rules that hold here:
- A name that repeats has no value: None in what gateways tell each other.
- A condition that asks for such a name, or for the properties as a whole, is not answered, not
  even with "it is missing": `!has(t.properties.x)` must not hold for a message that carries `x`.
  Who decides denies what raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Never

from penstock.errors import PenstockError


class RepeatedPropertyError(PenstockError):
    """A condition asked for a user property that a message carries more than once."""

    def __init__(self) -> None:
        super().__init__(
            "a user property that a condition asks for stands in the message more than once",
            fix="publish it once",
        )


def collect(pairs: Iterable[tuple[str, str]]) -> dict[str, str | None]:
    """Return user properties by name; a name that repeats has no value."""
    found: dict[str, str | None] = {}
    for name, value in pairs:
        found[name] = None if name in found else value
    return found


def guard(found: Mapping[str, str | None]) -> Mapping[str, Any]:
    """Return what conditions may look at."""
    return _Guarded(found) if None in found.values() else found


class _Guarded(Mapping[str, Any]):
    """User properties of which some repeat."""

    __slots__ = ("_found",)

    def __init__(self, found: Mapping[str, str | None]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> str:
        value = self._found[name]
        if value is None:
            raise RepeatedPropertyError
        return value

    def __iter__(self) -> Iterator[Never]:
        raise RepeatedPropertyError

    def __len__(self) -> Never:
        raise RepeatedPropertyError

"""Attribute values as documents hold them: JSON data, read by the declared type.

Rules that hold here:
- A value is read as a whole or refused: an attribute with a missing part would make
  conditions undecidable later, far from the document that is wrong.
- Complaints name types and places, never a value: attributes are personal data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.lang import DURATION, TIMESTAMP, ListOf, MapOf, RecordType, Scope, Type, prepare
from penstock.lang.scalars import read_duration, read_timestamp
from penstock.model.kinds import Attributes
from penstock.policy.access.principals import KnownAttributes


class WrongValueError(ValueError):
    """A value is not of its type; `place` is the way to the part that is not."""

    def __init__(self, message: str, place: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.place = place


def read_value(value: Any, kind: Type, place: tuple[str | int, ...] = ()) -> Any:
    """Return JSON data as a value of a type."""
    match kind:
        case ListOf(element=element) if isinstance(value, list | tuple):
            return [read_value(item, element, (*place, at)) for at, item in enumerate(value)]
        case MapOf(value=inner) if isinstance(value, Mapping):
            return {name: read_value(item, inner, (*place, name)) for name, item in value.items()}
        case RecordType(fields=fields) if isinstance(value, Mapping):
            return _read_record(value, dict(fields), place)
    read = value
    if isinstance(value, str) and kind == TIMESTAMP:
        read = read_timestamp(value)
    elif isinstance(value, str) and kind == DURATION:
        read = read_duration(value)
    read = prepare(read, kind)
    if read is None:
        raise WrongValueError(f"is declared {kind}, but holds another value", place)
    return read


def _read_record(
    value: Mapping[str, Any], fields: Mapping[str, Type], place: tuple[str | int, ...]
) -> dict[str, Any]:
    strange = sorted(set(value) - set(fields))
    if strange:
        raise WrongValueError("is not declared", (*place, strange[0]))
    return {name: read_value(item, fields[name], (*place, name)) for name, item in value.items()}


def read_attributes(attributes: Attributes, scope: Scope) -> KnownAttributes:
    """Read all values of a document by their declared types."""
    declared = dict((scope.root("s") or RecordType(())).fields)
    values = {name: read_value(value, declared[name]) for name, value in attributes.values.items()}
    return KnownAttributes(values, attributes.on_behalf_of)

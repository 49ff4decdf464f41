"""Expressions and attribute values against the vocabularies that declare attributes.

Rules that hold here:
- A value is read as a whole or refused: an attribute with a missing part would make
  conditions undecidable later, far from the document that is wrong.
- Complaints name types and places, never a value: attributes are personal data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from penstock.definitions.document_checks import Locate
from penstock.errors import InvalidError, Problem
from penstock.lang import (
    DURATION,
    TIMESTAMP,
    ListOf,
    MapOf,
    RecordType,
    Scope,
    Type,
    build_scope,
    compile_expression,
    parse_type,
    prepare,
)
from penstock.lang.scalars import read_duration, read_timestamp
from penstock.model.definition import Definition, ExpressionText, marked
from penstock.model.document import Key
from penstock.model.kinds import Attributes, Vocabulary
from penstock.policy.access.emergencies import SCENARIO_CASE, SITUATION_CASE, filter_scope
from penstock.policy.access.principals import KnownAttributes

# Field of a vocabulary → the root under which expressions see it.
ROOTS = {"subject": "s", "object": "o", "environment": "e", "payload": "payload"}


_SEEN: Final[Mapping[str, Callable[[Scope], Scope]]] = {
    "message": lambda scope: scope,
    # Which zone it is, plans say; that it is one suffices here.
    "event": lambda scope: replace(scope, zone="UTC"),
    "scenario": lambda scope: filter_scope(scope, SCENARIO_CASE),
    "situation": lambda scope: filter_scope(scope, SITUATION_CASE),
}
"""What expressions see, by the marker's `over`."""


def scope_of(
    vocabularies: Iterable[Vocabulary],
    locate: Locate | None = None,
    problems: list[Problem] | None = None,
) -> Scope:
    """Join vocabularies to one scope; the same attribute with two types is a problem."""
    found = [] if problems is None else problems
    declared: dict[str, dict[str, Any]] = {field: {} for field in ROOTS}
    first: dict[tuple[str, str], Key] = {}
    for vocabulary in sorted(vocabularies, key=lambda item: item.name):
        for field, attributes in declared.items():
            for name, kind in getattr(vocabulary, field).items():
                place = locate(vocabulary.key, (field, name)) if locate else str(vocabulary.key)
                try:
                    build_scope(**{ROOTS[field]: {name: kind}})
                except InvalidError as error:
                    found += [Problem(place, item.message, item.fix) for item in error.problems]
                    continue
                if attributes.setdefault(name, kind) != kind:
                    found.append(
                        Problem(
                            place,
                            f"{name!r} is declared as {kind!r} here and as {attributes[name]!r} "
                            f"in {first[field, name]}",
                            "give it one type, or another name",
                        )
                    )
                first.setdefault((field, name), vocabulary.key)
    return build_scope(**{ROOTS[field]: attributes for field, attributes in declared.items()})


def check_expressions(
    definitions: Mapping[Key, Definition | None], scope: Scope, locate: Locate
) -> list[Problem]:
    """Return what is wrong with the expressions of these definitions."""
    problems = []
    for key, definition in definitions.items():
        if definition is None:
            continue
        for marker, path, text in marked(definition):
            if not isinstance(marker, ExpressionText):
                continue
            try:
                seen = _SEEN[marker.over](scope)
                compile_expression(text, seen, parse_type(marker.result))
            except InvalidError as error:
                place = locate(key, path)
                problems += [
                    Problem(
                        f"{place}, {item.place}" if item.place else place, item.message, item.fix
                    )
                    for item in error.problems
                ]
    return problems


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

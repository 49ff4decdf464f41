"""Streams of signed event types: their fields are its attributes.

Rules that hold here:
- There is one model of what messages have: a stream that names an event type has its attributes,
  in any order, with the categories that this installation gives them.
- Fields that are left out are written when the stream is applied: what is stored has all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from penstock.errors import Problem, quote
from penstock.model import kinds
from penstock.model.definition import Definition
from penstock.model.document import Document, Key


def check_streams(
    touched: Iterable[kinds.Stream], definitions: Mapping[Key, Definition]
) -> Iterator[tuple[Key, Problem]]:
    """Yield streams whose fields are not the attributes of their type."""
    for stream in touched:
        if stream.event_type is None:
            continue
        event_type = definitions.get(Key(kinds.EventType.kind, stream.event_type))
        if not isinstance(event_type, kinds.EventType):
            continue  # reported as a dangling reference
        if stream.format != "json":
            what = f"messages of signed event types are JSON, and its format is {stream.format}"
            yield stream.key, Problem("format", what, "leave format out")
        wanted = {it.name: (it.type, it.optional) for it in event_type.attributes}
        given = {it.name: (it.type, it.optional) for it in stream.fields}
        for name in dict.fromkeys([*wanted, *given]):
            if wanted.get(name) == given.get(name):
                continue
            if name not in given:
                what = f"the event type has the attribute {quote(name)}, and the stream has not"
            elif name not in wanted:
                what = f"the event type has no attribute {quote(name)}"
            else:
                there = _show(wanted[name])
                what = f"{quote(name)} is {_show(given[name])}, and {there} in the event type"
            yield stream.key, Problem("fields", what, "write it as the event type has it")


def _show(found: tuple[str, bool]) -> str:
    return f"an optional {found[0]}" if found[1] else f"a {found[0]}"


def fill_streams(documents: Sequence[Document], held: Mapping[Key, Document]) -> list[Document]:
    """Return documents with the fields of those streams written that leave them to their type."""
    given = {it.key: it for it in documents}
    return [_fill(it, given, held) for it in documents]


def _fill(
    document: Document, given: Mapping[Key, Document], held: Mapping[Key, Document]
) -> Document:
    name = document.body.get("event_type") if document.kind == kinds.Stream.kind else None
    if not isinstance(name, str) or "fields" in document.body:
        return document
    key = Key(kinds.EventType.kind, name)
    found = given.get(key) or held.get(key)
    attributes = found.body.get("attributes") if found is not None else None
    if not isinstance(attributes, list) or not all(isinstance(it, dict) for it in attributes):
        return document
    fields = [{key: it[key] for key in it if key != "id"} for it in attributes]
    return Document(document.kind, document.name, {**document.body, "fields": fields})

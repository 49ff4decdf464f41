"""The structure of documents: they fit their model, refer to what there is, and have its fields.

Rules that hold here:
- Errors of pydantic are worded for people, each with its place and its fix.
- References lead somewhere, and those that must not lead back to their start do not. The index
  is kept in both directions, so that a change looks only at what it touches: the references of
  what was put, and those to what was deleted.
- Names of a kind marked `when_declared` are free words until that kind is used at all.
- There is one model of what messages have: a stream that names a signed event type has its
  attributes, in any order, with the categories that this installation gives them. Fields that are
  left out are written when the stream is applied: what is stored has all of them.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.errors import Problem, quote
from penstock.model import kinds
from penstock.model.definition import Definition, Reference, Steps, marked
from penstock.model.document import Document, Key
from penstock.model.kinds import KINDS

Locate = Callable[[Key, Steps], str]
"""Tells where the value at a path of a definition stands."""


def locate_by_key(key: Key, path: Steps) -> str:
    """Return the place of a value whose file is not known: the definition and the path."""
    return ".".join([str(key), *map(str, path)])


def validate_document(
    document: Document, locate: Locate, problems: list[Problem]
) -> Definition | None:
    """Return the definition, or None with what is wrong added to `problems`."""
    model = KINDS.get(document.kind)
    if model is None:
        problems.append(
            Problem(
                locate(document.key, ()),
                f"there is no kind {quote(document.kind)}",
                find_nearest(document.kind, KINDS) or f"kinds are {', '.join(sorted(KINDS))}",
            )
        )
        return None
    try:
        return model.model_validate({"name": document.name, **document.body})
    except ValidationError as error:
        problems.extend(
            _problem(detail, model, document, locate)
            for detail in error.errors(include_url=False)
            if not follows_from_others(detail)
        )
        return None


def follows_from_others(detail: ErrorDetails) -> bool:
    """Whether a list is only too short because its entries are wrong, which is told of each."""
    given = detail["input"]
    least = detail.get("ctx", {}).get("min_length", 0)
    return detail["type"] == "too_short" and isinstance(given, list) and len(given) >= least


def word_bound(detail: ErrorDetails) -> tuple[str, str] | None:
    """Say which bound a value is beyond, and what to write; None where it is something else."""
    found = _BOUNDS.get(detail["type"])
    if found is None:
        return None
    name, judged, fix = found
    return f"{quote(detail['input'], 40)} is {judged}", fix.format(detail.get("ctx", {})[name])


_BOUNDS = {
    "greater_than_equal": ("ge", "too small", "write a number of at least {}"),
    "greater_than": ("gt", "too small", "write a number above {}"),
    "less_than_equal": ("le", "too large", "write a number of at most {}"),
    "less_than": ("lt", "too large", "write a number below {}"),
    "too_short": ("min_length", "too short", "give at least {}"),
    "too_long": ("max_length", "too long", "give at most {}"),
}


def _problem(
    detail: ErrorDetails, model: type[Definition], document: Document, locate: Locate
) -> Problem:
    path: Steps = detail["loc"]
    place = locate(document.key, path)
    field = ".".join(map(str, path))
    match detail["type"]:
        case "extra_forbidden":
            known = _fields_at(model, path)
            fix = find_nearest(str(path[-1]), known) or f"known fields: {', '.join(sorted(known))}"
            return Problem(place, f"there is no field {quote(path[-1])} here", fix)
        case "missing":
            about = _describe(model, path)
            return Problem(place, f"the field {field!r} is missing", f"add it{about}")
        case "value_error" | "secret" as found:
            text, _, fix = detail["msg"].removeprefix("Value error, ").partition(" → ")
            quoted = found == "secret" or quote(detail["input"]) in text
            return Problem(
                place, text if quoted else f"{quote(detail['input'])}: {text}", fix or None
            )
        case "literal_error":
            choices = str(detail.get("ctx", {}).get("expected", ""))
            return Problem(place, f"{quote(detail['input'])} is not a choice", f"write {choices}")
        case "tuple_type":
            return Problem(
                place, f"{quote(detail['input'])} is not a list", f"write [{detail['input']}]"
            )
        case _:
            message = detail["msg"][:1].lower() + detail["msg"][1:]
            other = f"{quote(detail['input'])}: {message}", f"see `penstock schema {model.kind}`"
            return Problem(place, *(word_bound(detail) or other))


def _fields_at(model: type[Definition], path: Steps) -> list[str]:
    """Return the fields that stand beside the one at `path`; the top ones where unsure."""
    current: Any = model
    for step in path[:-1]:
        fields = getattr(current, "model_fields", {})
        current = fields[step].annotation if step in fields else current
    fields = getattr(current, "model_fields", None) or model.model_fields
    return [field.alias or name for name, field in fields.items()]


def _describe(model: type[Definition], path: Steps) -> str:
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    return f": {field.description}" if field and field.description else ""


def find_nearest(word: str, known: Mapping[str, Any] | list[str]) -> str | None:
    """Ask whether a known word was meant, if one is much alike."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else None


class ReferenceLink(NamedTuple):
    """One reference: from where, what kind of reference, to what."""

    source: Key
    path: Steps
    marker: Reference
    target: Key


class ReferenceIndex:
    """All references of a set."""

    def __init__(
        self,
        outgoing: dict[Key, tuple[ReferenceLink, ...]] | None = None,
        incoming: dict[Key, frozenset[Key]] | None = None,
        counts: dict[str, int] | None = None,
    ) -> None:
        self._outgoing = outgoing or {}
        self._incoming = incoming or {}
        # How many definitions of each kind the set holds, for `when_declared`.
        self._counts = counts or {}
        self._was_declared: frozenset[str] = frozenset()

    def change(self, changed: Mapping[Key, Definition | None]) -> ReferenceIndex:
        """Return the index after a change."""
        outgoing, incoming = dict(self._outgoing), dict(self._incoming)
        counts = dict(self._counts)
        # Thousands may refer to one definition: what comes and goes is gathered for each.
        gone: defaultdict[Key, set[Key]] = defaultdict(set)
        come: defaultdict[Key, set[Key]] = defaultdict(set)
        for key, definition in changed.items():
            known = key in outgoing
            for link in outgoing.pop(key, ()):
                gone[link.target].add(key)
            if definition is not None:
                links = outgoing[key] = tuple(_links(definition))
                for link in links:
                    come[link.target].add(key)
            counts[key.kind] = counts.get(key.kind, 0) + (definition is not None) - known
        for target in gone.keys() | come.keys():
            before = incoming.get(target, frozenset())
            incoming[target] = before - gone.get(target, set()) | come.get(target, set())
        made = ReferenceIndex(outgoing, incoming, counts)
        made._was_declared = frozenset(kind for kind, count in self._counts.items() if count)
        return made

    def used_by(self, target: Key) -> frozenset[Key]:
        """Return what refers to a definition, which need not be there."""
        return self._incoming.get(target, frozenset())

    def problems(
        self,
        known: AbstractSet[Key],
        changed: Mapping[Key, Definition | None],
        locate: Locate,
    ) -> Iterator[Problem]:
        """Yield what the change left dangling or made circular; `known` is what is defined."""
        touched: set[Key] = set()
        for key, definition in changed.items():
            touched |= {key} if definition is not None else self.used_by(key)
        newly = {kind for kind, count in self._counts.items() if count} - self._was_declared
        if newly:
            # The first purpose closes the vocabulary: now every use of one counts.
            touched |= {
                key
                for key, links in self._outgoing.items()
                if any(link.marker.when_declared and link.target.kind in newly for link in links)
            }
        for key in sorted(touched):
            for link in self._outgoing.get(key, ()):
                if link.target not in known and not self._is_free(link):
                    deleted = link.target in changed
                    yield _dangling(link, known, locate, deleted=deleted)
        for cycle in self._cycles(sorted(touched & known)):
            way = " → ".join(key.name for key in [*cycle, cycle[0]])
            yield Problem(
                locate(cycle[0], ()), f"refers to itself: {way}", "remove one of these steps"
            )

    def _is_free(self, link: ReferenceLink) -> bool:
        return link.marker.when_declared and not self._counts.get(link.target.kind)

    def _cycles(self, starts: Iterable[Key]) -> Iterator[list[Key]]:
        """Walk the acyclic references depth first, once each; a way back is a cycle."""
        done: set[Key] = set()
        for start in starts:
            way: list[Key] = []
            on_way: set[Key] = set()
            stack: list[tuple[Key, Iterator[Key]]] = []
            entering: Key | None = start if start not in done else None
            while entering is not None or stack:
                if entering is not None:
                    way.append(entering)
                    on_way.add(entering)
                    stack.append((entering, self._next(entering)))
                    entering = None
                key, following = stack[-1]
                step = next(following, None)
                if step is None:
                    stack.pop()
                    way.pop()
                    on_way.discard(key)
                    done.add(key)
                elif step in on_way:
                    cycle = way[way.index(step) :]
                    first = cycle.index(min(cycle))
                    yield cycle[first:] + cycle[:first]
                elif step not in done:
                    entering = step

    def _next(self, key: Key) -> Iterator[Key]:
        return (link.target for link in self._outgoing.get(key, ()) if link.marker.acyclic)


def _links(definition: Definition) -> Iterator[ReferenceLink]:
    source = definition.key
    for marker, path, text in marked(definition):
        if isinstance(marker, Reference) and text.startswith(marker.prefix):
            name = text.removeprefix(marker.prefix)
            if marker.until:
                name = name.partition(marker.until)[0].strip()
            yield ReferenceLink(source, path, marker, Key(marker.kind, name))


def _dangling(
    link: ReferenceLink, known: AbstractSet[Key], locate: Locate, *, deleted: bool
) -> Problem:
    if deleted:
        return Problem(
            locate(link.source, link.path),
            f"still uses {link.target}, which would be deleted",
            f"change or delete {link.source} first, or in the same change",
        )
    names = [key.name for key in known if key.kind == link.target.kind]
    near = difflib.get_close_matches(link.target.name, names, n=1)
    fix = link.marker.fix or f"define it, or remove it from {link.source}"
    if near and not link.marker.fix:
        fix = f"did you mean {near[0]!r}?"
    return Problem(
        locate(link.source, link.path),
        f"there is no {link.target.kind} {quote(link.target.name)}",
        fix,
    )


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

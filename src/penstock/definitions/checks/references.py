"""Who refers to whom in a set: dangling references and cycles.

Rules that hold here:
- The index is kept in both directions, so that a change looks only at what it touches:
  the references of what was put, and those to what was deleted.
- Names of a kind marked `when_declared` are free words until that kind is used at all.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from penstock.definitions.checks import Locate
from penstock.errors import Problem, quote
from penstock.model.definition import Definition, Reference, Steps, marked
from penstock.model.document import Key


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

    def problems(
        self,
        known: AbstractSet[Key],
        changed: Mapping[Key, Definition | None],
        locate: Locate,
    ) -> Iterator[Problem]:
        """Yield what the change left dangling or made circular; `known` is what is defined."""
        touched: set[Key] = set()
        for key, definition in changed.items():
            touched |= {key} if definition is not None else self._incoming.get(key, frozenset())
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
    for marker, path, text in marked(definition):
        if isinstance(marker, Reference) and text.startswith(marker.prefix):
            name = text.removeprefix(marker.prefix)
            if marker.until:
                name = name.partition(marker.until)[0].strip()
            yield ReferenceLink(definition.key, path, marker, Key(marker.kind, name))


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

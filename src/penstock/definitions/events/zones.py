"""Whose days events are counted by: the time zone of the plans that they are for.

Rules that hold here:
- An event is for the plans that wait for it, whose actions publish it, or that need it for one of
  these. What is for no plan has UTC.
- Plans with different zones may share events, but none that looks at days.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock.lang.zones import DAY
from penstock.model import kinds
from penstock.model.definition import Definition, Reference, marked
from penstock.model.document import Key
from penstock.model.kinds.events import Pattern

_ASKED: Final = re.compile(r"\be\s*\.\s*zone\b")

Zones = Mapping[str, Mapping[str, str]]
"""Of each event the zones, with a plan that names it."""


def find_zones(definitions: Mapping[Key, Definition]) -> Zones:
    """Return the time zones of all events that are for a plan."""
    events = {it.name: it for it in definitions.values() if isinstance(it, kinds.Event)}
    actions = {it.name: it for it in definitions.values() if isinstance(it, kinds.Action)}
    found: dict[str, dict[str, str]] = {}
    plans = [it for it in definitions.values() if isinstance(it, kinds.Plan)]
    for plan in sorted(plans, key=lambda it: it.name):
        waiting = [it.event for it in plan.evolutions if it.event is not None]
        waiting += [
            actions[name].event for it in plan.evolutions for name in it.actions if name in actions
        ]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in events:
                continue
            seen.add(name)
            found.setdefault(name, {}).setdefault(plan.zone, plan.name)
            waiting += _list_parts(events[name])
    return found


def asks_zone(event: kinds.Event) -> bool:
    """Tell whether it matters to an event whose days count."""
    if any(_ASKED.search(text) for text in _list_texts(event)):
        return True
    return event.pattern is not None and any(
        it.visits is not None or (it.window and it.window.each and not it.window.each % DAY)
        for it in _walk(event.pattern)
    )


def _list_parts(event: kinds.Event) -> Iterator[str]:
    for marker, _, name in marked(event):
        if isinstance(marker, Reference) and marker.kind == "event":
            yield name


def _list_texts(event: kinds.Event) -> Iterator[str]:
    if event.packet is not None:
        packet = event.packet
        yield from (packet.when, packet.time or "", packet.id or "", *packet.set.values())
    if event.request is not None:
        yield from event.request.set.values()


def _walk(pattern: Pattern) -> Iterator[Pattern]:
    yield pattern
    parts: Iterable[Pattern | None] = (
        *(pattern.any_of or ()),
        *(pattern.all_of or ()),
        *(pattern.sequence or ()),
        *(pattern.aggregate or ()),
        pattern.negated,
        pattern.iterate,
        pattern.latest,
        pattern.visits,
        pattern.meetings,
    )
    for part in parts:
        if part is not None:
            yield from _walk(part)

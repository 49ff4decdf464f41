"""The definitions of the nursing home, for any number of people and any pace.

Rules that hold here:
- The files in this folder are the case study. What differs for a simulation is changed in
  the documents: who is there, how often rooms are sampled, and how long windows last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, Final

from penstock.definitions import read_text
from penstock.model.document import Document

RULES: Final = ("events.yaml", "plans.yaml", "policies.yaml")
PEOPLE: Final = "people.yaml"
FORECASTS: Final = "forecasts.yaml"
DAY: Final = 86_400_000
WINDOW: Final = 2 * DAY
"""How long vital signs count, in milliseconds."""
WITHIN: Final = 10 * DAY
"""How long stays count, in milliseconds."""
CONTACT: Final = 900.0
"""How long a close contact lasts, in seconds."""


def read_rules() -> list[Document]:
    """Return events, plans and policies as they stand in the files."""
    return [document for name in RULES for document in _read(name)]


def read_people() -> list[Document]:
    """Return the small population of the files."""
    return _read(PEOPLE)


def read_forecasts() -> list[Document]:
    """Return the policies of forecasts."""
    return _read(FORECASTS)


def _read(name: str) -> list[Document]:
    text = (resources.files(__package__) / name).read_text(encoding="utf-8")
    return read_text(text, name).documents


def make_documents(people: Iterable[Mapping[str, Any]]) -> list[Document]:
    """Return documents of people who were made up."""
    return [
        Document(it["kind"], it["name"], {k: v for k, v in it.items() if k not in {"kind", "name"}})
        for it in people
    ]


def set_pace(
    documents: Iterable[Document], *, speed: float = 1.0, rooms_every: int = 1000
) -> list[Document]:
    """Return the documents for a house that lives `speed` times as fast as it should.

    Windows and times of contact shrink by that. `rooms_every` is the time between samples
    of a room, in milliseconds of the house.
    """
    return [_set_pace(it, speed, rooms_every) for it in documents]


def _set_pace(document: Document, speed: float, rooms_every: int) -> Document:
    pattern = _pattern(document)
    if "last" in pattern.get("window", {}):
        return _with_pattern(document, window={"last": _last(WINDOW, speed)})
    if "visits" in pattern:
        every = f"{_tick(rooms_every / speed)}ms"
        return _with_pattern(document, every=every, within=_last(WITHIN, speed))
    if document.name == "CloseContact":
        return _with_pattern(document, where=f"it.duration > {CONTACT / speed:.6f}")
    return document


def _last(milliseconds: int, speed: float) -> str:
    return f"{max(1, round(milliseconds / speed))}ms"


def _tick(milliseconds: float) -> int:
    """Return the shortest part of a day that is not shorter: no sample leaves a gap."""
    tick = max(1, math.ceil(milliseconds))
    while DAY % tick:
        tick += 1
    return tick


def _pattern(document: Document) -> Mapping[str, Any]:
    pattern = document.body.get("pattern") if document.kind == "event" else None
    return pattern if isinstance(pattern, Mapping) else {}


def _with_pattern(document: Document, **changes: Any) -> Document:
    pattern = {**_pattern(document), **changes}
    return Document(document.kind, document.name, {**document.body, "pattern": pattern})

"""The access matrix: who sees which attribute, in which degree, for what, in which situation.

    examples ─▶ the one authorizer ─▶ cells ─▶ a table for each topic and view

Rules that hold here:
- The matrix is that of `penstock access`; nothing here decides.
- Working it out is bounded in time; what was left out is said.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from fastapi import Query

from penstock.console.access import MissingError
from penstock.console.desk import Visit, Visitor
from penstock.console.pages.access import ROOM, Name
from penstock.console.rooms import PageData
from penstock.definitions.access_matrix import (
    ORDINARY,
    Cell,
    Question,
    list_situations,
    list_subjects,
    make_examples,
    make_matrix,
)
from penstock.errors import PenstockError, quote
from penstock.kafka.acls import list_view_cells
from penstock.model import kinds

_MATRIX_SECONDS: Final = 4.0
_LOOKS: Final = 256
_MOST_ROWS: Final = 400
_RANK: Final = {"none": 0, "removed": 1, "changed": 2, "added": 2, "full": 3}
ANY: Final = "any"
NO_PURPOSE: Final = "none"


class MatrixCell(PageData):
    """What somebody sees of an attribute."""

    degree: str
    rule: str


class MatrixRow(PageData):
    """What somebody sees of a topic or a view."""

    subject: str
    cells: Sequence[MatrixCell]
    purposes: Sequence[str]
    """For which it is so: `none` is without a purpose."""
    more: Sequence[str]
    """Situations in which they see more than here."""
    sees: bool


class MatrixTable(PageData):
    """One topic or view, by subject and attribute."""

    stream: str
    source: str
    attributes: Sequence[str]
    rows: Sequence[MatrixRow]
    blind: int
    """How many subjects see nothing, and are left out."""


class Matrix(PageData):
    """Who sees which attribute of what, in which degree, in which situation."""

    subject: str
    stream: str
    purpose: str
    situation: str
    everybody: bool
    subjects: Sequence[str]
    streams: Sequence[str]
    purposes: Sequence[str]
    situations: Sequence[str]
    tables: Sequence[MatrixTable]
    left: int
    """How many subjects were not looked at: the time was over."""
    cells: int
    trouble: str


@ROOM.page("/access/matrix", "Access matrix", "access/matrix.html")
def show_matrix(
    visit: Visitor,
    *,
    subject: Name = "",
    stream: Name = "",
    purpose: Name = ANY,
    situation: Annotated[str, Query(max_length=600)] = ORDINARY,
    everybody: bool = False,
) -> Matrix:
    """Show who sees which attribute, in which degree, for which purpose, in which situation."""
    definitions = visit.definitions
    subjects, streams = list_subjects(definitions), sorted(definitions.of(kinds.Stream))
    purposes = sorted(definitions.of(kinds.Purpose))
    situations = [it for it, _, _ in list_situations(definitions)]
    for given, known, what in (
        (subject, subjects, "user"),
        (stream, streams, "stream"),
        (purpose, [ANY, NO_PURPOSE, *purposes], "purpose"),
        (situation, situations, "situation"),
    ):
        if given and given not in known:
            raise MissingError(f"there is no {what} {quote(given)}", fix="choose one of the list")
    asked: list[str | None] = [None, *purposes]
    if purpose != ANY:
        asked = [None if purpose == NO_PURPOSE else purpose]
    gathered = _Gathered(situation)
    left, trouble = gathered.look(
        visit, [subject] if subject else subjects, [stream] if stream else [], asked
    )
    return Matrix(
        subject=subject,
        stream=stream,
        purpose=purpose,
        situation=situation,
        everybody=everybody,
        subjects=subjects,
        streams=streams,
        purposes=purposes,
        situations=situations,
        tables=gathered.tables(everybody=everybody or bool(subject)),
        left=left,
        cells=gathered.count,
        trouble=trouble,
    )


Place = tuple[str, str]
"""A stream, and one of its topics or views."""


class _Gathered:
    """The cells of a matrix, put together by topic and subject."""

    def __init__(self, situation: str) -> None:
        self._situation = situation
        self.count = 0
        self._attributes: dict[Place, dict[str, None]] = {}
        # place → subject → situation → attribute → the most that is seen, and for which purposes
        self._held: dict[Place, dict[str, dict[str, dict[str, Cell]]]] = {}
        self._purposes: dict[tuple[Place, str, str], dict[str, None]] = {}

    def look(
        self,
        visit: Visit,
        subjects: Sequence[str],
        streams: Sequence[str],
        purposes: Sequence[str | None],
    ) -> tuple[int, str]:
        """Work out the cells; return how many subjects there was no time for, and what failed."""
        definitions, desk = visit.definitions, visit.desk
        end = time.monotonic() + _MATRIX_SECONDS
        environment = desk.environment()
        try:
            examples = make_examples(definitions, Question(streams=streams))
            authorizer = desk.authorizer(definitions)
            for number, subject in enumerate(subjects):
                question = Question([subject], streams, purposes=purposes, environment=environment)
                for at, cell in enumerate(make_matrix(authorizer, definitions, question, examples)):
                    if at % _LOOKS == 0 and number and time.monotonic() > end:
                        return len(subjects) - number, ""
                    self._add(cell)
        except PenstockError as error:
            return 0, str(error)
        for cell in list_view_cells(definitions, subjects, streams):
            self._add(cell)
        return 0, ""

    def _add(self, cell: Cell) -> None:
        self.count += 1
        place = (cell.stream, cell.source)
        self._attributes.setdefault(place, {})[cell.attribute] = None
        seen = (
            self._held.setdefault(place, {})
            .setdefault(cell.subject, {})
            .setdefault(cell.situation, {})
        )
        before = seen.get(cell.attribute)
        if before is None or _RANK[cell.degree] > _RANK[before.degree]:
            seen[cell.attribute] = cell
        if cell.degree != "none":
            key = (place, cell.subject, cell.situation)
            self._purposes.setdefault(key, {})[cell.purpose or NO_PURPOSE] = None

    def tables(self, *, everybody: bool) -> list[MatrixTable]:
        """Return what a page shows."""
        return [self._table(place, everybody=everybody) for place in self._held]

    def _table(self, place: Place, *, everybody: bool) -> MatrixTable:
        attributes = list(self._attributes[place])
        rows, blind = [], 0
        for subject, by_situation in self._held[place].items():
            situation = self._situation if self._situation in by_situation else ORDINARY
            seen = by_situation.get(situation, {})
            more = [
                it for it in by_situation if it != situation and _exceeds(by_situation[it], seen)
            ]
            sees = any(it.degree != "none" for it in seen.values())
            if not sees and not more and not everybody:
                blind += 1
                continue
            rows.append(
                MatrixRow(
                    subject=subject,
                    cells=[
                        MatrixCell(degree=seen[it].degree, rule=seen[it].rule)
                        if it in seen
                        else MatrixCell(degree="none", rule="")
                        for it in attributes
                    ],
                    purposes=list(self._purposes.get((place, subject, situation), {})),
                    more=more,
                    sees=sees,
                )
            )
        stream, source = place
        return MatrixTable(
            stream=stream,
            source=source,
            attributes=attributes,
            rows=rows[:_MOST_ROWS],
            blind=blind,
        )


def _exceeds(there: Mapping[str, Cell], here: Mapping[str, Cell]) -> bool:
    """Say whether more is seen of some attribute there than here."""
    return any(
        _RANK[it.degree] > (_RANK[here[name].degree] if name in here else 0)
        for name, it in there.items()
    )

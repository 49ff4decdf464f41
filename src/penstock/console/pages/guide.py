"""For everybody who is signed in: the documentation, the search, and one's own account.

Rules that hold here:
- The search finds what this person may see, and no more: rooms, definitions, documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

from fastapi import Query

from penstock.console.access import MissingError
from penstock.console.desk import Visit, Visitor
from penstock.console.rendering import list_docs, render_doc
from penstock.console.rooms import PageData, Room
from penstock.definitions.access import list_claims

ROOM: Final = Room(
    "guide",
    "Help",
    order=900,
    help="tutorial/first-hour",
    icon="M12 17v.01M9.5 9.5a2.5 2.5 0 1 1 3.6 2.2c-.7.4-1.1.9-1.1 1.8"
    "M21 12a9 9 0 1 1-18 0 9 9 0 1 1 18 0z",
    needs=False,
    about="The documentation of this version.",
)
_MOST_FOUND: Final = 100
_SECTIONS: Final = {
    "tutorial": "Learn",
    "how-to": "Do",
    "explanation": "Understand",
    "reference": "Look up",
    "decisions": "Why it is so",
    "benchmarks": "Figures",
}


class DocTitle(PageData):
    """A page of the documentation."""

    name: str
    title: str
    section: str


class DocPage(PageData):
    """A page of the documentation, and which others there are."""

    name: str
    title: str
    html: str
    pages: Sequence[DocTitle]
    sections: dict[str, str] = _SECTIONS


class Hit(PageData):
    """Something that was found."""

    kind: str
    name: str
    to: str


class SearchResult(PageData):
    """What was found."""

    asked: str
    hits: Sequence[Hit]
    more: bool


class OpenSession(PageData):
    """A browser that one is signed in at."""

    here: bool
    made: str
    seen: str
    expires: str


class Account(PageData):
    """Who one is, and what the definitions give."""

    user: str
    administers: bool
    subjects: Sequence[str]
    claims: Sequence[str]
    monitors: Sequence[str]
    break_glass: Sequence[str]
    detokenize: Sequence[str]
    sessions: Sequence[OpenSession]


@ROOM.page("/help", "Help", "guide/help.html")
def show_help(
    visit: Visitor, page: Annotated[str, Query(max_length=200)] = "tutorial/first-hour"
) -> DocPage:
    """Show a page of the documentation."""
    del visit
    html = render_doc(page)
    if html is None:
        raise MissingError("the documentation has no such page", fix="see /help for all of them")
    pages = [
        DocTitle(name=name, title=title, section=name.partition("/")[0])
        for name, title in list_docs().items()
        if name.partition("/")[0] in _SECTIONS
    ]
    return DocPage(name=page, title=list_docs()[page], html=html, pages=pages)


@ROOM.page("/search", "Search", "guide/search.html")
def search(visit: Visitor, q: Annotated[str, Query(max_length=200)] = "") -> SearchResult:
    """Find rooms, definitions and documentation by a word in their names."""
    wanted = q.strip().casefold()
    found: list[Hit] = []
    for it in _find(visit, wanted) if wanted else ():
        if len(found) == _MOST_FOUND:
            return SearchResult(asked=q, hits=found, more=True)
        found.append(it)
    return SearchResult(asked=q, hits=found, more=False)


def _find(visit: Visit, wanted: str) -> Iterator[Hit]:
    from penstock.console.pages import ROOMS  # noqa: PLC0415 - the rooms are this module's, too

    for room in ROOMS:
        for page in room.pages if visit.sees(room.sees) else ():
            if not page.hidden and wanted in f"{room.title} {page.title}".casefold():
                yield Hit(kind="page", name=page.title, to=page.path)
    if visit.sees("definitions"):
        for key in sorted(visit.definitions.definitions):
            if wanted in f"{key.kind}/{key.name}".casefold():
                yield Hit(
                    kind=key.kind,
                    name=key.name,
                    to=f"/definitions/one?kind={_encode(key.kind)}&name={_encode(key.name)}",
                )
    for name, title in list_docs().items():
        if wanted in title.casefold():
            yield Hit(kind="documentation", name=title, to=f"/help?page={_encode(name)}")


def _encode(text: str) -> str:
    from urllib.parse import quote  # noqa: PLC0415 - beside `errors.quote` it would mislead

    return quote(text, safe="")


@ROOM.page("/account", "Your account", "guide/account.html")
def show_account(visit: Visitor) -> Account:
    """Show who one is, what the definitions give, and where one is signed in."""
    rights = visit.rights
    claims = sorted(
        {it.purpose for it in list_claims(visit.definitions) if it.subject in rights.subjects}
    )
    here = visit.session
    sessions = [
        OpenSession(
            here=here is not None and it.digest == here.digest,
            made=it.made.isoformat(),
            seen=it.seen.isoformat(),
            expires=it.expires.isoformat(),
        )
        for it in visit.desk.sessions.of(visit.user)
    ]
    return Account(
        user=visit.user,
        administers=rights.administers,
        subjects=sorted(rights.subjects),
        claims=claims,
        monitors=rights.monitors,
        break_glass=sorted(rights.break_glass),
        detokenize=sorted(rights.detokenize),
        sessions=sessions,
    )

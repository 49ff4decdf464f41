"""What a room of the console is: its pages, its changes, and who may see them.

    ROOM = Room("audit", "Audit log", order=60, help="explanation/audit-log", icon="…")

    @ROOM.page("/audit", "Audit log", "audit/list.html")
    def list_entries(visit: Visitor, kind: Annotated[str, Query()] = "") -> EntryList: ...

    @ROOM.action("/audit/verify")
    def verify(visit: Visitor, form: Form) -> Done: ...

Each page has three addresses: /audit shows it, /audit.json answers its data, and where it names a
`live` fragment, /audit.live sends that again whenever it has changed.

Rules that hold here:
- The function of a page returns a model; parameters are its query. It runs in a thread.
- Who may not see the room is refused before the function runs; an action may ask for more.
- An action changes something and says where to go on. What is wrong with a form is an error, told
  on a page with the way back; `Again` shows the form anew with what was typed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar, get_type_hints
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict

from penstock.console.desk import Visit
from penstock.errors import UsageError

MOST_FIELDS: Final = 5_000
FORM: Final = "form"
Function = TypeVar("Function", bound=Callable[..., Any])


class PageData(BaseModel):
    """The data of a page: what its twin answers."""

    model_config = ConfigDict(frozen=True)


@dataclass(frozen=True, slots=True)
class Done:
    """An action is done: where to go on, and what to say there."""

    to: str
    said: str = ""


@dataclass(frozen=True, slots=True)
class Again:
    """A form is shown again, with what was typed and what is wrong."""

    template: str
    title: str
    data: PageData
    status: int = 422


class FormData(Mapping[str, str]):
    """What a form has sent; of a field that is there more than once, all are in `all`."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._pairs = pairs
        self._last = dict(pairs)

    def __getitem__(self, name: str) -> str:
        return self._last[name]

    def __iter__(self) -> Any:
        return iter(self._last)

    def __len__(self) -> int:
        return len(self._last)

    def text(self, name: str, limit: int = 1_000) -> str:
        """Return a field without blanks around it; raise where it is too long."""
        found = self._last.get(name, "").strip()
        if len(found) > limit:
            raise UsageError(f"{name} is longer than {limit} characters", fix="shorten it")
        return found

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return [value for it, value in self._pairs if it == name]

    @classmethod
    def parse(cls, body: bytes) -> FormData:
        """Read a form as browsers send it."""
        try:
            pairs = parse_qsl(
                body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS
            )
        except ValueError:
            raise UsageError("the form cannot be read", fix="go back and send it again") from None
        return cls([(name, value.replace("\r\n", "\n")) for name, value in pairs])


def form_of(request: Request) -> FormData:
    """Return the form of a request; the gate read it."""
    found = request.scope["state"].get(FORM)
    return found if isinstance(found, FormData) else FormData([])


Form = Annotated[FormData, Depends(form_of)]
"""The parameter by which an action learns what was sent."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a room."""

    path: str
    title: str
    template: str
    load: Callable[..., Any]
    help: str
    live: str | None = None
    """The template of what changes by itself on the page."""
    every: float = 2.0
    hidden: bool = False
    """Whether it is left out of searches: it makes no sense without its parameters."""


@dataclass(frozen=True, slots=True)
class Action:
    """One change of a room."""

    path: str
    run: Callable[..., Any]
    streams: bool = False
    """Whether its answer goes on for a while: it is counted among the streams."""


@dataclass(slots=True)
class Room:
    """Pages that belong together: one entry of the navigation."""

    name: str
    title: str
    order: int
    help: str
    """The page of the documentation, such as `explanation/audit-log`."""
    icon: str = ""
    """The data of one SVG path in a square of 24."""
    needs: bool = True
    """Whether it takes a right; without, it is for everybody who is signed in."""
    about: str = ""
    pages: list[Page] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    @property
    def sees(self) -> str | None:
        """What a visit has to see."""
        return self.name if self.needs else None

    @property
    def home(self) -> str:
        """The address of its first page."""
        return self.pages[0].path

    def page(
        self,
        path: str,
        title: str,
        template: str,
        *,
        help: str | None = None,  # noqa: A002 - the word that pages use
        live: str | None = None,
        every: float = 2.0,
        hidden: bool = False,
    ) -> Callable[[Function], Function]:
        """Return what adds a page, from the function that returns its data."""

        def add(load: Function) -> Function:
            self.pages.append(
                Page(path, title, template, load, help or self.help, live, every, hidden)
            )
            return load

        return add

    def action(self, path: str, *, streams: bool = False) -> Callable[[Function], Function]:
        """Return what adds a change, from the function that makes it."""

        def add(run: Function) -> Function:
            self.actions.append(Action(path, run, streams))
            return run

        return add


def signature_of(load: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature with types instead of their names."""
    hints = get_type_hints(load, include_extras=True)
    found = inspect.signature(load)
    return found.replace(
        parameters=[
            it.replace(annotation=hints.get(name, it.annotation))
            for name, it in found.parameters.items()
        ],
        return_annotation=hints.get("return", Any),
    )


def visit_parameter(load: Callable[..., Any]) -> str | None:
    """Return the name of the parameter that takes the visit."""
    hints = get_type_hints(load)
    return next((name for name, it in hints.items() if it is Visit), None)

"""What commands print: one line of JSON for machines, tables and colours for people.

Rules that hold here:
- Every command takes `--json` and then prints exactly one JSON value on one line to
  standard output (commands that follow something: one per event).
- Colours only on a terminal, and never with NO_COLOR.
- Errors go to standard error, with the fix on a line of its own.
- Whatever is shown may be somebody else's words: client identifiers, topics, records. Nothing in
  it is read as markup, moves the cursor, or changes the terminal.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from penstock.errors import InvalidError, PenstockError

Function = TypeVar("Function", bound=Callable[..., Any])


_COMMANDING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Characters that a terminal obeys instead of showing them, or that reorder what it shows."""


class PlainConsole(Console):
    """A console that shows every text as it is written."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the pieces to be written; those that rich makes for the terminal stay."""
        for segment in super().render(renderable, options):
            if segment.control is None and _COMMANDING.search(segment.text):
                yield Segment(_COMMANDING.sub("\ufffd", segment.text), segment.style)
            else:
                yield segment


def json_option(function: Function) -> Function:
    """Add `--json` to a command; it arrives as the parameter `as_json`."""
    option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
    return option(function)


def console(*, errors: bool = False) -> Console:
    """Return the console for people; plain where there is no terminal or NO_COLOR is set."""
    stream = sys.stderr if errors else sys.stdout
    width = None if stream.isatty() else int(os.environ.get("COLUMNS", "110"))
    return PlainConsole(
        file=stream, width=width, highlight=False, soft_wrap=False, markup=False, emoji=False
    )


def print_json(data: Any) -> None:
    """Print one JSON value on one line."""
    print(json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str))


def show(as_json: bool, data: Any, render: Callable[[Console], None]) -> None:
    """Print `data` as one line of JSON, or let `render` draw it for people."""
    if as_json:
        print_json(data)
    else:
        render(console())


def counted(number: int, noun: str) -> str:
    """Say how many there are of something: `1 problem`, `2 problems`, `no problems`."""
    return f"{f'{number:,}' if number else 'no'} {noun}{'' if number == 1 else 's'}"


def table(*columns: str, title: str | None = None) -> Table:
    """Return a table in the house style."""
    made = Table(
        title=title, title_justify="left", box=None, pad_edge=False, header_style="bold dim"
    )
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def print_error(
    message: str, fix: str | None, *, as_json: bool, error: PenstockError | None = None
) -> None:
    """Print an error with its problems and its fix."""
    problems = error.problems if isinstance(error, InvalidError) else []
    if as_json:
        body: dict[str, Any] = {"error": message, "fix": fix}
        if problems:
            body["problems"] = [
                {"place": item.place, "message": item.message, "fix": item.fix} for item in problems
            ]
        print(json.dumps(body, ensure_ascii=False), file=sys.stderr)
        return
    target = console(errors=True)

    def say(*pieces: str | tuple[str, str]) -> None:
        # Not wrapped here: a path must stay whole, so that it can be copied.
        target.print(Text.assemble(*pieces), soft_wrap=True)

    say(("error: ", "bold red"), message)
    for item in problems:
        place = (f"{item.place}: ", "bold") if item.place else ""
        say("  ", place, item.message)
        if item.fix:
            say("    → ", (item.fix, "cyan"))
    if fix:
        say("  → ", (fix, "cyan"))

"""What is wrong with the text of an expression or a type, shown under the text itself.

Rules that hold here:
- A problem names line and column, quotes the line and marks the part it means.
- Quoted text is cut to a window around the mark and freed of control characters,
  so that a hostile text cannot flood or disturb a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import NamedTuple

from penstock.errors import InvalidError, Problem

WINDOW = 88


class Span(NamedTuple):
    """The part of a text from `start` up to, not including, `end`."""

    start: int
    end: int


class Fault(NamedTuple):
    """A problem before it is shown: which part of the text, what, and how to mend it."""

    span: Span
    message: str
    fix: str | None = None


class ExpressionError(InvalidError):
    """The text of an expression or of a type is wrong."""

    def __init__(self, what: str, text: str, faults: Iterable[Fault]) -> None:
        ordered = sorted(faults, key=lambda fault: fault.span)
        super().__init__(what, [_show(text, fault) for fault in ordered])
        self.text = text
        self.faults = ordered


class FaultError(Exception):
    """Carries one fault out of the lexer or parser; the caller knows the whole text."""

    def __init__(self, span: Span, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.fault = Fault(span, message, fix)


def suggest(name: str, known: Iterable[str]) -> str | None:
    """Name the known word that a wrong one was probably meant to be."""
    by_folded = {word.casefold(): word for word in known}
    close = get_close_matches(name[:64].casefold(), by_folded, n=1, cutoff=0.6)
    return f"did you mean {by_folded[close[0]]!r}?" if close else None


def list_names(names: Iterable[str], limit: int = 12) -> str:
    """List the names that would have been right."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:limit])
    return shown + (", …" if len(ordered) > limit else "")


def _show(text: str, fault: Fault) -> Problem:
    start = min(fault.span.start, len(text))
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line_end = len(text) if line_end < 0 else line_end
    number = text.count("\n", 0, start) + 1
    column = start - line_start + 1
    left = max(line_start, min(start - WINDOW // 2, line_end - WINDOW))
    right = min(line_end, left + WINDOW)
    before = "…" if left > line_start else ""
    after = "…" if right < line_end else ""
    shown = "".join(c if c.isprintable() else "�" for c in text[left:right])
    width = max(1, min(fault.span.end, right) - start)
    mark = " " * (len(before) + start - left) + "^" * width
    message = f"{fault.message}\n    {before}{shown}{after}\n    {mark}"
    return Problem(f"line {number}, column {column}", message, fault.fix)

"""Every bound of the expression language, and what is wrong with a text, shown under it.

Rules that hold here:
- A problem names line and column, quotes the line and marks the part it means.
- Quoted text is cut to a window around the mark and freed of control characters,
  so that a hostile text cannot flood or disturb a terminal.
- A bound on the text, the tree or a pattern is checked when the expression is
  compiled; passing it is an error that names the bound.
- A bound on values is checked when the expression is evaluated; passing it is
  the outcome "missing", in all forms alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Final, NamedTuple

from penstock.errors import InvalidError, Problem

# The text and the tree.
MAX_TEXT: Final = 8192  # characters of an expression
MAX_NODES: Final = 2000  # nodes of its tree
MAX_DEPTH: Final = 32  # nodes from the root of its tree to a leaf; Spark fails beyond 40
MAX_PROBLEMS: Final = 20  # problems reported at once
MAX_PATTERN: Final = 512  # characters of a regular expression
MAX_PATTERN_MEMORY: Final = 1 << 20  # bytes that its automaton may take
MAX_TYPE_TEXT: Final = 4096  # characters of a type's notation
MAX_TYPE_DEPTH: Final = 16  # lists, maps and records within each other
MAX_QUANTIFIER_DEPTH: Final = 2  # exists/all within each other

# Values.
MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**63 - 1
MAX_EXACT: Final = 2**53  # every int up to here is a double without rounding
MAX_STRING: Final = 65_536  # code points of a string that an expression builds
MAX_NUMERAL: Final = 64  # characters of a string that int() or double() reads
MIN_TIMESTAMP: Final = datetime.min.replace(tzinfo=UTC)
MAX_TIMESTAMP: Final = datetime.max.replace(tzinfo=UTC)
MAX_DURATION: Final = timedelta(seconds=315_576_000_000)  # 10,000 years, both ways

# A quantifier visits each element once. One whose body loops again visits few, so
# that the product stays within what one message may cost.
MAX_VISITS: Final = 10_000
MAX_VISITS_NESTED: Final = 100


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

"""The one tree of errors.

Rules that hold here:
- Every error that Penstock raises on purpose derives from `PenstockError`.
- A message quotes the input it complains about (never a secret or a payload) and
  the `fix` names the next step, so that a reader can act without reading code.
- The exit code belongs to the error, so that every command ends the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

QUOTE_LIMIT = 120
LAST_WORDS = "PENSTOCK_LAST_WORDS"
"""The variable that tells a part where to leave the error it ends with, for its supervisor."""


def quote(text: object, limit: int = QUOTE_LIMIT) -> str:
    """Quote input for a message: escaped, and cut where it is long."""
    shown = str(text)
    if len(shown) > limit:
        shown = shown[: limit - 1] + "…"
    return repr(shown)


class PenstockError(Exception):
    """The root: a message for people, and the next step where there is one."""

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message} → {self.fix}" if self.fix else self.message


class UsageError(PenstockError):
    """The caller asked for something in a wrong way."""


class DeniedError(PenstockError):
    """A decision denied what was asked for."""

    exit_code: ClassVar[int] = 1


class UnavailableError(PenstockError):
    """Something that is needed is missing, down or out of reach."""

    exit_code: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with an input: where, what, and how to mend it."""

    place: str
    message: str
    fix: str | None = None

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return f"{text} → {self.fix}" if self.fix else text


class InvalidError(PenstockError):
    """An input has problems; all of them are listed at once."""

    def __init__(self, what: str, problems: list[Problem], *, fix: str | None = None) -> None:
        count = len(problems)
        noun = "problem" if count == 1 else "problems"
        super().__init__(f"{what}: {count} {noun}", fix=fix)
        self.what = what
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {problem}" for problem in self.problems)])

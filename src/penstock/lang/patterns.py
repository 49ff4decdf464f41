"""Regular expressions in linear time, with RE2's syntax and meaning.

Rules that hold here:
- A pattern is a constant of the expression: its cost is known when it is compiled.
- `search` looks for the pattern anywhere in the text, in time linear in the text,
  whatever the pattern; it captures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import re2

from penstock.lang.limits import MAX_PATTERN, MAX_PATTERN_MEMORY


class PatternError(ValueError):
    """A pattern is too long, too large, or not RE2 syntax."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern; two are the same when their texts are."""

    text: str
    program: Any = field(compare=False, repr=False)

    def search(self, text: str) -> bool:
        """Tell whether the pattern occurs in a text."""
        return self.program.search(text.encode()) is not None


def compile_pattern(text: str) -> Pattern:
    """Compile a pattern within the bounds of the language."""
    if len(text) > MAX_PATTERN:
        raise PatternError(f"it has {len(text)} characters, at most {MAX_PATTERN} are allowed")
    options = re2.Options()
    options.never_capture = True
    options.log_errors = False
    options.max_mem = MAX_PATTERN_MEMORY
    try:
        return Pattern(text, re2.compile(text, options))
    except re2.error as error:
        detail = error.args[0]
        raise PatternError(detail.decode() if isinstance(detail, bytes) else detail) from None

"""How a demonstration shows its story: numbered steps, results that are checked.

Rules that hold here:
- A demonstration expects something of every result and fails if it is otherwise: what
  it prints is what happened.
"""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from penstock.errors import PenstockError

INDENT = (0, 0, 0, 3)


class DemoFailedError(PenstockError):
    """A demonstration did not do what it says."""

    exit_code = 1


class Story:
    """Shows what happens, and keeps count of what was expected."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.checked = 0
        self._steps = 0

    def step(self, text: str) -> None:
        """Begin a step."""
        self._steps += 1
        self.console.print(Text.assemble((f"{self._steps}. ", "bold cyan"), (text, "bold")))

    def note(self, text: str) -> None:
        """Say something about the step."""
        self.console.print(Padding(Text(text), INDENT))

    def expect(self, text: str, *, actual: object, wanted: object) -> None:
        """Show a result, and end the demonstration if it is not the expected one."""
        good = actual == wanted
        mark = ("✓", "green") if good else ("✗", "red")
        self.console.print(Padding(Text.assemble(mark, f" {text}"), INDENT))
        if not good:
            raise DemoFailedError(
                f"{text}: expected {wanted!r}, got {actual!r}", fix="see `penstock doctor`"
            )
        self.checked += 1

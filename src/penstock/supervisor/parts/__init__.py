"""The parts there are: one module each, named like the part, with a `part` in it.

A new part is a new module here; nothing else changes.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from penstock.config import Config
from penstock.errors import InvalidError, Problem, UsageError
from penstock.supervisor.part import Part


def known_parts() -> tuple[str, ...]:
    """Return the names of all parts, without loading any."""
    return tuple(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load_part(name: str) -> Part:
    """Return the part of a known name."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    part: Part = module.part
    return part


def configured_parts(config: Config) -> list[Part]:
    """Return the parts that the settings name; raise where there are none or unknown ones."""
    known = known_parts()
    problems = [
        Problem(config.place("parts", index), f"there is no part {name!r}", _hint(name, known))
        for index, name in enumerate(config.parts)
        if name not in known
    ]
    if problems:
        raise InvalidError(str(config.file or "parts"), problems)
    if not config.parts:
        raise UsageError("the settings name no part to run", fix="add one to `parts`")
    return [load_part(name) for name in config.parts]


def _hint(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"

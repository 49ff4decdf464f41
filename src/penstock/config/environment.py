"""Settings from environment variables: `PENSTOCK_STORE__URL` is `store.url`.

Rules that hold here:
- The name of a variable is `PENSTOCK_` and the way to the setting, in capitals, joined
  by two underscores. It goes before what the file says.
- A name with two underscores is meant as a setting: one that names none is a problem.
  So is one that would name a setting if its underscores were doubled. Other names that
  start with `PENSTOCK_` belong to others and are left alone.
- Where a list or a group is expected the value is written as in the file, on one line:
  `[a, b]`, `{key: value}`; a list of words may also be written with commas alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from penstock.errors import InvalidError
from penstock.yaml_text import Limits, read_documents

PREFIX = "PENSTOCK_"
BETWEEN = "__"
LIMITS = Limits(size=64 * 1024, depth=16, values=1000)


class EnvironmentText(str):
    """Text from the environment; it knows its variable, and there a secret may stand."""

    __slots__ = ("variable",)
    variable: str

    def __new__(cls, text: str, variable: str) -> Self:
        """Keep the name of the variable beside the text."""
        made = super().__new__(cls, text)
        made.variable = variable
        return made


def variable_of(path: tuple[str | int, ...]) -> str:
    """Return the name of the variable that sets the setting at `path`."""
    return PREFIX + BETWEEN.join(str(step) for step in path).upper()


def overrides(environ: Mapping[str, str]) -> dict[tuple[str, ...], EnvironmentText]:
    """Return the variables that may be settings, by the way that their names say."""
    return {
        tuple(name.removeprefix(PREFIX).lower().split(BETWEEN)): EnvironmentText(value, name)
        for name, value in sorted(environ.items())
        if name.startswith(PREFIX) and name != PREFIX
    }


def parse_value(text: EnvironmentText, *, plural: bool) -> Any:
    """Return what the text of a variable means: a list or group where `plural` says so."""
    if not plural:
        return text
    if text.lstrip().startswith(("[", "{")):
        try:
            (document,) = read_documents(text.encode(), text.variable, LIMITS)
        except (InvalidError, ValueError):
            return text  # the model will say that it is no list
        return text if document.problems else document.data
    words = [word.strip() for word in text.split(",")]
    return [EnvironmentText(word, text.variable) for word in words if word]

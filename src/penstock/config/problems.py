"""Turns what pydantic complains about into problems with a place and a fix.

No value is quoted that may hold a secret: not at a secret, not at a key that nobody
knows, not where a group of settings should stand.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.config.catalogue import ANY_NAME, Setting, keys_at, setting_at, settings_of
from penstock.config.settings import CONFLICT, WRONG, Settings
from penstock.errors import Problem, quote
from penstock.yaml_text import Source, Steps, dotted

_GROUP_ERRORS = {"model_type", "model_attributes_type", "dict_type", "mapping_type"}
_LIST_ERRORS = {"tuple_type", "list_type"}
_KEY = "[key]"
_POSITION = re.compile(r":([0-9]+):([0-9]+)(?: |$)")


def problems_of(error: ValidationError, model: type[Settings], source: Source) -> list[Problem]:
    """Return all that is wrong, but for values that could not even be read."""
    return [
        problem
        for detail in error.errors(include_url=False)
        if detail["loc"] not in source.problems
        for problem in _translate(detail, model, source)
    ]


def in_order(problems: list[Problem]) -> list[Problem]:
    """Sort problems by line and column; those of no file come last."""

    def position(problem: Problem) -> tuple[int, ...]:
        numbers = _POSITION.search(problem.place)
        return (0, int(numbers[1]), int(numbers[2])) if numbers else (1,)

    return sorted(problems, key=position)


def _translate(detail: ErrorDetails, model: type[Settings], source: Source) -> Iterator[Problem]:
    path: Steps = tuple(step for step in detail["loc"] if step != _KEY)
    context: dict[str, Any] = detail.get("ctx") or {}
    match detail["type"]:
        case kind if kind == CONFLICT:
            for conflict in context["conflicts"]:
                at = (*path, *(int(s) if s.isdigit() else s for s in conflict.setting.split(".")))
                yield Problem(source.place(at), conflict.message, conflict.fix)
        case kind if kind == WRONG:
            yield Problem(source.place(path), context["message"], context["fix"])
        case "extra_forbidden":
            yield unknown_key(model, path, source.place(path, key=True))
        case kind if kind in _GROUP_ERRORS:
            yield Problem(
                source.place(path),
                "a group of settings is expected here",
                "write `key: value` lines below it: " + ", ".join(keys_at(model, path) or ["NAME"]),
            )
        case kind if kind in _LIST_ERRORS:
            yield Problem(source.place(path), "a list is expected here", "write [ONE, TWO]")
        case _:
            setting = setting_at(model, path) or setting_at(model, path[:-1] or path)
            place = source.place(path, key=_KEY in detail["loc"])
            yield Problem(place, _message(detail, setting), _fix(setting))


def unknown_key(model: type[Settings], path: Steps, place: str) -> Problem:
    """Return the problem of a key that nobody knows, with what may have been meant."""
    *above, key = path
    known = list(keys_at(model, tuple(above)) or [])
    close = difflib.get_close_matches(str(key), known, n=1)
    elsewhere = [
        setting.name
        for setting in settings_of(model)
        if setting.path[-1] == key and ANY_NAME not in setting.path
    ]
    if close:
        fix = f"did you mean {close[0]!r}?"
    elif elsewhere:
        fix = f"did you mean {' or '.join(elsewhere)}?"
    else:
        fix = "remove it" + (f"; known here: {', '.join(known)}" if known else "")
    within = f" in {dotted(tuple(above))!r}" if above else ""
    return Problem(place, f"there is no setting {quote(key)}{within}", fix)


def _message(detail: ErrorDetails, setting: Setting | None) -> str:
    value = detail["input"]
    if setting is None or setting.secret:
        return "the value does not fit"
    if value is None:
        return "a value is missing"
    if isinstance(value, dict | list):
        return "a plain value is expected, not a group or a list"
    return f"{quote(value)} does not fit"


def _fix(setting: Setting | None) -> str:
    if setting is None:
        return "see the reference of the settings"
    hint = setting.form or setting.bounds
    return f"write {setting.kind}" + (f" ({hint})" if hint else "")

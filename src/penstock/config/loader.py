"""Finds penstock.yaml, parses it, applies the environment's overrides, and validates the whole.

Rules that hold here:
- The file is one YAML document of `key: value` lines, within small limits.
- All problems of the file and of the environment are reported at once.
- Only `load` and `find` look at the process's own environment and working folder.
- No value is quoted that may hold a secret: not at a secret, not at a key that nobody
  knows, not where a group of settings should stand.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.config.catalogue import ANY_NAME, Config, Setting, keys_at, setting_at, settings_of
from penstock.config.settings import (
    CONFLICT,
    WRONG,
    EnvironmentText,
    Settings,
    folders,
    overrides,
    parse_value,
)
from penstock.errors import InvalidError, Problem, UnavailableError, UsageError, quote
from penstock.yaml_text import Limits, Source, Steps, dotted, read_documents

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


# The file that `penstock init` writes has 10 KiB; a hostile one costs less than a second.
LIMITS = Limits(size=64 * 1024, depth=16, values=5000)
FILE_NAME = "penstock.yaml"
FILE_VARIABLE = "PENSTOCK_CONFIG"
CLOSE = 0.85


def read_file(path: Path) -> Source:
    """Read a settings file; raise `InvalidError` where it cannot be read to the end."""
    try:
        with path.open("rb") as file:
            content = file.read(LIMITS.size + 1)
    except OSError as error:
        raise UnavailableError(
            f"{quote(path)} cannot be read: {error.strerror}",
            fix="`penstock init` writes one; --config FILE names another",
        ) from None
    source = read_text(content, str(path))
    source.file = path.absolute()
    return source


def read_text(content: bytes, name: str) -> Source:
    """Read the text of a settings file named `name`."""
    documents = read_documents(content, name, LIMITS)
    source = documents[0] if documents else Source(name)
    if len(documents) > 1:
        raise _refused(documents[1], "a second document begins here", "keep one")
    if source.data is None:
        source.data = {}
    if not isinstance(source.data, dict):
        fix = "`penstock init` writes an example"
        raise _refused(source, "the file must hold `key: value` lines", fix)
    return source


def _refused(source: Source, message: str, fix: str) -> InvalidError:
    return InvalidError(source.name, [Problem(source.place(()), message, fix)])


def find(named: Path | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the settings file: the named one, else $PENSTOCK_CONFIG, else the one here."""
    if named is not None:
        return named
    variable = (os.environ if environ is None else environ).get(FILE_VARIABLE)
    if variable:
        return Path(variable)
    here = Path(FILE_NAME)
    return here if here.exists() else None


def load(named: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Load the settings; raise `InvalidError` with all problems, or say that there is no file."""
    environ = os.environ if environ is None else environ
    path = find(named, environ)
    if path is None:
        raise UsageError(
            f"there is no {FILE_NAME} in {quote(Path.cwd())}",
            fix="run `penstock init`, or name a file with --config FILE or $PENSTOCK_CONFIG",
        )
    return check(read_file(path), environ)


def defaults(base: Path, environ: Mapping[str, str] | None = None) -> Config:
    """Return the settings of an installation in `base` without a file."""
    environ = os.environ if environ is None else environ
    return check(Source("(no file)", data={}), environ, base=base)


def check(source: Source, environ: Mapping[str, str], *, base: Path | None = None) -> Config:
    """Lay the environment over what the file says, and check the whole."""
    problems = [*_unread(source), *_lay_over(source, environ)]
    base = base or (source.file.parent if source.file else Path.cwd())
    try:
        config = Config.model_validate(source.data, context=folders(base, source.data.get("data")))
    except ValidationError as error:
        problems += problems_of(error, Config, source)
    if problems:
        raise InvalidError(source.name, in_order(problems))
    config._source = source  # noqa: SLF001 - a private attribute of the model, set once here
    return config


def _unread(source: Source) -> Iterator[Problem]:
    """Yield what the reader noted, without the values it quotes: one may be a secret."""
    for path, problem in source.problems.items():
        if path[-1:] == ("?",) or _value_at(source.data, path) is not None:
            yield problem  # a key that is no word, or stands twice: no value is quoted
        else:
            message = "the value has a tag, or an escape that stands for no character"
            yield Problem(problem.place, message, "write a plain value")


def _value_at(data: Any, path: Steps) -> Any:
    for step in path:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _lay_over(source: Source, environ: Mapping[str, str]) -> list[Problem]:
    problems = []
    for path, text in overrides(environ).items():
        where = f"environment variable {text.variable}"
        setting = setting_at(Config, path)
        if setting is not None:
            value = parse_value(text, plural=setting.plural)
            if not _put(source.data, path, value):
                problems.append(
                    Problem(
                        where,
                        "the file has a plain value where this needs a group of settings",
                        f"fix {source.place(path[:1], key=True)}",
                    )
                )
            for length in range(1, len(path) + 1):
                source.keys.setdefault(path[:length], where)
            source.values[path] = source.keys[path] = where
        elif len(path) > 1:
            problems.append(unknown_key(Config, path, f"{where} ({dotted(path)})"))
        elif (meant := _meant(path[0])) is not None:
            problems.append(Problem(where, "this names no setting", f"did you mean {meant}?"))
    return problems


def _put(data: dict[str, Any], path: tuple[str, ...], value: EnvironmentText | list[Any]) -> bool:
    """Put a value at `path`, making the groups around it; False where one is no group."""
    *above, last = path
    for step in above:
        if data.get(step) is None:
            data[step] = {}
        if not isinstance(data[step], dict):
            return False
        data = data[step]
    data[last] = value
    return True


def _meant(name: str) -> str | None:
    """Return the variable that a name without two underscores was probably meant to be."""
    known = {
        "_".join(map(str, setting.path)).lower(): setting.variable
        for setting in settings_of(Config)
    }
    close = difflib.get_close_matches(name, known, n=1, cutoff=CLOSE)
    return known[close[0]] if close else None

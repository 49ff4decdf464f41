"""Every setting there is, read off the models, and the commented penstock.yaml with all of them.

`penstock init`, the reference, environment variables and the hints of error messages
all draw from here, so that none of them can drift from what is accepted.
"""

from __future__ import annotations

import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from penstock.config.root import Config
from penstock.config.secrets import Secret, SecretFile
from penstock.config.settings import BYTES, INITIAL, SECONDS, Settings, TypeLabel, variable_of
from penstock.yaml_text import Steps, dotted

ANY_NAME = "NAME"
"""Stands in a way for a name that the user chooses."""

SECRET_KEYS = ("file", "env")

_UNITS: Mapping[str, Mapping[str, float]] = {"a duration": SECONDS, "a size": BYTES}
_WORDS = {str: "text", int: "a number", float: "a number", bool: "true or false", Path: "a path"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, or a group of them."""

    path: Steps
    field: FieldInfo

    @property
    def name(self) -> str:
        """The way to it, as people write it."""
        return dotted(self.path)

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return variable_of(self.path)

    @property
    def value_type(self) -> Any:
        """Its Python type, without the `None` of a setting that may be left out."""
        return _bare(self.field.annotation)

    @property
    def group(self) -> type[Settings] | None:
        """The model of the settings below it, where it is a group."""
        return (
            self.value_type
            if isinstance(self.value_type, type) and issubclass(self.value_type, Settings)
            else None
        )

    @property
    def named_group(self) -> type[Settings] | None:
        """The model of each entry, where it is a mapping of names to groups."""
        each = self.each
        return each if _is_class(each, Settings) else None

    @property
    def each(self) -> Any:
        """The type of each entry, where it is a mapping of names."""
        return get_args(self.value_type)[1] if get_origin(self.value_type) is Mapping else None

    @property
    def plural(self) -> bool:
        """Whether its value is a list or a mapping."""
        return self.group is not None or get_origin(self.value_type) in {tuple, Mapping}

    @property
    def description(self) -> str:
        """What it means, in one line."""
        if self.group is not None:
            return self.group.__doc__ or ""
        return self.field.description or ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it can be, where only some are allowed."""
        return get_args(self.value_type) if get_origin(self.value_type) is Literal else ()

    @property
    def secret(self) -> bool:
        """Whether its value says where a secret is, or might be one by mistake."""
        return _is_class(self.value_type, Secret)

    @property
    def kind(self) -> str:
        """The words that people use for its type."""
        return _kind_of(self.field.annotation, self.field.metadata).word

    @property
    def form(self) -> str:
        """What it must look like, where its type does not say."""
        return _kind_of(self.field.annotation, self.field.metadata).form

    @property
    def bounds(self) -> str:
        """The least and the most it can be, as people write them."""
        if self.kind == "a port":
            return ""  # everyone knows them
        units = _UNITS.get(self.kind, {})
        least, most = "", ""
        for mark in _marks(self.field):
            match mark:
                case Ge(ge=bound):
                    least = _write(bound, units)
                case Gt(gt=bound):
                    least = f"more than {_write(bound, units)}"
                case Le(le=bound):
                    most = _write(bound, units)
                case Lt(lt=bound):
                    most = f"less than {_write(bound, units)}"
        return f"{least} to {most}" if least and most else (least and f"at least {least}") or most

    @property
    def default(self) -> Any:
        """Its default, as a person would write it; None where there is none."""
        return None if self.group is not None else self.field.default

    @property
    def initial(self) -> Any:
        """What a new settings file says: the default, unless the setting tells otherwise."""
        extra = self.field.json_schema_extra
        return extra[INITIAL] if isinstance(extra, dict) and INITIAL in extra else self.default


def settings_of(model: type[Settings], path: Steps = ()) -> Iterator[Setting]:
    """Yield the settings of `model` in order, each group before what is in it."""
    for name, field in model.model_fields.items():
        setting = Setting((*path, name), field)
        yield setting
        if setting.group is not None:
            yield from settings_of(setting.group, setting.path)
        elif setting.named_group is not None:
            yield from settings_of(setting.named_group, (*setting.path, ANY_NAME))


def keys_at(model: type[Settings], path: Steps) -> dict[str, Setting] | None:
    """Return the settings that can stand below `path`; None where names are free or none can."""
    below: type[Settings] | None = model
    steps = iter(path)
    for step in steps:
        setting = _child(below, str(step)) if below else None
        if setting is None:
            return None
        below = setting.group
        if setting.named_group is not None and next(steps, None) is not None:
            below = setting.named_group
    if below is None:
        return None
    return {name: Setting((*path, name), field) for name, field in below.model_fields.items()}


def setting_at(model: type[Settings], path: Steps) -> Setting | None:
    """Return the setting at `path`, or the secret that `path` says the place of."""
    *above, last = path
    known = keys_at(model, tuple(above)) or {}
    if str(last) in known:
        return known[str(last)]
    around = setting_at(model, tuple(above)) if above else None
    if around is None:
        return None
    if around.each is not None and around.named_group is None:
        return Setting(path, FieldInfo.from_annotation(around.each))
    return around if around.value_type is Secret and last in SECRET_KEYS else None


def _child(model: type[Settings], name: str) -> Setting | None:
    field = model.model_fields.get(name)
    return Setting((name,), field) if field else None


def _marks(field: FieldInfo) -> Iterator[Any]:
    """Yield the marks of a field; those of a type that may be left out stand further in."""
    yield from field.metadata
    for inner in get_args(field.annotation):
        for mark in getattr(inner, "__metadata__", ()):
            yield from mark.metadata if isinstance(mark, FieldInfo) else [mark]


def _bare(annotation: Any) -> Any:
    """Strip `None` and annotations off a type."""
    if get_origin(annotation) in {Union, types.UnionType}:
        return _bare(next(arg for arg in get_args(annotation) if arg is not type(None)))
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_class(found: Any, wanted: type) -> bool:
    return isinstance(found, type) and issubclass(found, wanted)


def _kind_of(annotation: Any, marks: Sequence[Any] = ()) -> TypeLabel:
    if get_origin(annotation) in {Union, types.UnionType}:
        return _kind_of(next(arg for arg in get_args(annotation) if arg is not type(None)), marks)
    if get_origin(annotation) is Annotated:
        marks = get_args(annotation)[1:]
    marked = [mark for mark in marks if isinstance(mark, TypeLabel)]
    return marked[0] if marked else _kind_of_bare(_bare(annotation))


def _kind_of_bare(bare: Any) -> TypeLabel:
    if get_origin(bare) is Literal:
        return TypeLabel("one of " + ", ".join(get_args(bare)))
    if get_origin(bare) is tuple:
        each = _kind_of(get_args(bare)[0])
        return TypeLabel(f"a list, each {each.word}", each.form)
    if get_origin(bare) is Mapping:
        name, each = map(_kind_of, get_args(bare))
        return TypeLabel(f"{{{name.word}: {each.word}}}", name.form or each.form)
    for base, word in (
        (SecretFile, "the path of a secret file"),
        (Secret, "{file: PATH} or {env: NAME}"),
        (Settings, "a group of settings"),
    ):
        if _is_class(bare, base):
            return TypeLabel(word)
    return TypeLabel(_WORDS.get(bare, str(bare)))


def _write(bound: Any, units: Mapping[str, float]) -> str:
    """Write a bound in the largest unit that divides it."""
    for unit, worth in sorted(units.items(), key=lambda item: -item[1]):
        if bound and round(bound / worth, 9) % 1 == 0:
            return f"{round(bound / worth)}{unit}"
    return str(bound)


WIDTH = 90
INDENT = "  "

HEAD = """\
# The settings of one installation of Penstock.
#
# Each setting stands here with its default, or with what suits a new installation. A line
# that you remove has its default.
# Environment variables go before this file: PENSTOCK_STORE__URL sets store.url.
# Relative paths start at the data folder, and the data folder at the folder of this file.
# Durations are written 250ms, 5s, 2m, 1h; sizes 512B, 64KiB, 1MiB.
# Secrets never stand here: write {file: PATH} (a file of mode 0600) or {env: NAME}.
# `penstock doctor` checks it all, and what it needs.
"""


def write_template() -> str:
    """Return the text of a penstock.yaml with the defaults."""
    return HEAD + "\n".join(_template_lines((), "")) + "\n"


def _template_lines(path: Steps, indent: str) -> Iterator[str]:
    for count, setting in enumerate((keys_at(Config, path) or {}).values()):
        if not path or (count and setting.plural):
            yield ""
        yield from _comment(setting, indent)
        key = f"{indent}{setting.path[-1]}:"
        if setting.group is not None:
            yield key
            yield from _template_lines(setting.path, indent + INDENT)
        elif setting.named_group is not None:
            yield key
            for name in setting.default:
                yield f"{indent}{INDENT}{name}:"
                yield from _template_lines((*setting.path, name), indent + 2 * INDENT)
        else:
            yield f"{key} {show(setting.initial)}"


def _comment(setting: Setting, indent: str) -> Iterator[str]:
    allowed = setting.kind if setting.choices else setting.bounds
    text = setting.description + (f" ({allowed})" if allowed else "")
    mark = f"{indent}# "
    yield from textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=mark)
    if setting.field.examples:
        yield f"{mark}For example: {' or '.join(setting.field.examples)}"


def show(value: Any) -> str:
    """Write a default as YAML; defaults are plain words, numbers and lists of these."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case tuple():
            return "[" + ", ".join(show(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{key}: {show(item)}" for key, item in value.items()) + "}"
    return str(value)

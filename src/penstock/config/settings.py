"""What every section of the settings is made of: the base model, types of values, variables.

Rules that hold here:
- Settings are frozen, and an unknown key is a problem, never ignored.
- Defaults are written as a person would write them in penstock.yaml (`5s`,
  `keys/audit.key`) and pass through the same checks as what a person writes.
- Relative paths start at the data folder, and the data folder at the folder of
  penstock.yaml; both come in through the validation context, so that a loaded path
  is absolute and means the same in every process.
- Durations are written `250ms` or `5s`, sizes `64KiB`; a plain number is seconds, or bytes.
- The name of a variable is `PENSTOCK_` and the way to the setting, in capitals, joined
  by two underscores. It goes before what the file says.
- A name with two underscores is meant as a setting: one that names none is a problem.
  So is one that would name a setting if its underscores were doubled. Other names that
  start with `PENSTOCK_` belong to others and are left alone.
- Where a list or a group is expected the value is written as in the file, on one line:
  `[a, b]`, `{key: value}`; a list of words may also be written with commas alone.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypedDict

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from penstock.errors import InvalidError, quote
from penstock.hadoop import is_remote, read_path
from penstock.yaml_text import Limits, read_documents

DEFAULT_DATA = "penstock-data"
WRONG = "wrong_setting"
CONFLICT = "conflicting_settings"
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# Digits are bounded so that no text from outside costs more than a glance.
_DURATION = re.compile(rf"([0-9]{{1,12}}(?:\.[0-9]{{1,9}})?)\s?({'|'.join(SECONDS)})?", re.ASCII)
_SIZE = re.compile(rf"([0-9]{{1,12}})\s?({'|'.join(BYTES)})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TypeLabel:
    """Marks a type with the word that people use for it, and the form it must have."""

    word: str
    form: str = ""


class Folders(TypedDict):
    """Where relative paths start: the validation context."""

    base: Path
    data: Path


def folders(base: Path, data: object = None) -> Folders:
    """Return where relative paths start for a file in `base` that names the folder `data`."""
    named = Path(data) if isinstance(data, str) and data else Path(DEFAULT_DATA)
    return {"base": base.absolute(), "data": base.absolute() / named.expanduser()}


def folders_of(info: ValidationInfo) -> Folders:
    """Return where relative paths start in this validation; without a file, the working folder."""
    return info.context or folders(Path.cwd())


def wrong(message: str, fix: str) -> PydanticCustomError:
    """Return the error that a validator raises: what is wrong, and how to fix it."""
    return PydanticCustomError(WRONG, "{message}", {"message": message, "fix": fix})


INITIAL = "initial"
"""Under this word a field tells what a new settings file says instead of the default."""


def setting(
    default: Any, description: str, *, examples: tuple[str, ...] = (), initial: Any = None
) -> Any:
    """Declare a setting: its default as a person would write it, and its meaning in one line.

    `initial` is what `penstock init` writes where a new installation should differ from one that
    has been running without this setting.
    """
    return Field(
        default=default,
        description=description,
        examples=list(examples) or None,
        json_schema_extra={INITIAL: initial} if initial is not None else None,
    )


def _from_data(path: Path, info: ValidationInfo) -> Path:
    found = read_path(path)
    if is_remote(found):
        raise wrong(f"{quote(found)} is no folder of this machine", "name one that is")
    path = found
    return folders_of(info)["data"] / path.expanduser()


def _from_store(path: Path, info: ValidationInfo) -> Path:
    found = read_path(path)
    return found if is_remote(found) else _from_data(found, info)


def _from_base(path: Path, info: ValidationInfo) -> Path:
    return folders_of(info)["base"] / path.expanduser()


DataPath = Annotated[Path, AfterValidator(_from_data), TypeLabel("a path")]
"""A path that starts at the data folder unless it is absolute."""

StorePath = Annotated[Path, AfterValidator(_from_store), TypeLabel("a path or a URI")]
"""A path as `DataPath`, or one of a file system that Hadoop knows: `hdfs://HOST:PORT/…`."""

MUST_EXIST = "must exist"
"""Marks a path of a file that somebody else makes: where it is named, it has to be there."""

InputFile = Annotated[Path, AfterValidator(_from_data), TypeLabel("a path"), MUST_EXIST]
"""The path of a file that has to exist; it starts at the data folder unless it is absolute."""

BasePath = Annotated[Path, AfterValidator(_from_base), TypeLabel("a path")]
"""A path that starts at the folder of penstock.yaml unless it is absolute."""

Host = Annotated[
    str,
    Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9._:%-]+$"),
    TypeLabel("a host", "a name or an address, without brackets and port"),
]
"""A host name, or an address of IPv4 or IPv6 without brackets."""


def is_loopback(host: str) -> bool:
    """Say whether an address is of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


Port = Annotated[int, Field(ge=0, le=65535), TypeLabel("a port")]
"""A TCP port; 0 lets the system choose where the setting says so."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Settings that are right one by one and wrong together."""

    setting: str
    message: str
    fix: str


class Settings(BaseModel):
    """A group of settings that stand under one key."""

    # Built once, with the whole, at the first use.
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _fill_groups(cls, data: Any) -> Any:
        # A group that is left out, or whose lines are all commented out, still has to
        # be validated in this context: its defaults may hold relative paths.
        if not isinstance(data, dict):
            return data
        empty: dict[str, Any] = {
            name: {}
            for name in groups(cls)
            if data.get(name) is None  # absent, or `name:` with nothing below
        }
        return {**data, **empty}

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Self:
        found = list(self.conflicts())
        if found:
            raise PydanticCustomError(CONFLICT, "settings conflict", {"conflicts": found})
        return self

    def conflicts(self) -> Iterator[Conflict]:
        """Yield what no single setting shows; each is reported at the setting it names."""
        return iter(())


def groups(model: type[Settings]) -> dict[str, type[Settings]]:
    """Return the fields of `model` that are groups of settings themselves."""
    return {
        name: field.annotation
        for name, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings)
    }


def parse_duration(value: Any) -> float:
    """Return the seconds that `value` means."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value >= 0 and math.isfinite(value):
            return float(value)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match[1]) * SECONDS[match[2] or "s"]
    raise wrong(
        f"{quote(value)} is not a duration",
        f"write a number with a unit ({', '.join(SECONDS)}), such as 5s",
    )


def parse_size(value: Any) -> int:
    """Return the bytes that `value` means."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value >= 0:
            return value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        return int(match[1]) * BYTES[match[2] or "B"]
    raise wrong(
        f"{quote(value)} is not a size",
        f"write a whole number with a unit ({', '.join(BYTES)}), such as 64KiB",
    )


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": ["string", "number"]}),
    TypeLabel("a duration"),
]
"""Seconds, written as `5s`."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": ["string", "integer"]}),
    TypeLabel("a size"),
]
"""Bytes, written as `64KiB`."""


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

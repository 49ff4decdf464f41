"""What every section of the settings is made of: the base model, paths, problems.

Rules that hold here:
- Settings are frozen, and a key that nobody knows is a problem, never ignored.
- Defaults are written as a person would write them in penstock.yaml (`5s`,
  `keys/audit.key`) and pass through the same checks as what a person writes.
- Relative paths start at the data folder, and the data folder at the folder of
  penstock.yaml; both come in through the validation context, so that a loaded path
  is absolute and means the same in every process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypedDict

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

DEFAULT_DATA = "penstock-data"
WRONG = "wrong_setting"
CONFLICT = "conflicting_settings"


@dataclass(frozen=True, slots=True)
class Kind:
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
    """Return the error that a validator raises: what is wrong, and how to mend it."""
    return PydanticCustomError(WRONG, "{message}", {"message": message, "fix": fix})


def setting(default: Any, description: str, *, examples: tuple[str, ...] = ()) -> Any:
    """Declare a setting: its default as a person would write it, and its meaning in one line."""
    return Field(default=default, description=description, examples=list(examples) or None)


def _from_data(path: Path, info: ValidationInfo) -> Path:
    return folders_of(info)["data"] / path.expanduser()


def _from_base(path: Path, info: ValidationInfo) -> Path:
    return folders_of(info)["base"] / path.expanduser()


DataPath = Annotated[Path, AfterValidator(_from_data), Kind("a path")]
"""A path that starts at the data folder unless it is absolute."""

BasePath = Annotated[Path, AfterValidator(_from_base), Kind("a path")]
"""A path that starts at the folder of penstock.yaml unless it is absolute."""

Host = Annotated[
    str,
    Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9._:%-]+$"),
    Kind("a host", "a name or an address, without brackets and port"),
]
"""A host name, or an address of IPv4 or IPv6 without brackets."""

Port = Annotated[int, Field(ge=0, le=65535), Kind("a port")]
"""A TCP port; 0 lets the system choose where the setting says so."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Settings that are right one by one and wrong together."""

    setting: str
    message: str
    fix: str


class Settings(BaseModel):
    """A group of settings that stand under one key."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

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

"""Definitions: documents that a model has given meaning, and the registry of their kinds.

Rules that hold here:
- A kind is a frozen pydantic model, registered with `@register`. Reading, checking,
  storing, comparing and printing follow from the model: a later part adds a kind by
  registering one, and nothing else changes.
- A kind says what it concerns (`Concern`); those who follow definitions ask for the kinds
  of a concern (`penstock.model.kinds.kinds_of`) and keep no lists of their own.
- What a field means beyond its type is said by a marker in its annotation:
  `Reference("purpose")` names another definition, `ExpressionText` is checked against
  the vocabularies. Markers work at any depth of lists, maps and nested models.
- Unknown fields are refused: a misspelt restriction must never be a silent permission.
- Keys are written in snake_case, at every depth.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from penstock.model.document import Document, Key

NAME_LIMIT = 256

Steps = tuple[str | int, ...]
"""The way from a document's root to one of its values."""


class Concern(enum.Flag):
    """What definitions of a kind take part in; many take part in several."""

    PURPOSES = enum.auto()
    """What topics may be used for."""
    COMMANDS = enum.auto()
    """Who may give commands."""
    CLAIMS = enum.auto()
    """Who may subscribe for which purposes."""
    ACCESS = enum.auto()
    """Who may read and write what: rules, settings, and the attributes they look at."""
    RULES = enum.auto()
    """Of access: what grants or limits by itself."""
    SETTINGS = enum.auto()
    """Of access: what tells how emergency policies and all rules together are meant."""
    EVENTS = enum.auto()
    """What is detected."""
    VIEWS = enum.auto()
    """Which records are anonymized, and how."""
    KAFKA = enum.auto()
    """Who may do what at the event log."""
    ROLES = enum.auto()
    """Who has which roles."""
    INTERACTION = enum.auto()
    """Which messages reach whom in which context, and what of them."""
    STATE = enum.auto()
    """What commands on the purpose state did, for those who have to follow them."""
    CONTROLS = enum.auto()
    """What people can choose and ask for, and who honours it."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Marks a text that names a definition of another kind.

    `acyclic`: following these references must never lead back to the start.
    `when_declared`: names are free until the set holds a definition of that kind.
    `prefix`: only a text that begins so is a reference, and the name is what follows.
    `until`: the name ends before this, where it occurs.
    `fix`: what to do where it leads nowhere, if that is not plain.
    """

    kind: str
    acyclic: bool = False
    when_declared: bool = False
    prefix: str = ""
    until: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class ExpressionText:
    """Marks a text that is an expression with a result of this type.

    `over`: what it sees. A message with s, o, e and t; an event the same with `e.zone`; a case
    the subject s and the case c: of a scenario, or in a situation.
    """

    result: str = "bool"
    over: Literal["message", "event", "scenario", "situation"] = "message"


Marker = Reference | ExpressionText


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?", name):
        raise ValueError("use letters, digits and . _ - / between them, such as ward-3/night-shift")
    return name


PlainName = Annotated[str, Field(min_length=1, max_length=NAME_LIMIT), AfterValidator(_check_name)]
Description = Annotated[str, Field(max_length=2000)]


def to_snake_case(key: str) -> str:
    """Return a key as definitions spell it: `bucketSize` as `bucket_size`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()


class Part(BaseModel):
    """A nested piece of a definition: frozen, and strict about unknown fields."""

    # Validators are built at the first use: a command builds those of the kinds that it meets.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Definition(Part):
    """The base of every kind: a name and a description for people."""

    kind: ClassVar[str]
    concerns: ClassVar[Concern]
    summary: ClassVar[str]

    name: PlainName = Field(description="What this definition is called; unique for its kind.")
    description: Description = Field(default="", description="What it is for, in a sentence.")

    @property
    def key(self) -> Key:
        """What names this definition."""
        return Key(self.kind, self.name)

    def implied(self) -> Iterator[tuple[Marker, Steps, str]]:
        """Yield references that no field spells out, such as a purpose's parent."""
        return iter(())

    def document(self) -> Document:
        """Return the definition as data, without the fields that hold their default."""
        body = self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"name"})
        return Document(self.kind, self.name, body)


KINDS: dict[str, type[Definition]] = {}

AnyDefinition = TypeVar("AnyDefinition", bound=Definition)


def register(model: type[AnyDefinition]) -> type[AnyDefinition]:
    """Make a kind known. The model's docstring says in one line what it is."""
    if model.kind in KINDS:
        raise ValueError(f"the kind {model.kind!r} is registered twice")
    model.summary = (model.__doc__ or "").strip().splitlines()[0]
    KINDS[model.kind] = model
    return model


def marked(definition: Definition) -> Iterator[tuple[Marker, Steps, str]]:
    """Yield every marked text of a definition, with its marker and its place."""
    yield from _marked_fields(definition, ())
    yield from definition.implied()


def _marked_fields(model: BaseModel, path: Steps) -> Iterator[tuple[Marker, Steps, str]]:
    for name, field in type(model).model_fields.items():
        markers = [item for item in field.metadata if isinstance(item, Reference | ExpressionText)]
        step = field.alias or name
        yield from _marked_value(field.annotation, markers, getattr(model, name), (*path, step))


def _marked_value(
    annotation: Any, markers: list[Marker], value: Any, path: Steps
) -> Iterator[tuple[Marker, Steps, str]]:
    if value is None:
        return
    if isinstance(value, BaseModel):
        yield from _marked_fields(value, path)
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        found = [item for item in arguments[1:] if isinstance(item, Reference | ExpressionText)]
        yield from _marked_value(arguments[0], [*markers, *found], value, path)
    elif origin in {Union, types.UnionType}:
        for choice in arguments:
            yield from _marked_value(choice, markers, value, path)
    elif isinstance(value, str):
        if annotation is str:
            for marker in markers:
                yield marker, path, value
    else:
        for item_annotation, step, item in _items(arguments, value):
            yield from _marked_value(item_annotation, [], item, (*path, step))


def _items(arguments: tuple[Any, ...], value: Any) -> Iterator[tuple[Any, str | int, Any]]:
    """Yield what a collection holds: the annotation, the step and the value of each item."""
    if isinstance(value, Mapping) and arguments:
        for name, item in value.items():
            yield arguments[1], name, item
    elif isinstance(value, list | tuple) and arguments:
        for index, item in enumerate(value):
            yield arguments[0], index, item

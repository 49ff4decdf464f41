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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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
    TRUST = enum.auto()
    """What crosses the borders of a domain, and who lets whom do what there."""
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


Found = tuple[Marker, Steps, str]
Walk = Callable[[Any, Steps], Iterator[Found]]
"""Yields the marked texts of a value that stands at a place."""

KINDS: dict[str, type[Definition]] = {}

AnyDefinition = TypeVar("AnyDefinition", bound=Definition)


def register(model: type[AnyDefinition]) -> type[AnyDefinition]:
    """Make a kind known. The model's docstring says in one line what it is."""
    if model.kind in KINDS:
        raise ValueError(f"the kind {model.kind!r} is registered twice")
    model.summary = (model.__doc__ or "").strip().splitlines()[0]
    KINDS[model.kind] = model
    return model


def marked(definition: Definition) -> Iterator[Found]:
    """Yield every marked text of a definition, with its marker and its place."""
    yield from _marked_fields(definition, ())
    yield from definition.implied()


def _marked_fields(model: BaseModel, path: Steps) -> Iterator[Found]:
    for name, step, walk in _walks(type(model)):
        yield from walk(getattr(model, name), (*path, step))


@cache
def _walks(model: type[BaseModel]) -> tuple[tuple[str, str, Walk], ...]:
    """Return the fields of a model that may hold marked texts, and how to find them there.

    Annotations are read once for each model: a set has as many definitions as a store holds.
    """
    walks = []
    for name, field in model.model_fields.items():
        walk = _make_walk(field.annotation, _markers_of(field.metadata))
        if walk is not None:
            walks.append((name, field.alias or name, walk))
    return tuple(walks)


def _markers_of(items: Iterable[Any]) -> tuple[Marker, ...]:
    return tuple(item for item in items if isinstance(item, Reference | ExpressionText))


def _make_walk(annotation: Any, markers: tuple[Marker, ...]) -> Walk | None:
    """Return what finds the marked texts of a value; None where there cannot be any."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _make_walk(arguments[0], (*markers, *_markers_of(arguments[1:])))
    if origin in {Union, types.UnionType}:
        choices = [walk for it in arguments if (walk := _make_walk(it, markers)) is not None]
        return _walk_choices(choices) if choices else None
    if annotation is str:
        return _walk_text(markers) if markers else None
    if isinstance(origin, type) and issubclass(origin, Mapping | list | tuple):
        is_mapping = issubclass(origin, Mapping)
        inner = _make_walk(arguments[1 if is_mapping else 0], ())
        return inner and (_walk_mapping(inner) if is_mapping else _walk_list(inner))
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return _walk_model if is_model else None


def _walk_model(value: Any, path: Steps) -> Iterator[Found]:
    return _marked_fields(value, path) if isinstance(value, BaseModel) else iter(())


def _walk_text(markers: tuple[Marker, ...]) -> Walk:
    def walk(value: Any, path: Steps) -> Iterator[Found]:
        if isinstance(value, str):
            for marker in markers:
                yield marker, path, value

    return walk


def _walk_choices(choices: Sequence[Walk]) -> Walk:
    def walk(value: Any, path: Steps) -> Iterator[Found]:
        if isinstance(value, BaseModel):  # whichever of the choices it is
            yield from _marked_fields(value, path)
            return
        for choice in choices:
            yield from choice(value, path)

    return walk


def _walk_mapping(inner: Walk) -> Walk:
    def walk(value: Any, path: Steps) -> Iterator[Found]:
        if isinstance(value, Mapping):
            for name, item in value.items():
                yield from inner(item, (*path, name))

    return walk


def _walk_list(inner: Walk) -> Walk:
    def walk(value: Any, path: Steps) -> Iterator[Found]:
        if isinstance(value, list | tuple):
            for index, item in enumerate(value):
                yield from inner(item, (*path, index))

    return walk

"""The whole of penstock.yaml: its model, every setting there is, and a commented file of them.

A new part adds its model in `sections` and its field in `Config`; loading, environment variables,
`penstock init`, the reference and `penstock doctor` follow from the models.

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
from pydantic import AfterValidator, Field, PrivateAttr
from pydantic.fields import FieldInfo

from penstock.config.brokers import BrokerSettings, KafkaSettings
from penstock.config.console import ConsoleSettings
from penstock.config.gateway import GatewaySettings, RecordingSettings
from penstock.config.installation import (
    AuditSettings,
    ConsentSettings,
    LogSettings,
    MonitorSettings,
    PipelineSettings,
    StoreSettings,
    SupervisorSettings,
    TrustSettings,
)
from penstock.config.rights import RightsSettings, ServerSettings
from penstock.config.secrets import Secret, SecretFile
from penstock.config.settings import (
    BYTES,
    DEFAULT_DATA,
    INITIAL,
    MUST_EXIST,
    SECONDS,
    BasePath,
    Settings,
    TypeLabel,
    setting,
    variable_of,
    wrong,
)
from penstock.errors import UnavailableError, quote
from penstock.yaml_text import Source, Steps, dotted

PartName = Annotated[
    str,
    Field(pattern=r"^[a-z][a-z0-9-]{0,31}$"),
    TypeLabel("a name", "at most 32 small letters, digits and hyphens, a letter first"),
]


def _refuse_twins(names: tuple[str, ...]) -> tuple[str, ...]:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise wrong(f"the part {name!r} is named twice", "keep one")
    return names


class Config(Settings):
    """The settings of one installation of Penstock."""

    data: BasePath = setting(DEFAULT_DATA, "The folder of all that Penstock keeps.")
    parts: Annotated[tuple[PartName, ...], Field(max_length=64), AfterValidator(_refuse_twins)] = (
        Field(default=("broker", "gateway"), description="The parts that `penstock up` runs.")
    )
    store: StoreSettings = Field(default_factory=StoreSettings)
    audit: AuditSettings = Field(default_factory=AuditSettings)
    consent: ConsentSettings = Field(default_factory=ConsentSettings)
    rights: RightsSettings = Field(default_factory=RightsSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    monitor: MonitorSettings = Field(default_factory=MonitorSettings)
    broker: BrokerSettings = Field(default_factory=BrokerSettings)
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    recording: RecordingSettings = Field(default_factory=RecordingSettings)
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    pipeline: PipelineSettings = Field(default_factory=PipelineSettings)
    server: ServerSettings = Field(default_factory=ServerSettings)
    console: ConsoleSettings = Field(default_factory=ConsoleSettings)
    trust: TrustSettings = Field(default_factory=TrustSettings)
    supervisor: SupervisorSettings = Field(default_factory=SupervisorSettings)

    _source: Source | None = PrivateAttr(default=None)

    @property
    def file(self) -> Path | None:
        """The file that these settings were loaded from, if they were."""
        return self._source.file if self._source else None

    def place(self, *path: str | int) -> str:
        """Say where the setting at `path` was written, for an error message."""
        return self._source.place(path) if self._source else ".".join(map(str, path))

    def secrets(self) -> Iterator[tuple[Steps, Secret]]:
        """Yield every secret that these settings name, with its setting."""
        return ((path, it) for path, it, _ in _walk(self, ()) if isinstance(it, Secret))

    def input_files(self, *sections: str) -> Iterator[tuple[Steps, Path]]:
        """Yield every file that these settings name and that has to exist, with its setting."""
        for path, it, must_exist in _walk(self, ()):
            if must_exist and isinstance(it, Path) and (not sections or path[0] in sections):
                yield path, it

    def require_files(self, *sections: str) -> None:
        """Raise what is wrong with the files that settings of these sections name."""
        for path, file in self.input_files(*sections):
            problem = find_problem(file)
            if problem is not None:
                raise UnavailableError(
                    f"{dotted(path)}: the file {quote(file)} cannot be read: {problem}",
                    fix="put it there, or name another in penstock.yaml",
                )


def find_problem(file: Path) -> str | None:
    """Say why a file cannot be read, if it cannot."""
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


def _walk(value: Any, path: Steps, *, marked: bool = False) -> Iterator[tuple[Steps, Any, bool]]:
    """Yield every single value, with its setting and whether it is a file that has to exist."""
    if isinstance(value, Settings):
        for name, field in type(value).model_fields.items():
            inner = any(
                MUST_EXIST in getattr(it, "__metadata__", ()) for it in get_args(field.annotation)
            )
            yield from _walk(getattr(value, name), (*path, name), marked=inner)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _walk(item, (*path, name))
    else:
        yield path, value, marked


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
    for count, each in enumerate((keys_at(Config, path) or {}).values()):
        if not path or (count and each.plural):
            yield ""
        yield from _comment(each, indent)
        key = f"{indent}{each.path[-1]}:"
        if each.group is not None:
            yield key
            yield from _template_lines(each.path, indent + INDENT)
        elif each.named_group is not None:
            yield key
            for name in each.default:
                yield f"{indent}{INDENT}{name}:"
                yield from _template_lines((*each.path, name), indent + 2 * INDENT)
        else:
            yield f"{key} {show(each.initial)}"


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

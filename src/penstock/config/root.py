"""The whole of penstock.yaml: one field for each section.

A new part adds its model in `sections` and its field here; loading, environment
variables, `penstock init`, the reference and `penstock doctor` follow from the models.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, Field, PrivateAttr

from penstock.config.secrets import Secret
from penstock.config.sections.brokers import BrokerSettings, KafkaSettings
from penstock.config.sections.gateway import GatewaySettings, RecordingSettings
from penstock.config.sections.installation import (
    AuditSettings,
    ConsentSettings,
    LogSettings,
    MonitorSettings,
    PipelineSettings,
    StoreSettings,
    SupervisorSettings,
)
from penstock.config.sections.rights import RightsSettings, ServerSettings
from penstock.config.settings import (
    DEFAULT_DATA,
    MUST_EXIST,
    BasePath,
    Settings,
    TypeLabel,
    setting,
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

"""Whom a record of a stream is about, and what a view makes of the person.

    record ──▶ StreamRecords ──▶ is it about the person?
    person ──▶ trace_view ──▶ what stands in the view's records instead, and tokens in the vault

Rules that hold here:
- A record is about the person whom the field `subject` of its stream names, as text, exactly:
  neither a part of a longer name, nor a pattern.
- The key of a record counts only where the gateway could not read the message: elsewhere a key
  may be anything, such as the number of a chunk. Where the stream is sealed, the mark of the
  person is the key.
- A view's records are the person's where the name passes as it is, or becomes a token. Behind
  any other anonymizer nobody can tell whose they are: such a view has no trace.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Final, Protocol

import fastavro

from penstock.config import Config
from penstock.definitions import DefinitionSet
from penstock.definitions.views import ViewPlan, hierarchies_of, plan_view, schema_of
from penstock.eventlog import Record
from penstock.hadoop import is_remote
from penstock.json_text import UNREAD
from penstock.masks import Chain, Tokenization
from penstock.masks.fields import CHECKS, TEXTS, FieldType, avro_names, avro_schema, read_text
from penstock.masks.mask import Mask, Stage
from penstock.model.kinds import Hierarchy, Stream, View
from penstock.store.opt_outs import SubjectMarks
from penstock.store.sealed_records import KeyAddress

_CHUNK: Final = 10_000
ABSENT: Final = (
    "the worker has no such folder: what is on another machine, or at a store such as HDFS, is "
    "there still, unless nothing was ever written"
)


def find_absent(config: Config, definitions: DefinitionSet) -> list[str]:
    """Return what is kept where this worker does not reach it.

    A worker elsewhere than the files would find nothing, and take that for all there is.
    """
    recorded = any(it.source is None and it.patterns for it in definitions.of(Stream).values())
    published = bool(definitions.of(View))
    places = [
        ("event log", config.pipeline.event_log, recorded),
        ("views", config.pipeline.folder, published),
    ]
    if config.pipeline.store is not None:
        places.append(
            (f"files of views at {config.pipeline.store}", config.pipeline.store, published)
        )
    return [
        name for name, folder, used in places if used and (is_remote(folder) or not folder.is_dir())
    ]


def open_records(config: Config, stream: Stream, records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records of a stream as they were written."""
    if stream.sealed is None and stream.erasure != "shred":
        yield from records
        return
    address = KeyAddress.of(config)
    layers, left = address.layers(stream), iter(records)
    while some := list(islice(left, _CHUNK)):
        opened = address.open(layers, [it.value for it in some])
        for record, value in zip(some, opened, strict=True):
            yield record._replace(value=value or b"")


class StreamRecords:
    """The records of a stream that are about one person."""

    def __init__(self, stream: Stream, person: str, marks: SubjectMarks | None = None) -> None:
        """Take what marks people, where records may be sealed: their keys are marks then."""
        self.stream = stream
        self._person = person
        self.mark = marks.of(person) if marks is not None and stream.sealed is not None else None
        self._schema = schema_of(stream)
        self._kind = self._schema[stream.subject].type if stream.subject else None

    @property
    def needle(self) -> bytes | None:
        """Bytes that such a record holds in one of its spellings; None where that is not known."""
        told = self._kind is FieldType.STRING and not _is_json(self._person)
        return self._person.encode() if told and self.stream.format != "avro" else None

    @property
    def is_telling(self) -> bool:
        """Whether the stream says whom its records are about, in a type that names can have."""
        return self._kind in TEXTS and self._kind is not FieldType.TIMESTAMP

    def is_about(self, record: Record) -> bool:
        """Say whether a record is about the person."""
        if self.mark is not None and record.key == self.mark.encode():
            return True
        fields = self.read(record.value)
        if fields is None:
            return record.value.startswith(UNREAD) and record.key == self._person.encode()
        return self.write(fields.get(self.stream.subject or "")) == self._person

    def read(self, value: bytes) -> Mapping[str, Any] | None:
        """Return the fields of a value; None where it is no record."""
        if self.stream.format == "avro":
            return self._read_avro(value)
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return None
        if self.stream.format == "connect":
            found = found.get("payload") if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None

    def write(self, value: Any) -> str | None:
        """Return what names a person in a record as text; None where nobody is named."""
        kind = self._kind
        if kind is None or value is None:
            return None
        if kind is FieldType.STRING and type(value) is not str:
            # Texts may be written as numbers or objects: Spark takes their JSON.
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        if kind is FieldType.DATE and type(value) is str:
            return value
        known = CHECKS[kind](value)
        return TEXTS[kind](known) if known is not None and kind in TEXTS else None

    @cached_property
    def _avro(self) -> tuple[Any, Mapping[str, str]]:
        return fastavro.parse_schema(avro_schema(self._schema)), avro_names(self._schema)

    def _read_avro(self, value: bytes) -> Mapping[str, Any] | None:
        schema, names = self._avro
        found: Any
        try:
            found = fastavro.schemaless_reader(io.BytesIO(value), schema, None)
        except Exception:  # noqa: BLE001 - bytes from outside make decoders fail in many ways
            return None
        return {name: found.get(called) for name, called in names.items()}


def _is_json(text: str) -> bool:
    """Say whether a text may stand in a record without quotes, and be written in other ways."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class Trace(Protocol):
    """What tells a person's rows in files."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that tell it."""

    @property
    def value(self) -> str | None:
        """What stands in the only column of a person's rows, where that tells it."""

    def is_about(self, fields: Mapping[str, Any]) -> bool:
        """Say whether a row is the person's."""


@dataclass(frozen=True, slots=True)
class ResultTrace:
    """A person in the results of a detection: as the subject, or among what an event says."""

    person: str
    attributes: frozenset[str]
    """Attributes of events that name people."""

    columns: ClassVar[tuple[str, ...]] = ("subject", "said")
    value: ClassVar[str | None] = None

    def is_about(self, fields: Mapping[str, Any]) -> bool:
        """Say whether a result is about the person."""
        if fields.get("subject") == self.person:
            return True
        said = json.loads(fields.get("said") or "{}")
        return any(str(said[name]) == self.person for name in self.attributes & said.keys())


@dataclass(frozen=True, slots=True)
class ViewTrace:
    """What stands in the records of a view for a person."""

    view: View
    stream: Stream
    field: str
    value: str | None
    """As text; None where the records do not tell whose they are."""
    tokens: tuple[tuple[str, str], ...] = ()
    """Entries of vaults: name and token."""
    keyless: bool = False
    """Whether it could be told with the key of masks, which is not at hand."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The column that tells whose a row is."""
        return (self.field,)

    def is_about(self, fields: Mapping[str, Any]) -> bool:
        """Say whether a record of the view is the person's."""
        found = fields.get(self.field)
        return self.value is not None and found is not None and str(found) == self.value


def trace_views(definitions: DefinitionSet, secret: bytes | None, person: str) -> list[ViewTrace]:
    """Return the trace of a person in every view."""
    hierarchies = hierarchies_of({it.key: it for it in definitions.of(Hierarchy).values()})
    made = []
    for _, view in sorted(definitions.of(View).items()):
        stream = definitions.get(Stream, view.stream)
        if stream is None:
            continue
        subject = stream.subject or ""
        plan = plan_view(view, stream, hierarchies)
        tracer = _Tracer(plan, view, secret, hierarchies)
        value, tokens, keyless = None, tuple[tuple[str, str], ...](), False
        if subject in plan.output and not _touches(plan, subject):
            value, tokens = tracer.trace(subject, person)
            keyless = value is None and tracer.is_keyless(subject)
        made.append(ViewTrace(view, stream, subject, value, tokens, keyless))
    return made


def find_tokens(
    view: View, stream: Stream, definitions: DefinitionSet, secret: bytes, record: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the vault entries of a record's identifiers: name of the vault and token."""
    hierarchies = hierarchies_of({it.key: it for it in definitions.of(Hierarchy).values()})
    tracer = _Tracer(plan_view(view, stream, hierarchies), view, secret, hierarchies)
    for name in stream.named("identifier"):
        value = record.get(name)
        if value is not None:
            yield from tracer.trace(name, str(value))[1]


@dataclass(slots=True)
class _NoVault:
    """Keeps nothing but the names of entries."""

    tokens: list[tuple[str, str]] = field(default_factory=list)

    def put(self, vault: str, entries: Mapping[str, bytes]) -> None:
        """Note which entries these would be."""
        self.tokens += [(vault, token) for token in entries]

    def get(self, vault: str, token: str) -> bytes | None:  # noqa: ARG002 - as vaults are asked
        """Return nothing."""
        return None


class _Tracer:
    """Runs values of one field through the masks of a view."""

    def __init__(
        self, plan: ViewPlan, view: View, secret: bytes | None, hierarchies: Mapping[str, Any]
    ) -> None:
        self._plan = plan
        self._vault = _NoVault()
        self._keyless = secret is None
        chains: tuple[Chain | None, ...] = ()
        if secret is not None:
            chains = plan.make_chains(view.name, secret, hierarchies, self._vault)
        self._stages = [it for chain in chains if chain is not None for it in chain.stages]

    def is_keyless(self, name: str) -> bool:
        """Say whether tokens of a field could be told if there were a key."""
        touching = self._touching(name)
        known = all(isinstance(it, Tokenization) for it in touching)
        return self._keyless and bool(touching) and known

    def _touching(self, name: str) -> list[Mask]:
        return [it for it in (*self._plan.before, *self._plan.after) if name in it.keys]

    def trace(self, name: str, text: str) -> tuple[str | None, tuple[tuple[str, str], ...]]:
        """Return what a text of a field becomes, and its entries in vaults."""
        touching = self._touching(name)
        value = read_text(self._plan.schema[name].type, text)
        if value is None or not all(isinstance(it, Tokenization) for it in touching):
            return None, ()
        if touching and self._keyless:
            return None, ()
        self._vault.tokens.clear()
        for mask, stage in self._stages:
            if name in mask.keys:
                value = _transform(mask, stage, name, value)
                if value is None:
                    return None, tuple(self._vault.tokens)
        return str(value), tuple(self._vault.tokens)


def _transform(mask: Mask, stage: Stage, name: str, value: Any) -> Any:
    return mask.transform(stage.target(name))(value, "")


def _touches(plan: ViewPlan, name: str) -> bool:
    """Say whether a step over many records changes a field."""
    for step in plan.stateful:
        parts = (*getattr(step, "quasi_identifiers", ()), *getattr(step, "sensitive", ()))
        if name in {*getattr(step, "keys", ()), *(part.key for part in parts)}:
            return True
    return False

"""Streams: what personal data flows, under which topic, with which fields.

Rules that hold here:
- Field lists of Avro and of Kafka Connect are taken as they are: `int32`, `["int", "null"]`
  and `{"field": …}` become our words, so that what is stored has one notation.
- Two fields never differ in case alone: Spark and many consumers could not tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from penstock.errors import quote
from penstock.model.definition import (
    NAME_LIMIT,
    Concern,
    Definition,
    Part,
    PlainName,
    Reference,
    register,
)
from penstock.model.kinds.fields import AHEAD, Milliseconds, TopicPattern, named_levels

RESERVED: Final = "penstock:"
"""How the names of columns begin that the pipeline adds on the way."""
FIELD_LIMIT: Final = 1000
PATTERN_LIMIT: Final = 100
TOPIC_LIMIT: Final = 249
PATH_LIMIT: Final = 4096
BEHIND: Final = 7 * 24 * 3600 * 1000
"""For how many milliseconds a device may keep its messages before they are too old."""
TOPIC_CHARACTERS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)

_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
"""A name that others would write for a field of an object in an object."""

# Names of types that others use → ours. Avro's int and long are ours already.
TYPE_NAMES: Final[Mapping[str, str]] = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "double32": "double",
    "bool": "boolean",
    "text": "string",
}
LEVEL_TYPES: Final = frozenset({"string", "int", "long"})
"""What a level of a topic can be."""
LOGICAL_TYPES: Final[Mapping[str, str]] = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
}


def check_topic(name: str) -> str:
    """Refuse what Kafka would not take as the name of a topic."""
    strange = sorted(set(name) - TOPIC_CHARACTERS)
    if strange:
        raise ValueError(
            f"a topic cannot have {quote(strange[0])} in its name → "
            "use letters, digits and . _ - only"
        )
    if not name[:1].isalnum():
        raise ValueError("a topic's name begins with a letter or digit → put one first")
    return name


def _check_field_name(name: str) -> str:
    if "`" in name or not name.isprintable() or name != name.strip():
        raise ValueError("a field's name is printable, without ` and without spaces around it")
    if name.startswith(RESERVED):
        raise ValueError(f"names that begin with {RESERVED} are taken → choose another")
    return name


TopicName = Annotated[str, Field(min_length=1, max_length=TOPIC_LIMIT), AfterValidator(check_topic)]
"""A name that Kafka takes for a topic."""

FieldName = Annotated[
    str, Field(min_length=1, max_length=NAME_LIMIT), AfterValidator(_check_field_name)
]


PropertyName = Annotated[str, Field(min_length=1, max_length=NAME_LIMIT)]
"""The name of a user property of MQTT 5."""


class StreamField(Part):
    """One field of a stream's records."""

    name: FieldName = Field(description="What the field is called.")
    type: Literal["string", "int", "long", "float", "double", "boolean", "date", "timestamp"] = (
        Field(description="What its values are; the names of Avro and Kafka Connect are taken too.")
    )
    optional: bool = Field(default=False, description="Whether it may be null or missing.")
    category: Literal["identifier", "quasi-identifier", "sensitive", "plain"] = Field(
        default="plain",
        description="identifier: names a person. quasi-identifier: does so together with others. "
        "sensitive: what nobody should learn about a person. plain: none of these.",
    )

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        made = dict(data)
        if "field" in made and "name" not in made:
            made["name"] = made.pop("field")
        kind = made.get("type")
        if isinstance(kind, list):
            # A union of Avro: a type that may be null.
            made["optional"] = made.get("optional", "null" in kind)
            others = [item for item in kind if item != "null"]
            kind = others[0] if len(others) == 1 else kind
            if made.get("default", 0) is None:
                del made["default"]
        if isinstance(kind, dict) and set(kind) <= {"type", "logicalType"}:
            made["logicalType"] = kind.get("logicalType")
            kind = kind.get("type")
        if isinstance(kind, str):
            logical = made.pop("logicalType", None)
            kind = LOGICAL_TYPES.get(str(logical), TYPE_NAMES.get(kind, kind))
        made["type"] = kind
        return made


def _check_folder(path: str) -> str:
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or not path.isprintable():
        raise ValueError(
            f"{quote(path)} is not a folder that every process would find → "
            "write the whole path, from / on"
        )
    return path


class FileSource(Part):
    """Files of a folder, read as they appear."""

    folder: Annotated[
        str, Field(min_length=1, max_length=PATH_LIMIT), AfterValidator(_check_folder)
    ] = Field(description="The folder; on a cluster, one that all nodes see.")
    format: Literal["csv", "json", "parquet", "avro"] = Field(
        description="What files hold: CSV with a first line of names, JSON lines, Parquet, "
        "Avro. Files with other endings are passed over."
    )


def _check_registry(url: str) -> str:
    if not url.startswith(("http://", "https://")) or "@" in url or not url.isprintable():
        raise ValueError(
            f"{quote(url)} is not an address of a schema registry → "
            "write http:// or https://, without a user in it"
        )
    return url.rstrip("/")


class KafkaSource(Part):
    """The stream's topic at the Kafka cluster of the settings."""

    registry: (
        Annotated[str, Field(max_length=PATH_LIMIT), AfterValidator(_check_registry)] | None
    ) = Field(
        default=None,
        description="The address of a schema registry, for Avro values that name their schema "
        "by a number. Left out: all have the schema of the fields.",
    )


class StreamSource(Part):
    """Where records come from, if not from the stream's topic in the embedded event log."""

    files: FileSource | None = Field(default=None, description="Files of a folder.")
    kafka: KafkaSource | None = Field(
        default=None,
        description="The topic of that name at Kafka; `source: kafka` is short for it. Views "
        "of format topic go there too.",
    )

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        return {"kafka": {}} if data == "kafka" else data

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.files is None) == (self.kafka is None):
            raise ValueError("source: there is one → write either files or kafka")
        return self


class AddedFields(Part):
    """What the gateway writes into the record of a message, beside its payload."""

    topic: FieldName | None = Field(
        default=None,
        description="The field that gets the topic of the message: a string. So records of "
        "several topics can be told apart, as detection at scale needs it.",
    )
    publisher: FieldName | None = Field(
        default=None,
        description="The field that gets who published: an optional string of category "
        "identifier. It is null where nobody did, as in messages of actions. Left out: not "
        "recorded.",
    )
    properties: Mapping[FieldName, PropertyName] = Field(
        default_factory=dict,
        max_length=FIELD_LIMIT,
        description="Fields that get a user property of the message, each with the property's "
        "name: `{pid: patient-id}`. They are strings, ints or longs, and null where the property "
        "is missing or repeats.",
    )

    def names(self) -> list[tuple[str, str]]:
        """Return what fields get, each with the name of the field."""
        told = [("topic", self.topic), ("publisher", self.publisher)]
        filled = [(what, name) for what, name in told if name is not None]
        return filled + [("property", name) for name in self.properties]

    def __hash__(self) -> int:
        """Hash it by value, the mapping included: what is made of a stream is kept by stream."""
        return hash((self.topic, self.publisher, frozenset(self.properties.items())))


class TimeTolerance(Part):
    """How far the time that a record tells may lie from its arrival; refused beyond."""

    ahead: Annotated[Milliseconds, Field(ge=0)] = Field(
        default=AHEAD,
        description="How far after its arrival; such a record counts as of its arrival.",
    )
    behind: Annotated[Milliseconds, Field(ge=0)] | None = Field(
        default=None,
        description="How far before its arrival. Left out: 7d where messages feed the stream "
        "(`from`); else any time, for files and topics may hold what is long past.",
    )


@register
class Stream(Definition):
    """A stream of records: its topic, its fields and who its records are about."""

    kind: ClassVar[str] = "stream"
    concerns: ClassVar[Concern] = Concern.KAFKA | Concern.VIEWS

    name: TopicName = Field(description="What the stream is called, and its topic's name.")
    fields: tuple[StreamField, ...] = Field(
        min_length=1, max_length=FIELD_LIMIT, strict=False, description="The fields, in order."
    )
    event_type: Annotated[PlainName, Reference("event-type")] | None = Field(
        default=None,
        description="The signed event type whose attributes the fields are, by name and type. "
        "Fields may be left out then: applying writes them. Who reads and writes the topics of "
        "another domain's type needs a capability.",
    )
    sealed: Literal["whole", "attributes"] | None = Field(
        default=None,
        description="Seal what crosses the broker, and the records in the event log, as a whole or "
        "each attribute under its own key; gateways and views open what they have keys for "
        "(`penstock keys`). Needs an event_type.",
    )
    signed: bool = Field(
        default=False,
        description="Let each message carry the credential of its publisher through the broker, "
        "signed by its domain, and attributes by UUID; what does not verify, or comes again, is "
        "not delivered. Needs an event_type.",
    )
    subject: FieldName | None = Field(
        default=None,
        description="The field that tells which person a record is about; k-anonymity counts "
        "its values. Left out: every record counts as a person of its own.",
    )
    time: FieldName | None = Field(
        default=None,
        description="The field that tells when it happened, for windows: a timestamp, or a long "
        "of milliseconds since 1970. Left out: when the record arrived.",
    )
    tolerance: TimeTolerance | None = Field(
        default=None,
        description="Which times a record can tell; left out: up to 1d after its arrival.",
    )

    format: Literal["json", "avro", "connect"] = Field(
        default="json",
        description="How values are written. json: an object. avro: a binary datum with the "
        "schema of the fields. connect: an envelope of Kafka Connect, `{schema, payload}`.",
    )
    source: StreamSource | None = Field(
        default=None,
        description="Where records come from; left out: from the topic in the event log.",
    )

    patterns: tuple[TopicPattern, ...] = Field(
        default=(),
        alias="from",
        max_length=PATTERN_LIMIT,
        strict=False,
        description="The MQTT topics whose messages the gateway writes to the stream. Levels "
        "with a name become fields: `home/+ward/pulse`.",
    )
    erasure: Literal["none", "shred", "tombstone"] = Field(
        default="none",
        description="How records of a person are erased at Kafka. shred: the gateway seals each "
        "under a key of its person, and the key is destroyed. tombstone: the topic is compacted "
        "and its keys are the subject, so that a record without a value takes the others' place. "
        "none: they go when the retention of the topic ends.",
    )
    conform: bool = Field(
        default=False,
        description="Whether gateways refuse messages on its topics (`from`) that are not of this "
        "type: no JSON object, a field missing that is not optional, a value of another type.",
    )
    adds: AddedFields | None = Field(
        default=None,
        description="What the gateway adds to each record of a message that feeds the stream; "
        "what a payload says under these names does not count.",
    )

    @property
    def topic(self) -> str:
        """The topic that carries the records."""
        return self.name

    @property
    def ahead(self) -> int:
        """How far a record's time may lie after its arrival, in milliseconds."""
        return AHEAD if self.tolerance is None else self.tolerance.ahead

    @property
    def behind(self) -> int | None:
        """How far a record's time may lie before its arrival, in milliseconds; None: any."""
        if self.tolerance is not None and self.tolerance.behind is not None:
            return self.tolerance.behind
        return BEHIND if self.patterns else None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        seen: dict[str, str] = {}
        for field in self.fields:
            other = seen.setdefault(field.name.casefold(), field.name)
            if other is not field.name:
                raise ValueError(
                    f"the fields {quote(other)} and {quote(field.name)} have one name → "
                    "rename one; case does not count"
                )
        types = {field.name: field.type for field in self.fields}
        for role, name in (("subject", self.subject), ("time", self.time)):
            if name is not None and name not in types:
                raise ValueError(f"{role}: there is no field {quote(name)} → name one of fields")
        if self.time is not None and types[self.time] not in {"timestamp", "long"}:
            raise ValueError(
                f"time: the field {quote(self.time)} is {types[self.time]} → "
                "name a timestamp, or a long of milliseconds"
            )
        if self.tolerance is not None and self.time is None:
            raise ValueError(
                "tolerance: records do not tell a time, but happen when they arrive → "
                "name the field under time, or leave tolerance out"
            )
        files = self.source.files if self.source else None
        if (
            files is not None
            and self.format != "json"
            and (files.format, self.format)
            != (
                "json",
                "connect",
            )
        ):
            raise ValueError(
                f"format: rows of {files.format} files are not written as {self.format} → "
                "leave format out"
            )
        if self.conform and (not self.patterns or self.format == "avro"):
            raise ValueError(
                "conform: gateways look at JSON messages that feed the stream → add from and leave "
                "format: avro out, or leave conform out"
            )
        kafka = self.source.kafka if self.source else None
        if kafka is not None and kafka.registry is not None and self.format != "avro":
            raise ValueError("registry: only Avro values have such schemas → set format: avro")
        return self

    @model_validator(mode="after")
    def _check_paths(self) -> Self:
        kafka, files = (self.source.kafka, self.source.files) if self.source else (None, None)
        objects = self.patterns or kafka is not None or (files and files.format == "json")
        nested = next((it.name for it in self.fields if _PATH.fullmatch(it.name)), None)
        if nested is not None and objects and self.format != "avro":
            raise ValueError(
                f"fields: {quote(nested)} looks like a path into an object, and fields are read at "
                "the top of a record → let whoever writes the records put it there, under a name "
                "without dots"
            )
        return self

    @model_validator(mode="after")
    def _check_patterns(self) -> Self:
        types = {field.name: field.type for field in self.fields}
        if self.patterns and self.source is not None and self.source.files is not None:
            raise ValueError("from: the records come from files → leave out from, or source")
        for pattern in self.patterns:
            if pattern.startswith("$"):
                raise ValueError(
                    f"from: {quote(pattern)} begins with $: such messages are never recorded → "
                    "name other topics"
                )
            levels = named_levels(pattern).values()
            if levels and self.format != "json":
                raise ValueError(
                    f"from: nothing can be added to values of {self.format} → "
                    "write + without names, or leave format out"
                )
            for name in levels:
                if types.get(name) not in LEVEL_TYPES:
                    raise ValueError(
                        f"from: the level {quote(name)} is not a field of type string, int or long "
                        "→ name one of fields"
                    )
        return self

    @model_validator(mode="after")
    def _check_added(self) -> Self:
        added = self.adds.names() if self.adds else []
        if self.adds is not None and not self.patterns:
            raise ValueError("adds: no messages feed the stream → add from, or leave it out")
        if added and self.format != "json":
            raise ValueError(
                f"adds: nothing can be added to values of {self.format} → leave out adds, or format"
            )
        fields = {field.name: field for field in self.fields}
        levels = {name for pattern in self.patterns for name in named_levels(pattern).values()}
        names = [name for _, name in added]
        for what, name in added:
            field = fields.get(name)
            types = LEVEL_TYPES if what == "property" else {"string"}
            if field is None or field.type not in types:
                raise ValueError(
                    f"adds: {quote(name)} is not a field of type {' or '.join(sorted(types))} → "
                    "add it to fields"
                )
            if name in levels or names.count(name) > 1:
                raise ValueError(f"adds: the field {quote(name)} is filled twice → name another")
            if what == "publisher" and not (field.optional and field.category == "identifier"):
                raise ValueError(
                    f"adds: {quote(name)} names a person, or nobody → "
                    "set category: identifier and optional: true"
                )
        return self

    @model_validator(mode="after")
    def _check_crossing(self) -> Self:
        word = "signed" if self.sealed is None else "sealed"
        if self.sealed is None and not self.signed:
            return self
        if self.event_type is None:
            raise ValueError(
                f"{word}: keys and capabilities are for a signed event type → add event_type"
            )
        if not self.patterns:
            raise ValueError(f"{word}: no messages feed the stream → add from, or leave it out")
        if self.signed and self.format != "json":
            raise ValueError("signed: attributes are named in JSON → leave format out")
        levels = [set(named_levels(it).values()) for it in self.patterns]
        if self.subject is not None and not all(self.subject in it for it in levels):
            raise ValueError(
                f"{word}: whom a message is about has to stand in its topic, so that what the "
                f"broker keeps can be erased → name a level {{{self.subject}}} in from"
            )
        return self

    @model_validator(mode="after")
    def _check_erasure(self) -> Self:
        if self.erasure == "none":
            return self
        if self.source is None or self.source.kafka is None:
            raise ValueError(
                "erasure: it is for topics at Kafka, elsewhere Penstock rewrites files → "
                "leave it out, or add source: kafka"
            )
        if self.erasure == "tombstone" and self.sealed is not None:
            raise ValueError(
                "erasure: tombstones need the subject as the key of records, which a sealed stream "
                "does not show → write shred"
            )
        if self.subject is None:
            raise ValueError("erasure: nobody can tell whose records these are → add subject")
        if self.erasure == "shred" and (not self.patterns or self.format == "avro"):
            raise ValueError(
                "erasure: only what the gateway writes, and can read, is sealed under the key of a "
                "person → add from and leave format: avro out, or write tombstone"
            )
        return self

    def named(self, category: str) -> tuple[str, ...]:
        """Return the names of the fields of a category."""
        return tuple(field.name for field in self.fields if field.category == category)

"""Views: anonymized versions of a stream, each for its audience; hierarchies of values for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, JsonValue, model_validator

from penstock.errors import quote
from penstock.model.definition import Concern, Definition, Part, PlainName, Reference, register
from penstock.model.kinds.fields import Milliseconds, PurposePath
from penstock.model.kinds.interaction import Transformation
from penstock.model.kinds.streams import FieldName, TopicName
from penstock.model.purposes import SET_LIMIT

ANONYMIZER_LIMIT: Final = 64
ROLE_LIMIT: Final = 1000
RISK_LIMIT: Final = 1000
OVERLAP: Final = 1000
"""The most windows that a record lies in, and so the most copies that are published of it."""
VALUE_LIMIT: Final = 100_000
DEPTH_LIMIT: Final = 32
TEXT_LIMIT: Final = 4096
SHARD_LIMIT: Final = 1024
REAL_TIME: Final = "real-time"


class Window(Part):
    """How records are put together by time."""

    size: Annotated[Milliseconds, Field(gt=0)] = Field(
        description="How long a window lasts, in milliseconds or such as `10s`."
    )
    advance: Annotated[Milliseconds, Field(gt=0)] | None = Field(
        default=None,
        description="How far apart windows begin; left out: as far as they last.",
    )
    grace: Annotated[Milliseconds, Field(ge=0)] = Field(
        default=0, description="How long a window waits for late records."
    )

    @model_validator(mode="after")
    def _check_advance(self) -> Self:
        if self.advance is not None and self.advance > self.size:
            raise ValueError(
                "advance is longer than size, so that records would fall between windows → "
                "make it at most as long"
            )
        if self.size > OVERLAP * (self.advance or self.size):
            raise ValueError(
                f"a record would lie in more than {OVERLAP} windows → make advance longer"
            )
        return self


@register
class View(Definition):
    """An anonymized version of a stream, for those with one of its roles."""

    kind: ClassVar[str] = "view"
    concerns: ClassVar[Concern] = Concern.KAFKA | Concern.VIEWS

    name: TopicName = Field(description="What the view is called; part of its topic's name.")
    stream: Annotated[PlainName, Reference("stream")] = Field(
        description="The stream that it is made of."
    )
    anonymizers: tuple[Mapping[str, JsonValue], ...] = Field(
        default=(),
        max_length=ANONYMIZER_LIMIT,
        strict=False,
        description="What is done to each record, in this order: "
        "`{anonymizer: NAME, keys: [FIELD], …}`. Empty: records pass as they are.",
    )
    transformation: Annotated[PlainName, Reference("transformation")] | None = Field(
        default=None,
        description="A transformation whose anonymizers come before those of the view, and whose "
        "fields to remove the view does not have. It is done to every record: whom it is about, "
        "and when, is about subscribers.",
    )
    remove: tuple[FieldName, ...] = Field(
        default=(),
        max_length=ROLE_LIMIT,
        strict=False,
        description="Fields of the stream that the view does not have.",
    )
    window: Window | None = Field(
        default=None, description="How records are put together for anonymizers that need it."
    )
    format: Literal["parquet", "json", "csv", "avro", "delta", "console", "topic"] = Field(
        default="parquet",
        description="Where the view's records go. parquet, json, csv, avro: files in the view's "
        "folder. delta: a Delta table there. console: Parquet files, and each batch shown where "
        "views run. topic: the topic STREAM-VIEW of the event log.",
    )
    encoding: Literal["json", "avro"] = Field(
        default="json",
        description="How values of the view's topic are written. avro: with a schema that the "
        "registry of the settings (`kafka.registry`) has under STREAM-VIEW-value.",
    )
    trigger: Literal["micro-batch", "real-time"] = Field(
        default="micro-batch",
        description="When records reach the view. micro-batch: some together, each once. "
        "real-time: each within milliseconds, and at least once: after a stop, a change or a crash "
        "those of the last ten seconds may come again. It is for views from Kafka to a topic "
        "there, without windows and groups, and takes a core for each partition.",
    )
    shards: Annotated[int, Field(ge=1, le=SHARD_LIMIT)] | None = Field(
        default=None,
        description="Into how many groups people are divided, which are worked on side by side, "
        "in a view that holds records back. Left out: as many as the cluster has cores.",
    )
    roles: tuple[PlainName, ...] = Field(
        default=(), max_length=ROLE_LIMIT, strict=False, description="Who may read the view."
    )
    purposes: tuple[PurposePath, ...] = Field(
        default=(), max_length=SET_LIMIT, strict=False, description="What it may be used for."
    )

    accept_risk: tuple[Annotated[str, Field(min_length=1, max_length=TEXT_LIMIT)], ...] = Field(
        default=(),
        max_length=RISK_LIMIT,
        strict=False,
        description="Risks that are acknowledged, by name, of a view that makes groups: such as "
        "`pseudonym:pid` or `no-subject`. A risk that is not named here refuses the definition.",
    )

    @model_validator(mode="after")
    def _check_encoding(self) -> Self:
        if self.encoding != "json" and self.format != "topic":
            raise ValueError(
                f"encoding: records in {self.format} are not written as {self.encoding} → "
                "set format: topic, or leave encoding out"
            )
        return self

    @property
    def topic(self) -> str:
        """The topic that carries the view's records."""
        return f"{self.stream}-{self.name}"

    def behind(self, transformation: Transformation) -> View:
        """Return the view that does by itself what a transformation does before it."""
        changes = {
            "transformation": None,
            "anonymizers": (*transformation.anonymizers, *self.anonymizers),
            "remove": tuple(dict.fromkeys((*transformation.remove, *self.remove))),
        }
        return self.model_copy(update=changes)


Value = Annotated[str, Field(max_length=TEXT_LIMIT)]
Way = Annotated[tuple[Value, ...], Field(strict=False)]


class HierarchyNode(Part):
    """A value, or a group and what it stands for."""

    value: Value = Field(description="The value, or the name of the group.")
    children: tuple[HierarchyNode, ...] = Field(
        default=(), strict=False, description="What the group stands for; none for a value."
    )


@register
class Hierarchy(Definition):
    """What values are instances of, for generalization and k-anonymity."""

    kind: ClassVar[str] = "hierarchy"
    concerns: ClassVar[Concern] = Concern.VIEWS

    values: Mapping[Value, Way] | None = Field(
        default=None,
        min_length=1,
        max_length=VALUE_LIMIT,
        description="Each value with its generalizations, from the nearest to the most general: "
        "`Berlin: [Germany, Europe]`. All end at the same.",
    )
    tree: HierarchyNode | None = Field(
        default=None, description="The same as nested groups: `{value, children}`."
    )

    @model_validator(mode="after")
    def _check_notation(self) -> Self:
        if (self.values is None) == (self.tree is None):
            raise ValueError("give values, or tree → exactly one of both")
        if self.values is not None:
            _check_ways(self.values)
        return self

    def nested(self) -> dict[str, Any]:
        """Return the tree as nested data: `{value, children}`."""
        if self.tree is not None:
            return self.tree.model_dump()
        values = self.values or {}
        below: dict[str, dict[str, None]] = {}
        for value, way in values.items():
            for child, parent in zip((value, *way), way, strict=False):
                below.setdefault(parent, {})[child] = None
        return _grow(next(iter(values.values()))[-1], below)


def _grow(value: str, below: Mapping[str, Mapping[str, None]]) -> dict[str, Any]:
    return {"value": value, "children": [_grow(child, below) for child in below.get(value, ())]}


def _check_ways(values: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse ways that make no tree: two roots, two parents of one value, a way back."""
    parents: dict[str, str] = {}
    root = next(iter(values.values()))[-1:]
    for value, way in values.items():
        if not way or len(way) > DEPTH_LIMIT:
            raise ValueError(f"{quote(value)} has {len(way)} generalizations → give 1 to 32")
        if way[-1:] != root:
            raise ValueError(
                f"{quote(value)} ends at {quote(way[-1])}, others at {quote(root[0])} → "
                "let all values end at the same"
            )
        steps = (value, *way)
        if len(set(steps)) != len(steps):
            raise ValueError(f"the way of {quote(value)} comes to a value twice → shorten it")
        for child, parent in zip(steps, way, strict=False):
            if parents.setdefault(child, parent) != parent:
                raise ValueError(
                    f"{quote(child)} lies below {quote(parents[child])} and {quote(parent)} → "
                    "let it lie below one"
                )
    groups = set(parents.values())
    both = next((value for value in values if value in groups), None)
    if both is not None:
        raise ValueError(f"{quote(both)} is a value and a group of others → rename the group")

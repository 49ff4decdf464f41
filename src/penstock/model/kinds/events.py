"""Event types and plans: what counts as having happened, and how an emergency may develop.

    packets ──▶ event types ──▶ patterns ──▶ plans: situations and evolutions, for whom: scenarios

Rules that hold here:
- A type has one source: packets, requests (an evolution that wants its actions carried
  out) or a pattern over other types. A pattern has one operator.
- Every pattern may keep (`where`) and reshape (`set`) what its operator finds.
- A pattern's expressions see each input under its `as`; a pattern of one input, and what
  an aggregate comes to, is `it`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from penstock.errors import quote
from penstock.model.definition import (
    NAME_LIMIT,
    Concern,
    Definition,
    ExpressionText,
    Part,
    PlainName,
    Reference,
    register,
)
from penstock.model.kinds.fields import (
    AHEAD,
    Milliseconds,
    PurposePath,
    TimeZone,
    TopicFilter,
    as_value_error,
    write_duration,
)
from penstock.model.topics import check_topic

EXPRESSION_LIMIT: Final = 8192
ATTRIBUTE_LIMIT: Final = 100
INPUT_LIMIT: Final = 16
COUNT_LIMIT: Final = 10_000

OPERATORS: Final = (
    "event",
    "or",
    "and",
    "sequence",
    "iterate",
    "aggregate",
    "latest",
    "visits",
    "meetings",
)

# Which further fields belong to which operators; `as`, `where` and `set` belong to all.
_BELONGS: Final[Mapping[str, frozenset[str]]] = {
    "window": frozenset({"event", "or", "and", "aggregate", "sequence", "iterate", "meetings"}),
    "by": frozenset({"and", "sequence", "iterate", "aggregate", "latest"}),
    "within": frozenset({"sequence", "iterate", "visits"}),
    "times": frozenset({"iterate"}),
    "values": frozenset({"aggregate"}),
    "raised": frozenset({"aggregate"}),
    "order": frozenset({"latest"}),
    "who": frozenset({"visits"}),
    "place": frozenset({"visits"}),
    "every": frozenset({"visits"}),
    "request": frozenset({"visits"}),
}


def _check_word(text: str) -> str:
    if not text.isidentifier() or not text.isascii():
        raise ValueError("use letters, digits and _, beginning with a letter, such as maxTemp")
    return text


Word = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_check_word)]
"""A name that expressions can write."""

ExpressionOfSet = Annotated[str, Field(max_length=EXPRESSION_LIMIT)]
"""An expression whose type its attribute says; the check of the whole set looks at it."""

EventName = Annotated[PlainName, Reference("event", acyclic=True)]
Attributes = Annotated[Mapping[Word, JsonValue], Field(max_length=ATTRIBUTE_LIMIT)]
Settings = Annotated[Mapping[Word, ExpressionOfSet], Field(max_length=ATTRIBUTE_LIMIT)]
Words = Annotated[tuple[Word, ...], Field(max_length=INPUT_LIMIT, strict=False)]
Span = Annotated[Milliseconds, Field(gt=0)]


class PacketSource(Part):
    """Which packets are events of the type, and what they say."""

    filters: tuple[TopicFilter, ...] = Field(
        default=("#",),
        min_length=1,
        max_length=ATTRIBUTE_LIMIT,
        strict=False,
        description="The topics that are looked at.",
    )
    when: Annotated[str, Field(max_length=EXPRESSION_LIMIT), ExpressionText("bool", "event")] = (
        Field(
            default="true",
            description="The binding criterion, over t, s, o and e; missing: not satisfied.",
        )
    )
    set: Settings = Field(description="The attributes: name and expression over t, s, o and e.")
    optional: Words = Field(
        default=(), description="Attributes that may be missing; without the others: no event."
    )
    time: ExpressionOfSet | None = Field(
        default=None,
        description="When it happened: a timestamp, or an int of milliseconds since 1970. "
        "Left out: when the packet arrived.",
    )
    lateness: Annotated[Milliseconds, Field(ge=0)] = Field(
        default=0, description="How late an event may arrive after its `time`; later: ignored."
    )
    ahead: Annotated[Milliseconds, Field(ge=0)] = Field(
        default=AHEAD,
        description="How far its `time` may lie after its arrival; it counts as of its arrival. "
        "Further ahead: ignored.",
    )
    id: ExpressionOfSet | None = Field(
        default=None,
        description="What tells a repeated event: a second one with the same text is ignored.",
    )


class RequestSource(Part):
    """What is known when an evolution wants its actions carried out."""

    set: Settings = Field(
        description="The attributes: expressions over s, o, e of the packet that caused the "
        "evolution, and r: subject, scenario, situation, event, at (milliseconds), time."
    )
    optional: Words = Field(default=(), description="Attributes that may be missing.")


class EventWindow(Part):
    """Which events count together; one of the three."""

    last: Span | None = Field(default=None, description="Those of the last so long, such as 2d.")
    each: Span | None = Field(
        default=None, description="Those of one period, counted from 1970, such as 1d; UTC."
    )
    count: Annotated[int, Field(gt=0, le=COUNT_LIMIT)] | None = Field(
        default=None, description="The last so many."
    )
    step: Literal[True] | None = Field(
        default=None, description="Those that one packet, request or moment brought."
    )

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(value is not None for value in (self.last, self.each, self.count, self.step)) != 1:
            raise ValueError("a window is one of last, each, count and step → write one of them")
        return self


class Pattern(Part):
    """An operator over other event types, with what it keeps and how it reshapes it."""

    event: EventName | None = Field(default=None, description="Events of this type.")
    any_of: tuple[Pattern, ...] | None = Field(
        default=None, alias="or", min_length=1, max_length=INPUT_LIMIT, strict=False,
        description="Each event of any of these.",
    )  # fmt: skip
    all_of: tuple[Pattern, ...] | None = Field(
        default=None, alias="and", min_length=1, max_length=INPUT_LIMIT, strict=False,
        description="All of these together; with `not`: while there is none.",
    )  # fmt: skip
    sequence: tuple[Pattern, ...] | None = Field(
        default=None, min_length=2, max_length=INPUT_LIMIT, strict=False,
        description="One after the other, within `within`; with `not`: none in between, or none "
        "until `within` is over.",
    )  # fmt: skip
    negated: Pattern | None = Field(
        default=None, alias="not", description="There is none; within and and sequence only."
    )
    iterate: Pattern | None = Field(
        default=None, description="The last of `times` events within `within`; then anew."
    )
    aggregate: tuple[Pattern, ...] | None = Field(
        default=None, min_length=1, max_length=INPUT_LIMIT, strict=False,
        description="What the events of a window come to.",
    )  # fmt: skip
    latest: Pattern | None = Field(
        default=None, description="The event with the greatest `order`; of equals the newest."
    )
    visits: Pattern | None = Field(
        default=None,
        description="Where `who` was in the last `within`, for each `request`: one event for "
        "each uninterrupted stay at a `place`, from samples taken `every` so often.",
    )
    meetings: Pattern | None = Field(
        default=None,
        description="Of visits: who else was at the place at the same time, on which date, "
        "for how many samples.",
    )
    alias: Word | None = Field(default=None, alias="as", description="How expressions call it.")
    where: ExpressionOfSet | None = Field(default=None, description="Which are kept.")
    set: Settings | None = Field(default=None, description="The attributes it comes to.")
    window: EventWindow | None = Field(default=None, description="Which events count together.")
    by: Words = Field(default=(), description="Attributes that tell groups apart.")
    within: Span | None = Field(default=None, description="How far apart it may lie.")
    times: Annotated[int, Field(gt=0, le=COUNT_LIMIT)] | None = Field(
        default=None, description="How many events are wanted."
    )
    values: Settings | None = Field(
        default=None,
        description="What is computed: name and count, sum, avg, min, max, distinct, first or "
        "last of an expression, such as max(it.temp).",
    )
    raised: Literal["each", "change"] = Field(
        default="each",
        description="each: with every event while `where` holds; change: when it begins to.",
    )
    order: Word | None = Field(default=None, description="The attribute that tells the latest.")
    who: Word | None = Field(default=None, description="The attribute that tells who was there.")
    place: Word | None = Field(default=None, description="The attribute that tells where.")
    every: Span | None = Field(default=None, description="How far apart samples are.")
    request: EventName | None = Field(default=None, description="The type that asks for visits.")

    @property
    def operator(self) -> str:
        """The word that says what is done."""
        return next(
            name
            for name in (*OPERATORS, "not")
            if getattr(self, _FIELDS.get(name, name)) is not None
        )

    @model_validator(mode="after")
    def _check_operator(self) -> Self:
        names = [
            name
            for name in (*OPERATORS, "not")
            if getattr(self, _FIELDS.get(name, name)) is not None
        ]
        if len(names) != 1:
            found = ", ".join(names) or "none"
            raise ValueError(f"a pattern has one operator, not {found} → write one")
        wrong = [
            field
            for field, operators in _BELONGS.items()
            if field in self.model_fields_set and names[0] not in operators
        ]
        if wrong:
            raise ValueError(f"{names[0]} has no {', '.join(wrong)} → leave it out")
        return self


_FIELDS: Final = {"or": "any_of", "and": "all_of", "not": "negated"}


@register
class Event(Definition):
    """A type of events: bound to packets, to requests, or a pattern over other types."""

    kind: ClassVar[str] = "event"
    concerns: ClassVar[Concern] = Concern.EVENTS

    attributes: Attributes = Field(
        description="What an event says: name and type, such as `pid: string`."
    )
    packet: PacketSource | None = Field(default=None, description="Primitive: from packets.")
    request: RequestSource | None = Field(
        default=None, description="Primitive: whenever an evolution carries out actions."
    )
    pattern: Pattern | None = Field(default=None, description="Complex: over other types.")
    purposes: tuple[PurposePath, ...] = Field(
        default=(),
        max_length=INPUT_LIMIT,
        strict=False,
        description="What it is detected for; events of packets only. Messages about somebody who "
        "opted out of one of these bring none about. Left out: whatever people opted out of.",
    )

    @property
    def primitive(self) -> bool:
        """Whether its events are made from one packet or request."""
        return self.pattern is None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        sources = [it for it in (self.packet, self.request, self.pattern) if it is not None]
        if len(sources) != 1:
            raise ValueError("an event has one source → write one of packet, request and pattern")
        if self.purposes and self.packet is None:
            raise ValueError(
                "purposes: only a packet tells whom it is about → name them at the events of "
                "packets that this one is made of"
            )
        return self


@register
class Action(Definition):
    """A message made of each event of a type that an evolution's request brings about."""

    kind: ClassVar[str] = "action"
    concerns: ClassVar[Concern] = Concern.EVENTS

    event: Annotated[PlainName, Reference("event")] = Field(
        description="The event type whose events become messages."
    )
    topic: Annotated[str, Field(max_length=65535), AfterValidator(as_value_error(check_topic))] = (
        Field(description="Where they are published; {pid} stands for the event's attribute pid.")
    )
    payload: Annotated[Mapping[Word, ExpressionOfSet], Field(max_length=ATTRIBUTE_LIMIT)] = Field(
        default_factory=dict, description="Fields of the JSON payload: expressions over it."
    )


SITUATION_LIMIT: Final = 1000
EVOLUTION_LIMIT: Final = 10_000
LEVEL_LIMIT: Final = 1_000_000
ACTION_LIMIT: Final = 16
SUBJECT_LIMIT: Final = 1_000_000


class Situation(Part):
    """One stage of an emergency."""

    id: PlainName = Field(description="What the situation is called; unique in its plan.")
    level: Annotated[int, Field(ge=1, le=LEVEL_LIMIT)] = Field(description="How severe it is.")
    description: Annotated[str, Field(max_length=2000)] = Field(
        default="", description="What it means, in a sentence."
    )


class Evolution(Part):
    """A step from one situation to another, or into or out of the emergency."""

    event: Annotated[PlainName, Reference("event")] | None = Field(
        default=None, description="What brings it about."
    )
    after: Span | None = Field(
        default=None,
        description="Instead of `event`: the longest duration of the situation that is left, "
        "such as 14d. When somebody has been in it for so long, the evolution happens.",
    )
    source: PlainName | None = Field(
        default=None, alias="from", description="The situation that is left; none: inactive."
    )
    target: PlainName | None = Field(
        default=None, alias="to", description="The situation that is entered; none: it is over."
    )
    actions: tuple[Annotated[PlainName, Reference("action")], ...] = Field(
        default=(), max_length=ACTION_LIMIT, strict=False, description="What is published then."
    )
    priority: Annotated[int, Field(ge=-1000, le=1000)] = Field(
        default=0,
        description="Of events of one moment the greatest comes first.",
    )

    @property
    def cause(self) -> str:
        """What brings it about, in words."""
        return self.event or f"after {write_duration(self.after or 0)}"

    @model_validator(mode="after")
    def _check_cause(self) -> Self:
        if (self.event is None) is (self.after is None):
            raise ValueError("an evolution has one cause → write one of event and after")
        if self.after is not None and self.source is None:
            raise ValueError("nobody is in no situation for a while → name from beside after")
        return self


@register
class Plan(Definition):
    """How an emergency may develop: its situations and the evolutions between them."""

    kind: ClassVar[str] = "plan"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.EVENTS | Concern.SETTINGS

    situations: tuple[Situation, ...] = Field(
        min_length=1, max_length=SITUATION_LIMIT, strict=False, description="The states."
    )
    evolutions: tuple[Evolution, ...] = Field(
        min_length=1, max_length=EVOLUTION_LIMIT, strict=False, description="The transitions."
    )

    zone: TimeZone = Field(
        default="UTC",
        description="The time zone whose days count in the events of this plan, by its name in "
        "the IANA database, such as `Europe/Rome`: in visits, in windows of whole days, and as "
        "`e.zone`.",
    )

    @model_validator(mode="after")
    def _check_evolutions(self) -> Self:
        known = [situation.id for situation in self.situations]
        twice = sorted({name for name in known if known.count(name) > 1})
        if twice:
            raise ValueError(f"the situation {quote(twice[0])} is there twice → rename one")
        seen: dict[tuple[str | None, str | None], int] = {}
        for index, step in enumerate(self.evolutions):
            for end in (step.source, step.target):
                if end is not None and end not in known:
                    raise ValueError(
                        f"evolutions[{index}]: there is no situation {quote(end)} → "
                        f"name one of {', '.join(known)}"
                    )
            if step.source is None and step.target is None:
                raise ValueError(
                    f"evolutions[{index}] leads from nowhere to nowhere → name from or to"
                )
            first = seen.setdefault((step.source, step.event), index)
            if first != index:
                cause = f"event {quote(step.event)}" if step.event else "a longest duration"
                raise ValueError(
                    f"evolutions[{first}] and evolutions[{index}] have the same source "
                    f"{quote(step.source)} and {cause} → keep one"
                )
        self._check_rest()
        return self

    def _check_rest(self) -> None:
        """Refuse evolutions by time alone that lead round in a circle: it would never rest."""
        onward = {it.source: it.target for it in self.evolutions if it.after is not None}
        for start, target in onward.items():
            at, seen = target, {start}
            while at in onward and at not in seen:
                seen.add(at)
                at = onward[at]
            if at == start:
                raise ValueError(
                    f"time alone leads from {quote(start)} back to {quote(start)} → "
                    "let an event, or the end, be on that way"
                )


SubjectName = Annotated[str, Field(min_length=1, max_length=NAME_LIMIT)]


@register
class Scenario(Definition):
    """A plan that is followed for each of its subjects, one situation at a time."""

    kind: ClassVar[str] = "scenario"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.EVENTS | Concern.SETTINGS

    plan: Annotated[PlainName, Reference("plan")] = Field(description="How it may develop.")
    attribute: Word = Field(
        description="The attribute of the plan's events that tells whom they are about."
    )
    subjects: Annotated[tuple[SubjectName, ...], Field(strict=False)] | None = Field(
        default=None,
        description="Whom it is followed for. Left out: everyone an event is about.",
    )
    group: Annotated[PlainName, Reference("group")] | None = Field(
        default=None, description="Follow it for the users of this group instead of a list."
    )
    subject_filter: (
        Annotated[str, Field(max_length=EXPRESSION_LIMIT), ExpressionText("bool", "scenario")]
        | None
    ) = Field(
        default=None,
        description="Who is involved in the case of c.subject: an expression over s and c "
        "(subject, scenario, plan), such as `s.uid == c.subject || c.subject in s.pSet`. "
        "Emergency policies apply to these alone. Without `subjects` and `group` it also says "
        "whom the scenario is followed for: who is involved in a case of their own. An error or "
        "a missing attribute involves nobody. Left out: everybody is involved.",
    )

    @model_validator(mode="after")
    def _check_subjects(self) -> Self:
        if self.group is not None and self.subjects is not None:
            raise ValueError("subjects and group are both given → keep one")
        if self.subjects is not None and len(self.subjects) > SUBJECT_LIMIT:
            raise ValueError(f"more than {SUBJECT_LIMIT} subjects → use a group, or leave them out")
        return self

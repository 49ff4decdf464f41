"""Plans: how an emergency may develop, from situation to situation, and for whom."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

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
from penstock.model.kinds.events import EXPRESSION_LIMIT, Span, Word
from penstock.model.kinds.fields import TimeZone, write_duration

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

"""Interaction control: who gets which messages in which context, and what of them.

    subject, exempt, filter, during ⊢ permit | deny                       restriction
    subject, exempt, filter, during, when ⊢ set, anonymizers, remove, into   transformation

Rules that hold here:
- A rule looks at who asks (`s`), what the message is about (`o`), the environment (`e`), the
  message (`t`), and rows of tables (`d`). What it cannot tell, it denies.
- Whom a rule means is told without the message; whom it exempts may depend on it. So an
  attribute that is missing exempts nobody.
- All conditions and all that `set` computes see the message as it was published, whatever the
  order of transformations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from penstock.errors import quote
from penstock.model.definition import Concern, Definition, Part, PlainName, Reference, register
from penstock.model.kinds.fields import GrantSubject, Subject, TopicFilter
from penstock.model.kinds.policies import EmergencyPolicy
from penstock.model.kinds.streams import FieldName
from penstock.model.topics import SHARE_PREFIX

EXPRESSION_LIMIT: Final = 8192
ROW_LIMIT: Final = 10_000
COLUMN_LIMIT: Final = 64
LOOKUP_LIMIT: Final = 8
MASK_LIMIT: Final = 64
LIST_LIMIT: Final = 1_000
FIELD_LIMIT: Final = 256
ORDERS: Final = 1_000_000

_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_PLACE: Final = re.compile(r"\{([^{}]+)\}")

Text = Annotated[str, Field(min_length=1, max_length=EXPRESSION_LIMIT)]


def _check_word(name: str) -> str:
    if not _WORD.fullmatch(name):
        raise ValueError("use letters, digits and _, with a letter first, such as drug")
    return name


Word = Annotated[str, Field(max_length=64), AfterValidator(_check_word)]


@register
class Table(Definition):
    """Stored data that conditions and transformations look rows up in, by a key."""

    kind: ClassVar[str] = "table"
    concerns: ClassVar[Concern] = Concern.INTERACTION

    columns: Mapping[Word, JsonValue] = Field(
        min_length=1,
        max_length=COLUMN_LIMIT,
        description="What a row holds: name and type, such as `class: string`.",
    )
    rows: Mapping[
        Annotated[str, Field(max_length=1024)], Annotated[Mapping[str, JsonValue], Field()]
    ] = Field(
        default_factory=dict,
        max_length=ROW_LIMIT,
        description="The rows by their key: `morphine: {class: A}`. What a row leaves out is "
        "missing.",
    )


class Lookup(Part):
    """Where a row comes from."""

    table: Annotated[PlainName, Reference("table")] = Field(description="The table.")
    key: Text = Field(
        description="An expression over s, o, e and t that gives the key, such as `t.payload.drug`."
    )


class Occasion(Part):
    """Situations of a plan."""

    plan: Annotated[PlainName, Reference("plan")] = Field(
        description="The plan whose situations count."
    )
    scenarios: tuple[Annotated[PlainName, Reference("scenario")], ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Scenarios of this plan. Empty: all of them.",
    )
    situations: tuple[PlainName, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Situations of the plan. Empty: all of them.",
    )
    minimum_level: int | None = Field(
        default=None,
        description="Instead of `situations`: those of this level and above.",
    )
    about: Text | None = Field(
        default=None,
        description="Whose situation counts: an expression that names the scenario's subject, "
        "such as `o.patientId`.",
    )
    any_object: bool = Field(
        default=False,
        description="Instead of `about`: it suffices that somebody is in such a situation.",
    )

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        if self.situations and self.minimum_level is not None:
            raise ValueError("has both `situations` and `minimum_level` → leave one of them out")
        if (self.about is None) is not self.any_object:
            raise ValueError(
                "must say whose situation counts → write `about: o.ATTRIBUTE`, or "
                "`any_object: true`, not both"
            )
        return self


class InteractionRule(Definition):
    """What restrictions and transformations share: whom and what they are about, and when."""

    subject: Subject = Field(
        default="anyone",
        description="Whom it is about: user:NAME, client:ID, group:NAME, role:NAME or anyone.",
    )
    exempt: tuple[GrantSubject, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Whom it is not about after all, also by the message: "
        "`role:treating-doctor(_, o.patientId)`. A missing attribute exempts nobody.",
    )
    filter: TopicFilter = Field(description="The topics that it is about.")
    during: Occasion | None = Field(
        default=None,
        description="The emergencies during which it holds, and not otherwise. While nobody knows "
        "the situations, messages are denied.",
    )
    except_during: Occasion | None = Field(
        default=None,
        description="The emergencies during which it does not hold. While nobody knows the "
        "situations, it holds.",
    )
    lookup: Mapping[Word, Lookup] = Field(
        default_factory=dict,
        max_length=LOOKUP_LIMIT,
        description="Rows that its expressions see as `d`: with `drug: {table: drugs, key: "
        "t.payload.drug}` they may say `d.drug.class`.",
    )

    @model_validator(mode="after")
    def _check_filter(self) -> Self:
        if self.filter.startswith("$"):
            what = "a share" if self.filter.startswith(SHARE_PREFIX) else "the broker's own topics"
            raise ValueError(f"{quote(self.filter)} means {what} → name topics of messages")
        return self


@register
class Restriction(InteractionRule):
    """Permits or denies a subscription by context, or filters deliveries silently."""

    kind: ClassVar[str] = "restriction"
    concerns: ClassVar[Concern] = Concern.INTERACTION

    at: Literal["delivery", "subscription"] = Field(
        default="delivery",
        description="delivery: each message is looked at, and what is not permitted does not "
        "arrive; nobody is told. subscription: who subscribes is looked at, by s and e; those "
        "whom it denies later get nothing any more.",
    )
    permit: Text | None = Field(
        default=None,
        description="What must hold, an expression over s, o, e, t and d. An error or a missing "
        "attribute permits nothing.",
    )
    deny: Text | None = Field(
        default=None,
        description="Instead of `permit`: what must not hold. An error or a missing attribute "
        "denies.",
    )

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        if (self.permit is None) == (self.deny is None):
            raise ValueError("it permits or denies → give permit or deny, one of both")
        if self.at == "subscription" and self.lookup:
            raise ValueError("a subscription has no message to look rows up by → leave lookup out")
        for occasion in (self.during, self.except_during):
            if self.at == "subscription" and occasion is not None and occasion.about is not None:
                raise ValueError(
                    "a subscription is about nobody in particular → write `any_object: true`"
                )
        return self


def _check_target(text: str) -> str:
    if not text or text.startswith("$") or "#" in text or "+" in text or "\0" in text:
        raise ValueError("name one topic, with {FIELD} for values: audit/{ward}/prescriptions")
    left = _PLACE.sub("", text)
    if "{" in left or "}" in left:
        raise ValueError("braces stand around the name of a field: audit/{ward}/prescriptions")
    return text


class Conversion(Part):
    """The type that a message becomes."""

    topic: Annotated[str, Field(max_length=1024), AfterValidator(_check_target)] = Field(
        description="Its topic; `{FIELD}` stands for a value of the new message, which is one "
        "level of the topic: `audit/{ward}/prescriptions`."
    )
    stream: Annotated[PlainName, Reference("stream")] = Field(
        description="The stream whose fields the new message has."
    )
    keep: bool = Field(
        default=True,
        description="On publication: whether the message is published as well.",
    )

    @property
    def places(self) -> tuple[str, ...]:
        """The fields whose values stand in the topic."""
        return tuple(_PLACE.findall(self.topic))


@register
class Transformation(InteractionRule):
    """Degrades, enriches or converts messages, on publication or just before delivery."""

    kind: ClassVar[str] = "transformation"
    concerns: ClassVar[Concern] = Concern.INTERACTION | Concern.VIEWS

    at: Literal["delivery", "publication"] = Field(
        default="delivery",
        description="delivery: just before one subscriber gets the message; `subject` is who "
        "reads. publication: before anybody has it, the event log included; `subject` is who "
        "writes.",
    )
    order: Annotated[int, Field(ge=-ORDERS, le=ORDERS)] = Field(
        default=0,
        description="Where several apply to a message, the lower comes first. Two that change "
        "one field need different numbers.",
    )
    stream: Annotated[PlainName, Reference("stream")] = Field(
        description="The stream whose fields the messages have; a message that does not fit is "
        "denied, and fields that it does not declare are left out."
    )
    when: Text = Field(
        default="true",
        description="When it applies, an expression over s, o, e, t and d. Where an error or a "
        "missing attribute leaves that open, the message is denied.",
    )
    set: Mapping[FieldName, Text] = Field(
        default_factory=dict,
        max_length=FIELD_LIMIT,
        description="Values that it adds, each an expression over s, o, e, t and d: "
        "`class: d.drug.class`. What is missing denies the message.",
    )
    anonymizers: tuple[Mapping[str, JsonValue], ...] = Field(
        default=(),
        max_length=MASK_LIMIT,
        strict=False,
        description="Row-wise anonymizers, in this order, as in views: "
        "`{anonymizer: bucketizing, keys: [age], bucket_size: 10}`.",
    )
    remove: tuple[FieldName, ...] = Field(
        default=(),
        max_length=FIELD_LIMIT,
        strict=False,
        description="Fields that are left out.",
    )
    into: Conversion | None = Field(
        default=None, description="The type that the message becomes; nothing follows it."
    )
    keep_properties: bool = Field(
        default=False,
        description="Whether user properties, response topic and correlation data stay. They may "
        "say what the payload must not.",
    )

    @model_validator(mode="after")
    def _check_effect(self) -> Self:
        if not (self.set or self.anonymizers or self.remove or self.into):
            raise ValueError("it changes nothing → give set, anonymizers, remove or into")
        twice = sorted({it for it in self.remove if self.remove.count(it) > 1 or it in self.set})
        if twice:
            raise ValueError(f"{quote(twice[0])} is removed, and named again → name it once")
        if self.at == "delivery" and self.into is not None and not self.into.keep:
            raise ValueError("into.keep is about publication → leave it out")
        return self


def as_policy(occasion: Occasion, name: str) -> EmergencyPolicy:
    """Return the emergency policy that applies on the same occasions."""
    return EmergencyPolicy(
        name=name,
        filter="#",
        allow="read",
        plan=occasion.plan,
        scenarios=occasion.scenarios,
        situations=occasion.situations,
        minimum_level=occasion.minimum_level,
        about=occasion.about,
        any_object=occasion.any_object,
    )

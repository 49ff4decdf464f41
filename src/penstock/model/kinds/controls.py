"""Privacy controls: what people can choose or ask for, who takes it in, and who must honour it.

    control-publisher ──▶ control ◀── control-subscriber
    (a front end)         (the choice)  (a service that acts on it)

A stateful control has a state for each person, opted in or out, and never an unknown one. A
stateless control is a single request, such as a deletion.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from penstock.errors import quote
from penstock.model.definition import Concern, Definition, PlainName, Reference, register
from penstock.model.kinds.fields import Milliseconds, PurposePath, Subject

LIST_LIMIT: Final = 1_000
DAY: Final = 86_400_000
LONGEST_HONOR: Final = 366 * DAY
MOST_RETRIES: Final = 100
URI_LIMIT: Final = 2_000

Span = Annotated[Milliseconds, Field(gt=0, le=LONGEST_HONOR)]
Region = Annotated[str, Field(pattern=r"[A-Z]{2}(-[A-Z0-9]{1,3})?")]
"""A country or a part of one, as ISO 3166 writes it."""

SCHEMES: Final = ("https", "http")


def _check_uri(text: str) -> str:
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise PydanticCustomError(
            "secret", "a password must not stand in a definition → leave it out of the URI"
        )
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ValueError(f"{quote(text)} is no address → write https://service.example/privacy")
    return text


Uri = Annotated[str, Field(max_length=URI_LIMIT), AfterValidator(_check_uri)]


@register
class Control(Definition):
    """Something that people can choose, or ask for, about their data."""

    kind: ClassVar[str] = "control"
    concerns: ClassVar[Concern] = Concern.CONTROLS

    stateful: bool = Field(
        description="Whether it is a choice that holds on (opt-in, opt-out), or a single request."
    )
    default: Literal["opt-in", "opt-out"] = Field(
        default="opt-in", description="What holds for people who have not chosen; stateful only."
    )
    purposes: tuple[PurposePath, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Purposes that are prohibited for a person who opts out; stateful only.",
    )
    global_privacy_control: bool = Field(
        default=False,
        description="Whether the signal of a browser (`Sec-GPC: 1`) opts a person out; stateful "
        "only.",
    )
    operation: Literal["delete", "export", "other"] = Field(
        default="other", description="What is asked for; stateless only."
    )
    categories: tuple[PlainName, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Parts of it that can be chosen by themselves, such as age and gender.",
    )
    regions: tuple[Region, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Where it is offered: codes of ISO 3166. Left out: everywhere.",
    )
    time_to_honor: Span = Field(
        default=45 * DAY, description="The longest that the law allows every service to take."
    )

    @model_validator(mode="after")
    def _check_state(self) -> Self:
        if self.stateful and self.operation != "other":
            raise ValueError("operation is for single requests → leave it out, or stateful: false")
        if not self.stateful and (self.purposes or self.default != "opt-in"):
            raise ValueError("purposes and default are for choices → leave them out")
        if not self.stateful and self.global_privacy_control:
            raise ValueError("global_privacy_control is for choices → leave it out")
        return self


@register
class ControlPublisher(Definition):
    """A front end that takes people's choices and requests in."""

    kind: ClassVar[str] = "control-publisher"
    concerns: ClassVar[Concern] = Concern.CONTROLS

    subjects: tuple[Subject, ...] = Field(
        min_length=1, max_length=LIST_LIMIT, strict=False, description="Who may act as it."
    )
    retries: Annotated[int, Field(ge=0, le=MOST_RETRIES)] = Field(
        default=5, description="How often its client tries again where Penstock is out of reach."
    )
    retry_gap: Span = Field(
        default=1_000, description="The first wait of its client before it tries again."
    )
    controls: tuple[Annotated[PlainName, Reference("control")], ...] = Field(
        min_length=1,
        max_length=LIST_LIMIT,
        strict=False,
        description="The controls that it offers.",
    )


@register
class ControlSubscriber(Definition):
    """A service that must act on what people choose or ask for."""

    kind: ClassVar[str] = "control-subscriber"
    concerns: ClassVar[Concern] = Concern.CONTROLS

    subjects: tuple[Subject, ...] = Field(
        min_length=1, max_length=LIST_LIMIT, strict=False, description="Who may act as it."
    )
    control: Annotated[PlainName, Reference("control")] = Field(description="What it acts on.")
    categories: tuple[PlainName, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Only these categories of the control; left out: all.",
    )
    delivery: Literal["http", "http-sync"] = Field(
        default="http",
        description="How it is told. http: a signed call, which it acknowledges and completes "
        "later. http-sync: a call whose answer 200 means that it is done.",
    )
    uri: Uri = Field(description="Where it is told: https://…")
    time_to_honor: Span | None = Field(
        default=None, description="How long it may take; left out: as long as the control says."
    )
    send_retries: Annotated[int, Field(ge=0, le=MOST_RETRIES)] = Field(
        default=8, description="How often telling it is tried again."
    )
    deadline_retries: Annotated[int, Field(ge=0, le=MOST_RETRIES)] = Field(
        default=2, description="How often it is told again where it is overdue."
    )
    retry_gap: Span = Field(default=5_000, description="The first wait before trying again.")
    longest_gap: Span = Field(
        default=3_600_000, description="Waits double up to this, each with some chance in it."
    )

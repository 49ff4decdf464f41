"""What callers send and get: the shapes that OpenAPI describes, and that gRPC is held to, too.

Rules that hold here:
- Every text has a largest length, every list a largest number; unknown fields are refused.
- An answer says nothing about whom a request concerns.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from penstock.model.kinds import Control, ControlPublisher
from penstock.model.kinds.controls import EMAIL_LIMIT, EMAIL_PATTERN, MOBILE_PATTERN
from penstock.rights.broker import LINK_SECONDS, LONGEST_LINK, Submission
from penstock.rights.inquiries import MOST_LISTED, RequestReport, ServiceProgress, StateReport
from penstock.server.operations import DefinitionChange, Submitted
from penstock.store.rights.tables import ProgressStatus, RequestStatus

MOST_IN_A_BATCH: Final = 500
MOST_CATEGORIES: Final = 100

Name = Annotated[str, Field(min_length=1, max_length=256, examples=["portal"])]
Key = Annotated[
    str,
    Field(
        min_length=1,
        max_length=64,
        pattern=r"^[\x21-\x7e]+$",
        description="Names the request for good: the same key again is the same request.",
        examples=["5f8e1c9a7d3b4f60a1c2e3d4b5a69788"],
    ),
]
Person = Annotated[
    str,
    Field(
        min_length=1,
        max_length=250,
        description="Whom it is about, as records name the person. Only ever in a body.",
        examples=["4711"],
    ),
]
Choice = Literal["opt-in", "opt-out"]
Action = Literal["opt-in", "opt-out", "delete", "export", "other"]
TEXT_LIMIT: Final = 100_000
Kind = Literal["control", "control-publisher", "control-subscriber"]


class Shape(BaseModel):
    """What all shapes share."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SubmissionShape(Shape):
    """What a person chose or asked for."""

    publisher: Name
    key: Key
    control: Name
    action: Action
    subject: Person
    categories: Annotated[list[Name], Field(max_length=MOST_CATEGORIES)] = Field(
        default=[], description="Only these categories of the control; none: the whole of it."
    )


class BatchShape(Shape):
    """Several submissions, accepted all or none."""

    requests: Annotated[list[SubmissionShape], Field(min_length=1, max_length=MOST_IN_A_BATCH)]


class SignalShape(Shape):
    """A person whose browser signals Global Privacy Control."""

    publisher: Name
    key: Annotated[Key, Field(max_length=32)]
    subject: Person


class ServiceShape(Shape):
    """The service that answers."""

    subscriber: Name


class StatesQuery(Shape):
    """Whose states a service or a publisher asks for."""

    subject: Person


RequestIdText = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class RequestQuery(Shape):
    """Which request is asked about."""

    request: RequestIdText


class ListQuery(Shape):
    """Which requests of a publisher are asked for."""

    publisher: Name
    status: RequestStatus | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 100
    after: RequestIdText | None = None


class PublisherQuery(Shape):
    """Which publisher is asked about."""

    publisher: Name


class PublisherStatesQuery(StatesQuery):
    """Whose states a publisher asks for."""

    publisher: Name


class SubscriberStatesQuery(StatesQuery):
    """Whose states a service asks for."""

    subscriber: Name


MOBILE_LIMIT: Final = 16
_EMAIL: Final = WithJsonSchema(
    {"type": "string", "maxLength": EMAIL_LIMIT, "pattern": EMAIL_PATTERN}
)
_MOBILE: Final = WithJsonSchema(
    {"type": "string", "maxLength": MOBILE_LIMIT, "pattern": MOBILE_PATTERN}
)


class ContactQuery(Shape):
    """Where a person can be told of completed requests; without addresses it is forgotten."""

    subject: Person
    # Described here, checked where they are kept: there the refusal says how one looks.
    email: Annotated[str, Field(max_length=EMAIL_LIMIT), _EMAIL] | None = None
    mobile: Annotated[str, Field(max_length=MOBILE_LIMIT), _MOBILE] | None = None

    def addresses(self) -> dict[str, str]:
        """Return the addresses that are given."""
        given = {"email": self.email, "mobile": self.mobile}
        return {name: it for name, it in given.items() if it is not None}


class LinkQuery(Shape):
    """Whom a link to a person's own choices is for, and for how long."""

    subject: Person
    seconds: Annotated[int, Field(ge=1, le=LONGEST_LINK)] = LINK_SECONDS


class LinkShape(Shape):
    """A link to a person's own choices, for an `iframe` of a front end."""

    url: str
    expires: datetime


class PublisherContactQuery(ContactQuery):
    """Where a person can be told, and the publisher that says so."""

    publisher: Name


class ContactShape(Shape):
    """How many addresses are kept."""

    addresses: int


class ReceiptQuery(Shape):
    """Whose choice a receipt is asked for."""

    subject: Person


class RequestReceiptQuery(ReceiptQuery):
    """Which choice a receipt is asked for, and whose it is."""

    request: RequestIdText


class ReceiptPurpose(Shape):
    """A purpose that a choice is about, with its identifier in the Data Privacy Vocabulary."""

    name: str
    dpv: str | None


class ReceiptShape(Shape):
    """What a person chose, signed. `penstock requests verify-receipt` checks it."""

    version: str
    request: str
    publisher: str
    control: str
    choice: Choice
    categories: list[str]
    purposes: list[ReceiptPurpose]
    subject: str
    at: str
    epoch: int
    key: str
    signature: str


class ReceiptText(Shape):
    """A receipt as JSON."""

    json_text: str


class AnswerShape(ServiceShape):
    """The service that answers, and which request."""

    request: RequestIdText


class StateShape(Shape):
    """What holds for a person."""

    control: str
    category: str = Field(description="Empty for the control as a whole.")
    state: Choice
    version: int = Field(description="Grows with every choice; 0: the default holds.")

    @classmethod
    def of(cls, state: StateReport) -> Self:
        """Write a state down."""
        choice: Choice = "opt-out" if state.state == "opt-out" else "opt-in"
        return cls(
            control=state.control, category=state.category, state=choice, version=state.version
        )


class StatesShape(Shape):
    """What holds for a person, control by control."""

    states: list[StateShape]


class AcceptedShape(Shape):
    """A request that is durable, and what holds since."""

    request: str
    status: RequestStatus
    repeated: bool = Field(description="Whether it was accepted before, under the same key.")
    states: list[StateShape] = Field(
        description="What is persisted now, of a choice; empty for a single request."
    )

    @classmethod
    def of(cls, made: Submitted) -> Self:
        """Write an answer down."""
        return cls(
            request=made.accepted.id,
            status=made.accepted.status,
            repeated=made.accepted.repeated,
            states=[StateShape.of(it) for it in made.states],
        )


class AcceptedBatchShape(Shape):
    """Requests that are durable, in the order they were handed in."""

    requests: list[AcceptedShape]


class ProgressShape(Shape):
    """How far a service is."""

    subscriber: str
    status: ProgressStatus
    deadline: datetime | None = None


class RequestShape(Shape):
    """A request as its publisher sees it."""

    request: str
    publisher: str
    control: str
    action: str
    categories: list[str]
    status: RequestStatus
    at: datetime
    finished: datetime | None
    services: int
    done: int

    @classmethod
    def of(cls, report: RequestReport) -> Self:
        """Write a request down."""
        return cls(
            request=report.id,
            publisher=report.publisher,
            control=report.control,
            action=report.action,
            categories=list(report.categories),
            status=report.status,
            at=report.at,
            finished=report.finished,
            services=report.services,
            done=report.done,
        )


class RequestStatusShape(RequestShape):
    """A request with the progress of each service."""

    progress: list[ProgressShape]

    @classmethod
    def with_progress(cls, report: RequestReport, progress: list[ServiceProgress]) -> Self:
        """Write a request and its progress down."""
        return cls(
            **RequestShape.of(report).model_dump(),
            progress=[
                ProgressShape(subscriber=it.subscriber, status=it.status, deadline=it.deadline)
                for it in progress
            ],
        )


class RequestsShape(Shape):
    """Requests of a publisher, newest first."""

    requests: list[RequestShape]


class AnsweredShape(Shape):
    """How far a service is, after what it said."""

    request: str
    subscriber: str
    status: ProgressStatus


class ControlShape(Shape):
    """A control that a publisher offers."""

    name: str
    stateful: bool
    default: Choice
    categories: list[str]
    regions: list[str]
    global_privacy_control: bool

    @classmethod
    def of(cls, control: Control) -> Self:
        """Write a control down."""
        return cls(
            name=control.name,
            stateful=control.stateful,
            default=control.default,
            categories=list(control.categories),
            regions=list(control.regions),
            global_privacy_control=control.global_privacy_control,
        )


class PublisherShape(Shape):
    """What a publisher offers, and how its client tries again."""

    publisher: str
    controls: list[ControlShape]
    retries: int
    retry_gap: float = Field(description="Seconds before the first retry; waits double.")

    @classmethod
    def of(cls, publisher: ControlPublisher, controls: list[Control]) -> Self:
        """Write a publisher down."""
        return cls(
            publisher=publisher.name,
            controls=[ControlShape.of(it) for it in controls],
            retries=publisher.retries,
            retry_gap=publisher.retry_gap / 1000,
        )


class ProblemShape(BaseModel):
    """What went wrong, and the next step."""

    status: int
    code: str
    message: str
    fix: str
    places: list[str] = Field(default=[], description="Where a body is wrong.")


def to_submission(given: SubmissionShape) -> Submission:
    """Return what the broker is told of a submission."""
    return Submission(
        given.publisher,
        given.key,
        given.control,
        given.action,
        given.subject,
        tuple(given.categories),
    )


# --- what is wrong ---

_PLACES: Final = 20
_REASONS: Final = {
    "missing": "is missing",
    "extra_forbidden": "has a field that does not exist",
    "string_too_long": "is too long",
    "string_too_short": "is too short",
    "too_long": "has too many entries",
    "too_short": "has too few entries",
    "json_invalid": "is not JSON",
    "string_type": "is not text",
    "string_unicode": "is not text",
    "string_pattern_mismatch": "does not have the form",
    "literal_error": "is none of the known words",
    "enum": "is none of the known words",
}


@functools.cache
def _fields() -> frozenset[str]:
    """Return the names that places may have."""
    named = {name for shape in Shape.__subclasses__() for name in shape.model_fields}
    return frozenset({"body", "query", "path", "header", "limit", "after"} | named)


def list_places(errors: Sequence[Any]) -> list[str]:
    """Say where a call is wrong, and never what stands there.

    Of a place only names that we gave are told, and numbers.
    """
    places = []
    for found in errors[:_PLACES]:
        steps = [str(it) for it in found["loc"] if isinstance(it, int) or it in _fields()]
        places.append(f"{'.'.join(steps)}: {_REASONS.get(found['type'], 'is not valid')}")
    return places


class DefinitionShape(Shape):
    """A definition without kind and name: its fields, as in YAML."""

    body: dict[str, Any] = Field(
        examples=[{"stateful": False, "operation": "delete", "time_to_honor": "30d"}]
    )


class NamedDefinitionShape(DefinitionShape):
    """A definition."""

    kind: Kind
    name: str


class ChangeShape(Shape):
    """What became of a definition."""

    kind: Kind
    name: str
    epoch: int = Field(description="The epoch of the definitions that holds since.")
    changed: bool = Field(description="Whether it was another before.")

    @classmethod
    def of(cls, kind: Kind, made: DefinitionChange) -> ChangeShape:
        """Write a change down."""
        return cls(kind=kind, name=made.key.name, epoch=made.epoch, changed=made.changed)


class DefinitionQuery(Shape):
    """Which definition, by gRPC."""

    kind: Kind
    name: Name


class DefinitionText(DefinitionQuery):
    """A definition by gRPC: its fields as JSON."""

    json_text: Annotated[str, Field(max_length=TEXT_LIMIT)]


class EventTypesShape(Shape):
    """Signed event types, as definitions: each proves itself to whoever applies it."""

    event_types: list[dict[str, Any]]

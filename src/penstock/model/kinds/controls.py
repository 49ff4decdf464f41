"""Privacy controls: what people can choose or ask for, who takes it in, and who must honour it.

    control-publisher ──▶ control ◀── control-subscriber
    (a front end)         (the choice)  (a service that acts on it)

A stateful control has a state for each person, opted in or out, and never an unknown one. A
stateless control is a single request, such as a deletion.

Rules that hold here:
- Where a service is told is a place, never a way in: users, passwords and endpoints of queues and
  brokers stand in the settings.
- Texts for people have the placeholders of a fixed list, and titles no line ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from penstock.errors import quote
from penstock.model.definition import Concern, Definition, PlainName, Reference, register
from penstock.model.kinds.fields import Milliseconds, PurposePath, Subject

LIST_LIMIT: Final = 1_000
DAY: Final = 86_400_000
BUILT_IN: Final = "built-in"
"""How a service of Penstock's own is told: it is the worker itself."""
ERASURE: Final = "penstock:erasure"
EXPORT: Final = "penstock:export"
LONGEST_HONOR: Final = 366 * DAY
MOST_RETRIES: Final = 100
URI_LIMIT: Final = 2_000

Span = Annotated[Milliseconds, Field(gt=0, le=LONGEST_HONOR)]
Region = Annotated[str, Field(pattern=r"[A-Z]{2}(-[A-Z0-9]{1,3})?")]
"""A country or a part of one, as ISO 3166 writes it."""

SCHEMES: Final = ("https", "http")
_ARN: Final = (
    r"arn:aws(?:-cn|-us-gov)?:{}:[a-z]{{2}}(?:-[a-z]{{2,16}}){{1,3}}-[0-9]{{1,2}}:[0-9]{{12}}:"
)
# Delivery → the form of its place, and how to write it. No form can name a host: that of a queue
# follows from its region, that of a broker stands in the settings.
_PLACES: Final[Mapping[str, tuple[re.Pattern[str], str]]] = MappingProxyType(
    {
        "sqs": (
            re.compile(_ARN.format("sqs") + r"[A-Za-z0-9_-]{1,75}(?:\.fifo)?", re.ASCII),
            "arn:aws:sqs:eu-west-1:123456789012:privacy",
        ),
        "sns": (
            re.compile(_ARN.format("sns") + r"[A-Za-z0-9_-]{1,250}(?:\.fifo)?", re.ASCII),
            "arn:aws:sns:eu-west-1:123456789012:privacy",
        ),
        "kafka": (re.compile(r"kafka:[A-Za-z0-9.-][A-Za-z0-9._-]{0,248}"), "kafka:privacy.crm"),
        BUILT_IN: (re.compile(f"{ERASURE}|{EXPORT}"), ERASURE),
        "mqtt": (re.compile(r"mqtt:[^$+#\x00-\x1f\x7f][^+#\x00-\x1f\x7f]*"), "mqtt:privacy/crm"),
    }
)
# Letters, digits and a few signs: nothing that means something in a header or to a mail server.
EMAIL_PATTERN: Final = (
    r"^[A-Za-z0-9_%+-]+(?:\.[A-Za-z0-9_%+-]+)*@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*"
    r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?$"
)
MOBILE_PATTERN: Final = r"^\+[1-9][0-9]{6,14}$"
_EMAIL: Final = re.compile(EMAIL_PATTERN, re.ASCII)
_MOBILE: Final = re.compile(MOBILE_PATTERN, re.ASCII)
EMAIL_LIMIT: Final = 254
TEXT_LIMIT: Final = 2_000
PLACEHOLDERS: Final = frozenset({"action", "control", "date", "publisher", "request"})
PLACEHOLDER: Final = re.compile(r"\{([a-z]+)\}")


def _check_uri(text: str) -> str:
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise PydanticCustomError(
            "secret", "a password must not stand in a definition → leave it out of the URI"
        )
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ValueError(f"{quote(text)} is not an address → write https://service.example/privacy")
    return text


def is_email(text: str) -> bool:
    """Tell whether this is an e-mail address of the plain form."""
    return len(text) <= EMAIL_LIMIT and _EMAIL.fullmatch(text) is not None


def is_mobile(text: str) -> bool:
    """Tell whether this is a telephone number as E.164 writes it."""
    return _MOBILE.fullmatch(text) is not None


def _check_email(text: str) -> str:
    if not is_email(text):
        raise ValueError(f"{quote(text)} is not an e-mail address → write privacy@crm.example")
    return text


def _check_mobile(text: str) -> str:
    if not is_mobile(text):
        raise ValueError(f"{quote(text)} is not a telephone number → write +4791234567")
    return text


def _check_template(text: str) -> str:
    for found in PLACEHOLDER.finditer(text):
        if found[1] not in PLACEHOLDERS:
            known = ", ".join(f"{{{it}}}" for it in sorted(PLACEHOLDERS))
            raise ValueError(f"there is no placeholder {quote(found[0])} → there are {known}")
    if set("{}") & set(PLACEHOLDER.sub("", text)):
        raise ValueError("a brace stands alone → braces are for placeholders such as {control}")
    if any(ord(sign) < ord(" ") and sign != "\n" for sign in text):
        raise ValueError("the text has control characters → leave them out")
    return text


def _check_title(text: str) -> str:
    if "\n" in text:
        raise ValueError("a title is one line → leave line ends out")
    return text


Uri = Annotated[str, Field(max_length=URI_LIMIT), AfterValidator(_check_uri)]
Email = Annotated[str, AfterValidator(_check_email)]
Mobile = Annotated[str, AfterValidator(_check_mobile)]
Template = Annotated[
    str, Field(min_length=1, max_length=TEXT_LIMIT), AfterValidator(_check_template)
]
Title = Annotated[Template, Field(max_length=200), AfterValidator(_check_title)]


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
        if self.default == "opt-out" and self.purposes:
            # Enforcement points know who chose; that somebody did not choose, they cannot know.
            raise ValueError(
                "nobody can be kept out who has not chosen, so default: opt-out would not hold for "
                "purposes → leave purposes out and reserve the topics, or default: opt-in"
            )
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
    notify: tuple[Literal["email", "sms", "in-client"], ...] = Field(
        default=(),
        max_length=3,
        strict=False,
        description="How people are told that all services are done: at the address that the "
        "profile has, or by a signed call to `endpoint`.",
    )
    endpoint: Uri | None = Field(
        default=None, description="Where the front end is told, for in-client: https://…"
    )
    title: Title = Field(
        default="Your request is done",
        description="The title of an e-mail. Placeholders: {action}, {control}, {date}, "
        "{publisher}, {request}.",
    )
    text: Template = Field(
        default="Your request of {date} ({control}: {action}) is done.\nReference: {request}",
        description="The text of an e-mail or SMS, with the same placeholders.",
    )

    @model_validator(mode="after")
    def _check_endpoint(self) -> Self:
        if ("in-client" in self.notify) != (self.endpoint is not None):
            raise ValueError("in-client and endpoint go together → give both, or neither")
        return self


@register
class ControlSubscriber(Definition):
    """A service that must act on what people choose or ask for."""

    kind: ClassVar[str] = "control-subscriber"
    concerns: ClassVar[Concern] = Concern.CONTROLS

    subjects: tuple[Subject, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Who may act as it; nobody where it is built in.",
    )
    control: Annotated[PlainName, Reference("control")] = Field(description="What it acts on.")
    categories: tuple[PlainName, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Only these categories of the control; left out: all.",
    )
    delivery: Literal["http", "http-sync", "sqs", "sns", "kafka", "mqtt", "built-in"] = Field(
        default="http",
        description="How it is told. http: a signed call, which it acknowledges and completes "
        "later. http-sync: a call whose answer 200 means that it is done. sqs, sns, kafka, mqtt: "
        "a signed message, acknowledged and completed later. built-in: it is Penstock itself.",
    )
    uri: Annotated[str, Field(max_length=URI_LIMIT)] = Field(
        description="Where it is told: https://…, the ARN of a queue or SNS topic, kafka:TOPIC, "
        "mqtt:TOPIC; penstock:erasure or penstock:export for what Penstock itself keeps."
    )
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
    contact_email: Email | None = Field(
        default=None, description="Who is alerted where it fails: the address of a team."
    )
    contact_mobile: Mobile | None = Field(
        default=None, description="The same by SMS: a number such as +4791234567."
    )

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if bool(self.subjects) == (self.delivery == BUILT_IN):
            # Whoever acts for a service can say that it is done.
            raise ValueError(
                "a service has subjects who act as it, and a built-in one has none → "
                "name them, or leave them out with delivery: built-in"
            )
        place = _PLACES.get(self.delivery)
        if place is None:
            _check_uri(self.uri)
        elif not place[0].fullmatch(self.uri):
            raise ValueError(
                f"{quote(self.uri)} is not a place for {self.delivery} → write such as {place[1]}"
            )
        return self

"""OpenDSR-shaped endpoints: data subject requests in the words that others' systems speak.

    front end, as controller ──▶ POST /opendsr/requests ──▶ a single request of a control
                             ◀── GET /opendsr/requests/ID ── pending, in_progress, completed
    service, as processor    ──▶ POST /opendsr/callbacks ──▶ acknowledge, complete

Rules that hold here:
- A request is one identity of the type `controller_customer_id` and one of the types that a
  publisher of the caller's offers. Its `subject_request_id` is the key: again, it is the same.
- Nothing is promised that is not kept: where a request names callback URLs it is refused, as
  publishers are told by their definition (`notify`), and ask for the status.
- Receipts carry no signature of a processor's certificate: TLS says who answers.
"""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, FastAPI, Path
from pydantic import Field

from penstock.errors import UsageError, quote
from penstock.model.kinds import Control
from penstock.rights.broker import Submission
from penstock.server import shapes
from penstock.server.connection import caller_of
from penstock.server.operations import PrivacyOperations
from penstock.store.rights.progress import RequestStatus

VERSION: Final = "3.0"
_IDENTITY: Final = "controller_customer_id"
_OPERATIONS: Final = {"erasure": "delete", "access": "export", "portability": "export"}
_STATUSES: Final = {
    RequestStatus.INIT: "pending",
    RequestStatus.INPROGRESS: "in_progress",
    RequestStatus.COMPLETED: "completed",
    # Not done yet: it is followed up, and a late completion counts.
    RequestStatus.SOMEFAILED: "in_progress",
}

Identifier = Annotated[
    str,
    Field(
        pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$",
        description="A random UUID, in small letters.",
        examples=["4f9f1d5e-7f35-4f3a-9d6b-2f6a0c1d2e3f"],
    ),
]
RequestType = Literal["erasure", "access", "portability"]
User = Annotated[str, Depends(caller_of)]


class Identity(shapes.Shape):
    """Whom a request is about."""

    identity_type: Literal["controller_customer_id"]
    identity_value: shapes.Person
    identity_format: Literal["raw"] = "raw"


class SubjectRequest(shapes.Shape):
    """A data subject request, as OpenDSR writes it."""

    regulation: Literal["gdpr", "ccpa"] = "gdpr"
    subject_request_id: Identifier
    subject_request_type: RequestType
    submitted_time: datetime
    subject_identities: Annotated[list[Identity], Field(min_length=1, max_length=1)]
    api_version: Annotated[str, Field(max_length=16)] = VERSION
    status_callback_urls: tuple[()] = ()
    property_id: shapes.Name = Field(description="The publisher that the caller acts for.")


class SubjectReceipt(shapes.Shape):
    """What became of a request."""

    controller_id: str
    subject_request_id: Identifier
    request_status: Literal["pending", "in_progress", "completed"]
    received_time: datetime
    expected_completion_time: datetime
    api_version: str = VERSION


class IdentityForm(shapes.Shape):
    """An identity that requests may name."""

    identity_type: str
    identity_format: str


class Discovery(shapes.Shape):
    """What this server takes."""

    api_version: str
    supported_identities: list[IdentityForm]
    supported_subject_request_types: list[RequestType]


class Callback(shapes.Shape):
    """What a service says of a request that it was told of."""

    subject_request_id: Annotated[
        str, Field(pattern=r"^[0-9a-f]{32}$", description="The request, as the service was told.")
    ]
    request_status: Literal["pending", "in_progress", "completed"]
    subscriber: shapes.Name


def add_routes(app: FastAPI, operations: PrivacyOperations) -> None:
    """Add the endpoints."""

    @app.get("/opendsr/discovery")
    async def discover(user: User) -> Discovery:
        """Say which requests and identities are taken."""
        del user
        return Discovery(
            api_version=VERSION,
            supported_identities=[IdentityForm(identity_type=_IDENTITY, identity_format="raw")],
            supported_subject_request_types=["erasure", "access", "portability"],
        )

    @app.post(
        "/opendsr/requests",
        status_code=HTTPStatus.CREATED,
        responses=_CONFLICT,
    )
    async def submit(given: SubjectRequest, user: User) -> SubjectReceipt:
        """Hand an erasure, an access or a portability request in."""
        publisher, controls = await operations.publisher(user, given.property_id)
        control = _find_control(publisher.name, controls, given.subject_request_type)
        key, (identity,) = given.subject_request_id, given.subject_identities
        wanted = Submission(
            publisher.name, key, control.name, control.operation, identity.identity_value
        )
        await operations.submit(user, [wanted])
        return await _receipt(operations, user, publisher.name, given.subject_request_id)

    @app.get("/opendsr/requests/{publisher}/{subject_request_id}")
    async def show(
        publisher: Annotated[shapes.Name, Path()],
        subject_request_id: Annotated[Identifier, Path()],
        user: User,
    ) -> SubjectReceipt:
        """Say how far a request is."""
        return await _receipt(operations, user, publisher, subject_request_id)

    @app.post("/opendsr/callbacks")
    async def take_callback(given: Callback, user: User) -> shapes.AnsweredShape:
        """Take what a service says of a request: under way, or done."""
        done = given.request_status == "completed"
        say = operations.complete if done else operations.acknowledge
        status = await say(user, given.subject_request_id, given.subscriber)
        return shapes.AnsweredShape(
            request=given.subject_request_id, subscriber=given.subscriber, status=status
        )


_CONFLICT: Final[dict[int | str, dict[str, Any]]] = {
    HTTPStatus.CONFLICT.value: {
        "description": "The identifier names another request.",
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemShape"}}
        },
    }
}


def _find_control(publisher: str, controls: list[Control], wanted: RequestType) -> Control:
    operation = _OPERATIONS[wanted]
    found = [it for it in controls if not it.stateful and it.operation == operation]
    if len(found) != 1:
        raise UsageError(
            f"{quote(publisher)} offers {len(found)} controls for {wanted}",
            fix="ask the data officer for exactly one, or use /v1/requests",
        )
    return found[0]


async def _receipt(
    operations: PrivacyOperations, user: str, publisher: str, identity: str
) -> SubjectReceipt:
    report, expected = await operations.find(user, publisher, identity)
    status = _STATUSES[report.status]
    return SubjectReceipt.model_validate(
        {
            "controller_id": publisher,
            "subject_request_id": identity,
            "request_status": status,
            "received_time": report.at,
            "expected_completion_time": expected,
        }
    )

"""The REST application: routes, errors of one shape, and the description at /openapi.json.

Rules that hold here:
- Who calls is in the scope before a route runs (`Gatekeeper`); no route finds it out by itself.
- Whom something is about stands in a body, never in a path or a query: those are logged by
  whatever is on the way.
- Whoever changes a service's address, or who acts for it, says where people's requests go: routes
  of definitions take the right to administer, and name controls, front ends and services only; no
  right, role or policy changes here. They are checked as `apply` checks, stored, audited, and
  followed by the other parts within their lease. Whoever has a token may read signed event types.
- Every answer that is no success is a `ProblemShape`, with the type application/problem+json.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from penstock import __version__
from penstock.errors import PenstockError
from penstock.model.document import Document, Key
from penstock.rights.inquiries import MOST_LISTED
from penstock.server import opendsr, shapes
from penstock.server.callers import MISSHAPEN, CallerAuthenticator, Problem, describe, list_problems
from penstock.server.connection import Gatekeeper, caller_of
from penstock.server.operations import PrivacyOperations
from penstock.store.rights.tables import RequestStatus

PROBLEM: Final = "application/problem+json"
_SIGNAL: Final = "1"

RequestId = Annotated[
    str, Path(pattern=r"^[0-9a-f]{32}$", description="The request.", examples=["0" * 32])
]
KindInPath = Annotated[shapes.Kind, Path(description="What is defined.")]
NameInPath = Annotated[shapes.Name, Path(description="Its name.")]
User = Annotated[str, Depends(caller_of)]


def make_app(
    operations: PrivacyOperations, authenticator: CallerAuthenticator, body_limit: int
) -> ASGIApp:
    """Return the application that connections are served by."""
    app = FastAPI(
        title="Penstock privacy requests",
        version=__version__,
        description="Front ends hand in what people choose and ask for; services answer.",
        docs_url=None,
        redoc_url=None,
        # A path is what it is: a redirect would lead to a place that the caller names.
        redirect_slashes=False,
        responses=_problems(
            (HTTPStatus.UNAUTHORIZED, "Nobody knows who calls."),
            (HTTPStatus.NOT_FOUND, "There is no such thing for this user."),
            (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too large."),
            (HTTPStatus.UNPROCESSABLE_ENTITY, "What is asked for makes no sense."),
            (HTTPStatus.TOO_MANY_REQUESTS, "Too many calls."),
            (HTTPStatus.SERVICE_UNAVAILABLE, "The store is away: nothing was accepted."),
        ),
    )
    _add_publisher_routes(app, operations)
    _add_profile_routes(app, operations)
    _add_service_routes(app, operations)
    _add_definition_routes(app, operations)
    opendsr.add_routes(app, operations)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(PenstockError, _on_error)
    app.add_exception_handler(Exception, _on_error)
    _declare_proofs(app)
    # Written once: strangers may ask for it as often as they like.
    written = json.dumps(app.openapi(), separators=(",", ":")).encode()
    return Gatekeeper(app, authenticator, body_limit, answer, {app.openapi_url or "": written})


def _add_publisher_routes(app: FastAPI, operations: PrivacyOperations) -> None:
    conflict = _problems((HTTPStatus.CONFLICT, "The key names another request."))

    @app.post(
        "/v1/requests",
        status_code=HTTPStatus.CREATED,
        responses={
            **conflict,
            HTTPStatus.ACCEPTED.value: {
                "model": shapes.AcceptedShape,
                "description": "A single request is durable; services follow.",
            },
        },
    )
    async def submit(
        given: shapes.SubmissionShape, user: User, response: Response
    ) -> shapes.AcceptedShape:
        """Hand a choice or a request in.

        A choice (201) is committed and enforced when the answer comes, with what is persisted
        then. A single request (202) is durable, and services are told.
        """
        (made,) = await operations.submit(user, [shapes.to_submission(given)])
        if not made.stateful:
            response.status_code = HTTPStatus.ACCEPTED
        return shapes.AcceptedShape.of(made)

    @app.post("/v1/requests/batch", status_code=HTTPStatus.CREATED, responses=conflict)
    async def submit_batch(given: shapes.BatchShape, user: User) -> shapes.AcceptedBatchShape:
        """Hand several in, all or none of them."""
        wanted = [shapes.to_submission(it) for it in given.requests]
        made = await operations.submit(user, wanted, batch=True)
        return shapes.AcceptedBatchShape(requests=[shapes.AcceptedShape.of(it) for it in made])

    @app.post("/v1/signals", responses=conflict)
    async def signal(
        request: Request, given: shapes.SignalShape, user: User
    ) -> shapes.AcceptedBatchShape:
        """Pass on a browser's `Sec-GPC: 1`: an opt-out of the controls that heed it.

        Without the header, or with any other value, there is no signal and nothing happens. Who
        has opted out already stays so.
        """
        if request.headers.getlist("sec-gpc") != [_SIGNAL]:
            return shapes.AcceptedBatchShape(requests=[])
        made = await operations.signal(user, given.publisher, given.subject, given.key)
        return shapes.AcceptedBatchShape(requests=[shapes.AcceptedShape.of(it) for it in made])

    @app.get("/v1/requests")
    async def list_requests(
        user: User,
        publisher: Annotated[shapes.Name, Query()],
        status: Annotated[RequestStatus | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
        after: Annotated[
            str | None,
            Query(pattern=r"^[0-9a-f]{32}$", description="The last request of the page before."),
        ] = None,
    ) -> shapes.RequestsShape:
        """List requests of a publisher, newest first."""
        found = await operations.list_own(user, publisher, status, limit, after)
        return shapes.RequestsShape(requests=[shapes.RequestShape.of(it) for it in found])

    @app.get("/v1/requests/{request}")
    async def show_request(request: RequestId, user: User) -> shapes.RequestStatusShape:
        """Say how far a request is, and each service with it."""
        report, progress = await operations.status(user, request)
        return shapes.RequestStatusShape.with_progress(report, progress)

    @app.post("/v1/requests/{request}/receipt")
    async def show_receipt(
        request: RequestId, given: shapes.ReceiptQuery, user: User
    ) -> shapes.ReceiptShape:
        """Give the signed receipt of a choice, for the person to keep."""
        found = await operations.receipt(user, request, given.subject)
        return shapes.ReceiptShape.model_validate(found)


def _add_profile_routes(app: FastAPI, operations: PrivacyOperations) -> None:
    @app.get("/v1/publishers/{publisher}")
    async def show_publisher(
        publisher: Annotated[shapes.Name, Path()], user: User
    ) -> shapes.PublisherShape:
        """Say what a publisher offers, and how its client tries again."""
        found, controls = await operations.publisher(user, publisher)
        return shapes.PublisherShape.of(found, controls)

    @app.post("/v1/publishers/{publisher}/contact")
    async def set_contact(
        publisher: Annotated[shapes.Name, Path()], given: shapes.ContactQuery, user: User
    ) -> shapes.ContactShape:
        """Keep where a person can be told of completed requests; without addresses, forget it."""
        addresses = given.addresses()
        await operations.set_contact(user, publisher, given.subject, addresses)
        return shapes.ContactShape(addresses=len(addresses))

    @app.post("/v1/publishers/{publisher}/link")
    async def make_link(
        publisher: Annotated[shapes.Name, Path()], given: shapes.LinkQuery, user: User
    ) -> shapes.LinkShape:
        """Give a link to a page of the console with one person's choices, to be embedded.

        Whoever has the link can see and change them until it ends: show it to that person alone.
        """
        url, end = await operations.link(user, publisher, given.subject, given.seconds)
        return shapes.LinkShape(url=url, expires=end)

    @app.post("/v1/publishers/{publisher}/states")
    async def show_offered_states(
        publisher: Annotated[shapes.Name, Path()], given: shapes.StatesQuery, user: User
    ) -> shapes.StatesShape:
        """Say what is persisted of a person's choices, of the controls that a publisher offers.

        A POST, so that whom it is about stands in no URL. It changes nothing.
        """
        found = await operations.states(user, given.subject, publisher=publisher)
        return shapes.StatesShape(states=[shapes.StateShape.of(it) for it in found])


def _add_service_routes(app: FastAPI, operations: PrivacyOperations) -> None:
    @app.post("/v1/requests/{request}/acknowledge")
    async def acknowledge(
        request: RequestId, given: shapes.ServiceShape, user: User
    ) -> shapes.AnsweredShape:
        """Say for a service that it knows of a request."""
        status = await operations.acknowledge(user, request, given.subscriber)
        return shapes.AnsweredShape(request=request, subscriber=given.subscriber, status=status)

    @app.post("/v1/requests/{request}/complete")
    async def complete(
        request: RequestId, given: shapes.ServiceShape, user: User
    ) -> shapes.AnsweredShape:
        """Say for a service that it has done its part; late and repeated ones count, too."""
        status = await operations.complete(user, request, given.subscriber)
        return shapes.AnsweredShape(request=request, subscriber=given.subscriber, status=status)

    @app.post("/v1/subscribers/{subscriber}/states")
    async def show_states(
        subscriber: Annotated[shapes.Name, Path()], given: shapes.StatesQuery, user: User
    ) -> shapes.StatesShape:
        """Say what is persisted of a person's choices, of the control that a service acts on.

        A POST, so that whom it is about stands in no URL. It changes nothing.
        """
        found = await operations.states(user, given.subject, subscriber=subscriber)
        return shapes.StatesShape(states=[shapes.StateShape.of(it) for it in found])


def _problems(*known: tuple[HTTPStatus, str]) -> dict[int | str, dict[str, Any]]:
    """Describe answers that are no success."""
    return {
        status.value: {
            "description": about,
            "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/ProblemShape"}}},
        }
        for status, about in known
    }


def _add_definition_routes(app: FastAPI, operations: PrivacyOperations) -> None:

    @app.get("/v1/event-types")
    async def list_event_types(user: User) -> shapes.EventTypesShape:
        """Give the signed event types that are registered here, for other domains."""
        found = await operations.event_types(user)
        return shapes.EventTypesShape(event_types=[it.fields() for it in found])

    @app.get("/v1/definitions/{kind}/{name}")
    async def show_definition(
        kind: KindInPath, name: NameInPath, user: User
    ) -> shapes.NamedDefinitionShape:
        """Show a control, publisher or subscriber; takes the right to administer."""
        found = await operations.definition(user, Key(kind, name))
        return shapes.NamedDefinitionShape(kind=kind, name=name, body=dict(found.body))

    @app.put("/v1/definitions/{kind}/{name}")
    async def define(
        kind: KindInPath, name: NameInPath, given: shapes.DefinitionShape, user: User
    ) -> shapes.ChangeShape:
        """Register or change one; takes the right to administer.

        It is checked as a whole with all others. What is wrong with it stands in `places`.
        """
        made = await operations.define(user, Document(kind, name, given.body))
        return shapes.ChangeShape.of(kind, made)

    @app.delete("/v1/definitions/{kind}/{name}")
    async def undefine(kind: KindInPath, name: NameInPath, user: User) -> shapes.ChangeShape:
        """Delete one that no other names; takes the right to administer.

        Requests that a deleted service still has to do its part of fail, and its team is alerted.
        """
        made = await operations.undefine(user, Key(kind, name))
        return shapes.ChangeShape.of(kind, made)


def _declare_proofs(app: FastAPI) -> None:
    """Describe in OpenAPI how callers prove who they are."""
    made = app.openapi()
    parts = made.setdefault("components", {})
    parts["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "password": {"type": "http", "scheme": "basic"},
    }
    parts.setdefault("schemas", {})["ProblemShape"] = shapes.ProblemShape.model_json_schema()
    made["security"] = [{"token": []}, {"password": []}]


# --- errors ---


def answer(problem: Problem, places: list[str] | None = None) -> JSONResponse:
    """Write a problem as an answer."""
    shape = shapes.ProblemShape(
        status=problem.status,
        code=problem.code,
        message=problem.message,
        fix=problem.fix,
        places=places or [],
    )
    headers = {"Cache-Control": "no-store"}
    if problem.retry_after is not None:
        headers["Retry-After"] = str(problem.retry_after)
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="penstock"'
    return JSONResponse(shape.model_dump(), problem.status, headers, media_type=PROBLEM)


async def _on_error(request: Request, error: Exception) -> Response:
    del request
    return answer(describe(error), list_problems(error))


async def _on_invalid(request: Request, error: Exception) -> Response:
    """Say where a call is wrong, and never what stands there."""
    del request
    found = error.errors() if isinstance(error, RequestValidationError) else ()
    return answer(MISSHAPEN, shapes.list_places(found))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Answer what no route knows, in the shape of all problems."""
    del request
    status = HTTPStatus(error.status_code) if isinstance(error, HTTPException) else HTTPStatus(500)
    if status == HTTPStatus.BAD_REQUEST:
        status = HTTPStatus.UNPROCESSABLE_ENTITY  # a body that cannot be read
    problem = Problem(status, "no-such-call", status.phrase.lower(), "see /openapi.json")
    made = answer(problem)
    if isinstance(error, HTTPException) and error.headers:
        made.headers.update(error.headers)
    return made

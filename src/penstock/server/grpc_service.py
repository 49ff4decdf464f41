"""gRPC: the operations as remote procedures, over the messages of `privacy.proto`.

    channel ─▶ who calls? ─▶ message ─▶ shape of REST: limits ─▶ operation ─▶ message

Rules that hold here:
- Who calls is found out before a message is decoded.
- What REST would refuse is refused here: messages are held to the same shapes.
- A call ends at its caller's deadline, and at the server's limit at the latest.
- An error has the code of gRPC that fits, and a `Problem` in the trailing metadata.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError, Message
from pydantic import BaseModel, ValidationError

from penstock.client.privacy import privacy_pb2 as messages
from penstock.config.listeners import ServerListenerSettings
from penstock.config.rights import ServerLimitSettings
from penstock.errors import UnavailableError, UsageError, quote
from penstock.gateway.service.listeners import make_context, mark_files
from penstock.model.document import Document, Key
from penstock.server import shapes
from penstock.server.callers import MISSHAPEN, CallerAuthenticator, Problem, describe, list_problems
from penstock.server.operations import PrivacyOperations
from penstock.telemetry import get_logger

SERVICE: Final = "penstock.v1.PrivacyRequests"
PROBLEM: Final = "penstock-problem-bin"
METADATA_LIMIT: Final = 16 * 1024
ANSWER_LIMIT: Final = 8 << 20
STREAMS_LIMIT: Final = 128
HANDSHAKE_MS: Final = 10_000
IDLE_MS: Final = 300_000
GRACE_SECONDS: Final = 5.0

_STATUSES: Final = {
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
    HTTPStatus.UNPROCESSABLE_ENTITY: grpc.StatusCode.INVALID_ARGUMENT,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}
_log = get_logger("server")

Fields = dict[str, Any]


class Procedure(NamedTuple):
    """A remote procedure: its messages, and what it does for a user."""

    request: type[Message]
    response: type[Message]
    run: Callable[[str, Fields], Awaitable[BaseModel]]


class GrpcServer:
    """All gRPC listeners of the server, on the running loop."""

    def __init__(
        self,
        operations: PrivacyOperations,
        authenticator: CallerAuthenticator,
        limits: ServerLimitSettings,
    ) -> None:
        self._authenticator = authenticator
        self._limits = limits
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limits.body),
                ("grpc.max_send_message_length", ANSWER_LIMIT),
                ("grpc.max_metadata_size", METADATA_LIMIT),
                ("grpc.max_concurrent_streams", STREAMS_LIMIT),
                ("grpc.max_allowed_incoming_connections", limits.connections),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                ("grpc.max_connection_idle_ms", IDLE_MS),
                # Whoever pings more often than this, without calls, is closed.
                ("grpc.http2.min_recv_ping_interval_without_data_ms", IDLE_MS),
                ("grpc.http2.max_ping_strikes", 2),
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=limits.connections,
        )
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._serve(it))
            for name, it in make_procedures(operations).items()
        }
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.add_generic_rpc_handlers((generic,))

    def listen(self, name: str, settings: ServerListenerSettings) -> int:
        """Listen as the settings say, once it is started; return the port."""
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.port}"
        try:
            if settings.encrypted:
                port = self._server.add_secure_port(address, make_credentials(settings))
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError:
            raise UnavailableError(
                f"the listener {quote(name)} cannot listen on {settings.host} port {settings.port}",
                fix="choose a free port, or end the program that has it",
            ) from None
        _log.info("listening", kind=settings.protocol, host=settings.host, port=port)
        return int(port)

    async def start(self) -> None:
        """Accept calls."""
        await self._server.start()

    async def close(self) -> None:
        """Accept nobody any more, and let the calls that are under way end."""
        await self._server.stop(GRACE_SECONDS)

    def _serve(self, procedure: Procedure) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def serve(given: bytes, context: Any) -> bytes:
            try:
                async with asyncio.timeout(self._seconds_for(context)):
                    user = await self._identify(context)
                    decoded = procedure.request.FromString(given)
                    fields = MessageToDict(decoded, preserving_proto_field_name=True)
                    made = await procedure.run(user, fields)
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "it took too long")
                raise
            except ValidationError as error:
                await _abort(context, MISSHAPEN, shapes.list_places(error.errors()))
                raise
            except DecodeError:
                await _abort(context, MISSHAPEN, ["the message cannot be read"])
                raise
            except Exception as error:
                await _abort(context, describe(error), list_problems(error))
                raise
            answer = made.model_dump(mode="json", exclude_none=True)
            return bytes(ParseDict(answer, procedure.response()).SerializeToString())

        return serve

    def _seconds_for(self, context: Any) -> float:
        """Return how long a call may take."""
        left = context.time_remaining()
        return float(min(self._limits.timeout, left if left is not None else self._limits.timeout))

    async def _identify(self, context: Any) -> str:
        given = [value for key, value in context.invocation_metadata() if key == "authorization"]
        names = context.auth_context().get("x509_common_name", ())
        certificate = None
        if names:
            certificate = {"subject": ((("commonName", bytes(names[0]).decode()),),)}
        proof = str(given[0]) if len(given) == 1 else None
        return await self._authenticator.identify(proof, certificate, address_of(context.peer()))


def address_of(peer: str) -> str:
    """Return the address in what gRPC says of a peer: `ipv4:127.0.0.1:1`, `ipv6:%5B::1%5D:1`."""
    _, _, rest = peer.partition(":")
    host, _, _ = rest.replace("%5B", "[").replace("%5D", "]").rpartition(":")
    return host.strip("[]") or peer


def make_credentials(settings: ServerListenerSettings) -> Any:
    """Make the TLS of a listener; where it names certificates, every client has to show one."""
    mark = mark_files(settings)

    def refresh() -> Any:
        """Return changed files; None: as before. gRPC asks before each handshake."""
        nonlocal mark
        now = mark_files(settings)
        if now == mark:
            return None
        mark = now
        try:
            return _read_certificates(settings)
        except UnavailableError as error:
            _log.error("changed TLS files cannot be used: the earlier ones stay", error=error)
            return None

    return grpc.dynamic_ssl_server_credentials(
        _read_certificates(settings),
        refresh,
        require_client_authentication=bool(settings.client_ca),
    )


def _read_certificates(settings: ServerListenerSettings) -> Any:
    if settings.certificate is None or settings.key is None:
        raise UnavailableError("a TLS listener has no certificate or key", fix="set both")
    make_context(settings)  # raises what is wrong with them; gRPC would only stop to answer
    try:
        chain = settings.certificate.read_bytes()
        roots = settings.client_ca.read_bytes() if settings.client_ca else None
    except OSError as error:
        raise UnavailableError(
            f"the TLS files of a listener cannot be used: {error.strerror}",
            fix=f"check {settings.certificate} and the client certificates",
        ) from None
    return grpc.ssl_server_certificate_configuration([(settings.key.read(), chain)], roots)


async def _abort(context: Any, problem: Problem, places: Sequence[str] = ()) -> None:
    """End a call with a problem; it raises."""
    status = _STATUSES.get(problem.status, grpc.StatusCode.INTERNAL)
    told = messages.Problem(
        code=problem.code, message=problem.message, fix=problem.fix, places=places
    )
    await context.abort(status, problem.message, ((PROBLEM, told.SerializeToString()),))


def make_procedures(operations: PrivacyOperations) -> dict[str, Procedure]:
    """Return all procedures by name."""

    async def submit(user: str, fields: Fields) -> BaseModel:
        given = shapes.SubmissionShape.model_validate(fields)
        (made,) = await operations.submit(user, [shapes.to_submission(given)])
        return shapes.AcceptedShape.of(made)

    async def submit_batch(user: str, fields: Fields) -> BaseModel:
        given = shapes.BatchShape.model_validate(fields)
        wanted = [shapes.to_submission(it) for it in given.requests]
        made = await operations.submit(user, wanted, batch=True)
        return shapes.AcceptedBatchShape(requests=[shapes.AcceptedShape.of(it) for it in made])

    async def signal(user: str, fields: Fields) -> BaseModel:
        given = shapes.SignalShape.model_validate(fields)
        made = await operations.signal(user, given.publisher, given.subject, given.key)
        return shapes.AcceptedBatchShape(requests=[shapes.AcceptedShape.of(it) for it in made])

    async def status(user: str, fields: Fields) -> BaseModel:
        given = shapes.RequestQuery.model_validate(fields)
        report, progress = await operations.status(user, given.request)
        return shapes.RequestStatusShape.with_progress(report, progress)

    async def list_requests(user: str, fields: Fields) -> BaseModel:
        given = shapes.ListQuery.model_validate(fields)
        found = await operations.list_own(
            user, given.publisher, given.status, given.limit, given.after
        )
        return shapes.RequestsShape(requests=[shapes.RequestShape.of(it) for it in found])

    async def receipt(user: str, fields: Fields) -> BaseModel:
        given = shapes.RequestReceiptQuery.model_validate(fields)
        found = await operations.receipt(user, given.request, given.subject)
        return shapes.ReceiptText(json_text=json.dumps(found))

    async def publisher(user: str, fields: Fields) -> BaseModel:
        given = shapes.PublisherQuery.model_validate(fields)
        return shapes.PublisherShape.of(*await operations.publisher(user, given.publisher))

    async def offered_states(user: str, fields: Fields) -> BaseModel:
        given = shapes.PublisherStatesQuery.model_validate(fields)
        found = await operations.states(user, given.subject, publisher=given.publisher)
        return shapes.StatesShape(states=[shapes.StateShape.of(it) for it in found])

    async def set_contact(user: str, fields: Fields) -> BaseModel:
        given = shapes.PublisherContactQuery.model_validate(fields)
        addresses = given.addresses()
        await operations.set_contact(user, given.publisher, given.subject, addresses)
        return shapes.ContactShape(addresses=len(addresses))

    async def states(user: str, fields: Fields) -> BaseModel:
        given = shapes.SubscriberStatesQuery.model_validate(fields)
        found = await operations.states(user, given.subject, subscriber=given.subscriber)
        return shapes.StatesShape(states=[shapes.StateShape.of(it) for it in found])

    made: dict[str, tuple[Any, Any, Any]] = {
        "Submit": (messages.Submission, messages.Accepted, submit),
        "SubmitBatch": (messages.Batch, messages.AcceptedBatch, submit_batch),
        "Signal": (messages.SignalRequest, messages.AcceptedBatch, signal),
        "Status": (messages.StatusRequest, messages.RequestStatus, status),
        "List": (messages.ListRequest, messages.Requests, list_requests),
        "Publisher": (messages.PublisherRequest, messages.PublisherDescription, publisher),
        "OfferedStates": (messages.OfferedStatesRequest, messages.StateList, offered_states),
        "States": (messages.StatesRequest, messages.StateList, states),
        "Receipt": (messages.ReceiptRequest, messages.ReceiptText, receipt),
        "SetContact": (messages.ContactRequest, messages.Contact, set_contact),
        "Acknowledge": (
            messages.Answer,
            messages.Answered,
            partial(_answer, operations.acknowledge),
        ),
        "Complete": (messages.Answer, messages.Answered, partial(_answer, operations.complete)),
    }
    made |= _procedures_of_definitions(operations)
    return {name: Procedure(*it) for name, it in made.items()}


def _procedures_of_definitions(
    operations: PrivacyOperations,
) -> dict[str, tuple[Any, Any, Any]]:
    async def show_definition(user: str, fields: Fields) -> BaseModel:
        given = shapes.DefinitionQuery.model_validate(fields)
        found = await operations.definition(user, Key(given.kind, given.name))
        text = json.dumps(dict(found.body), ensure_ascii=False)
        return shapes.DefinitionText(kind=given.kind, name=given.name, json_text=text)

    async def define(user: str, fields: Fields) -> BaseModel:
        given = shapes.DefinitionText.model_validate(fields)
        try:
            body = shapes.DefinitionShape.model_validate({"body": json.loads(given.json_text)}).body
        except (json.JSONDecodeError, RecursionError):
            raise UsageError(
                "json_text is not JSON", fix="write the fields of the definition as a JSON object"
            ) from None
        made = await operations.define(user, Document(given.kind, given.name, body))
        return shapes.ChangeShape.of(given.kind, made)

    async def undefine(user: str, fields: Fields) -> BaseModel:
        given = shapes.DefinitionQuery.model_validate(fields)
        made = await operations.undefine(user, Key(given.kind, given.name))
        return shapes.ChangeShape.of(given.kind, made)

    return {
        "ShowDefinition": (messages.DefinitionName, messages.Definition, show_definition),
        "Define": (messages.Definition, messages.DefinitionChange, define),
        "Undefine": (messages.DefinitionName, messages.DefinitionChange, undefine),
    }


async def _answer(say: Callable[..., Awaitable[Any]], user: str, fields: Fields) -> BaseModel:
    given = shapes.AnswerShape.model_validate(fields)
    status = await say(user, given.request, given.subscriber)
    return shapes.AnsweredShape(request=given.request, subscriber=given.subscriber, status=status)

"""gRPC to the server of privacy requests.

Rules that hold here:
- Every call has a deadline, so that none waits for ever.
- A token is sent over TLS, or to this machine; never elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError

from penstock.client.privacy import privacy_pb2 as messages
from penstock.client.privacy.transport import (
    RejectedError,
    UnreachableError,
    is_loopback,
)
from penstock.errors import UsageError, quote

PROBLEM: Final = "penstock-problem-bin"
ANSWER_LIMIT: Final = 8 << 20
_FINAL: Final = frozenset(
    {
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
# Call → procedure, its request, its answer.
_CALLS: Final[Mapping[str, tuple[str, Any, Any]]] = {
    "submit": ("Submit", messages.Submission, messages.Accepted),
    "signal": ("Signal", messages.SignalRequest, messages.AcceptedBatch),
    "status": ("Status", messages.StatusRequest, messages.RequestStatus),
    "publisher": ("Publisher", messages.PublisherRequest, messages.PublisherDescription),
    "offered_states": ("OfferedStates", messages.OfferedStatesRequest, messages.StateList),
    "states": ("States", messages.StatesRequest, messages.StateList),
    "receipt": ("Receipt", messages.ReceiptRequest, messages.ReceiptText),
    "contact": ("SetContact", messages.ContactRequest, messages.Contact),
    "acknowledge": ("Acknowledge", messages.Answer, messages.Answered),
    "complete": ("Complete", messages.Answer, messages.Answered),
}


class GrpcTransport:
    """gRPC over one channel. Threads may share it."""

    def __init__(
        self,
        target: str,
        token: str | None = None,
        *,
        roots: bytes | None = None,
        certificate: tuple[bytes, bytes] | None = None,
        plain: bool = False,
        timeout: float = 10.0,
    ) -> None:
        """Connect to `HOST:PORT`.

        `roots` are certificates in PEM form that the server's is checked against, else those of
        the system; `certificate` is a client's chain and its key. `plain` is for this machine.
        """
        host = target.rpartition(":")[0].strip("[]")
        if not host:
            raise UsageError(f"{quote(target)} is not an address", fix="write HOST:PORT")
        if plain and not is_loopback(host):
            raise UsageError(f"{quote(target)} would get the token in clear", fix="use TLS")
        options = [("grpc.max_receive_message_length", ANSWER_LIMIT)]
        if plain:
            self._channel = grpc.insecure_channel(target, options)
        else:
            chain, key = certificate or (None, None)
            credentials = grpc.ssl_channel_credentials(roots, key, chain)
            self._channel = grpc.secure_channel(target, credentials, options)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._timeout = timeout
        self._procedures = {
            name: self._channel.unary_unary(
                f"/penstock.v1.PrivacyRequests/{procedure}",
                request_serializer=request.SerializeToString,
                response_deserializer=answer.FromString,
            )
            for name, (procedure, request, answer) in _CALLS.items()
        }

    def call(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the server."""
        request = ParseDict(dict(fields), _CALLS[name][1]())
        try:
            answer = self._procedures[name](request, timeout=self._timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _read_error(error) from None
        found: dict[str, Any] = MessageToDict(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return found

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def _read_error(error: Any) -> UnreachableError | RejectedError:
    """Return what an error of a call means."""
    problem = messages.Problem(code=error.code().name.lower(), message=error.details() or "")
    for key, value in error.trailing_metadata() or ():
        if key == PROBLEM:
            try:
                problem = messages.Problem.FromString(value)
            except DecodeError:
                break
    fix = problem.fix or "check that the server is up; the same call may be tried again"
    if error.code() in _FINAL:
        return RejectedError(problem.code, problem.message, fix)
    return UnreachableError(problem.message or "the server cannot be reached", fix=fix)

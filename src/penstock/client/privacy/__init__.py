"""SDKs for privacy requests: front ends hand them in, services honour them exactly once.

`PrivacyPublisher` is for front ends, `PrivacySubscriber` for services; both speak to the server
over a transport. With REST they need nothing but Python; `GrpcTransport` needs `penstock[grpc]`
and is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.privacy.publisher import PrivacyPublisher
from penstock.client.privacy.subscriber import Notification, PrivacySubscriber
from penstock.client.privacy.transport import (
    ForgedError,
    RejectedError,
    RestTransport,
    State,
    Submitted,
    Transport,
    UnreachableError,
)

if TYPE_CHECKING:
    from penstock.client.privacy.grpc_transport import GrpcTransport

__all__ = [
    "ForgedError",
    "GrpcTransport",
    "Notification",
    "PrivacyPublisher",
    "PrivacySubscriber",
    "RejectedError",
    "RestTransport",
    "State",
    "Submitted",
    "Transport",
    "UnreachableError",
]


def __getattr__(name: str) -> Any:
    if name == "GrpcTransport":
        from penstock.client.privacy.grpc_transport import GrpcTransport  # noqa: PLC0415

        return GrpcTransport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

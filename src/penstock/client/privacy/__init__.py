"""SDKs for privacy requests: front ends hand them in, services honour them exactly once.

`PrivacyPublisher` is for front ends, `PrivacySubscriber` for services; both speak to the server
over a transport. With REST they need nothing but Python.
"""

from __future__ import annotations

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

__all__ = [
    "ForgedError",
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

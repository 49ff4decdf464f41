"""SDKs for publishers and subscribers; needs nothing else of Penstock.

`PurposeClient` wraps a Paho client and needs paho-mqtt alone; `AsyncPurposeClient` wraps an
aiomqtt client and is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.acknowledgements import Receipt
from penstock.client.capability import ShownCapability
from penstock.client.commands import (
    NoAnswerError,
    Notation,
    NotationError,
    NotConnectedError,
    Purposes,
    RefusedError,
)
from penstock.client.paho_client import PurposeClient

if TYPE_CHECKING:
    from penstock.client.aiomqtt_client import AsyncPurposeClient

__all__ = [
    "AsyncPurposeClient",
    "NoAnswerError",
    "NotConnectedError",
    "Notation",
    "NotationError",
    "PurposeClient",
    "Purposes",
    "Receipt",
    "RefusedError",
    "ShownCapability",
]


def __getattr__(name: str) -> Any:
    if name == "AsyncPurposeClient":
        from penstock.client.aiomqtt_client import AsyncPurposeClient  # noqa: PLC0415

        return AsyncPurposeClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

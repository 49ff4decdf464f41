"""`recording`: how the gateway writes accepted messages to the event log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from penstock.config.quantities import Duration, Size
from penstock.config.settings import Conflict, Settings, setting


class RecordingSettings(Settings):
    """How messages that feed streams come into the event log."""

    acknowledge: Literal["accepted", "recorded"] = setting(
        "accepted",
        "When a message of QoS 1 or 2 that feeds a stream is acknowledged: when the broker has "
        "it, or when the event log has it too.",
    )
    overflow: Literal["wait", "shed", "shed-all"] = setting(
        "wait",
        "What happens while the buffer is full. wait: its publishers are not read until there "
        "is room. shed: messages of QoS 0 are delivered, but not recorded, and counted; those of "
        "QoS 1 and 2 wait. shed-all: so with every message.",
    )
    buffer: Annotated[Size, Field(ge=65_536, le=1 << 32)] = setting(
        "16MiB", "The most that may wait for the event log."
    )
    delay: Annotated[Duration, Field(ge=0, le=10)] = setting(
        "5ms", "How long messages are gathered before they are written together."
    )
    timeout: Annotated[Duration, Field(ge=1, le=3600)] = setting(
        "30s",
        "How long an acknowledgement waits for the event log; then the publisher's connection "
        "ends without it, so that it sends again.",
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a promise that the other setting breaks."""
        if self.acknowledge == "recorded" and self.overflow == "shed-all":
            yield Conflict(
                "overflow",
                "messages are acknowledged when they are recorded, so none can be left out",
                "set it to wait or shed, or acknowledge to accepted",
            )

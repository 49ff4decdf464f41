"""What waits for the event log, and what it counts for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from unittest.mock import Mock

from penstock.config.gateway import RecordingSettings
from penstock.gateway.recording.recorder import Recorder
from penstock.gateway.recording.topic_mapping import Target
from penstock.model.document import Document
from penstock.mqtt import Properties, Publish

STREAM = Document(
    "stream", "vitals", {"from": ["home/+"], "fields": [{"name": "pulse", "type": "int"}]}
)


def test_user_properties_count_for_what_waits() -> None:
    """A log that is away must not let small messages with long properties fill the memory."""

    def open_nothing(_: Target) -> Any:
        raise OSError("the log is away")

    async def trial() -> None:
        recorder = Recorder(RecordingSettings(buffer=1 << 20), open_nothing)
        recorder.mappings.take({STREAM.key: STREAM}, [STREAM.key])
        waits = None
        sent = 0
        said = tuple((f"name{it}", "x" * 60_000) for it in range(2))
        while waits is None:
            packet = Publish.of("home/p", b'{"pulse": 1}', properties=Properties(user=said))
            packet.properties.user = said
            waits = recorder.record(packet, "dev", Mock(), restricted=False)
            sent += 1
            assert sent < 20
        assert recorder.buffered > 1 << 20
        waits.close()
        with contextlib.suppress(asyncio.CancelledError):
            await recorder.finish(0.0)

    asyncio.run(trial())

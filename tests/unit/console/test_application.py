"""Streams are counted, however they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message

from penstock.console.application import CountedStream, write_event


@pytest.mark.parametrize("fails_at", [0, 1, None])
def test_a_stream_counts_until_it_is_over_also_where_it_never_began(fails_at: int | None) -> None:
    """A browser that left at once was counted for good: twenty of them, and no page follows."""
    left: list[int] = []

    async def rounds() -> AsyncIterator[str]:
        yield "data: 1\n\n"

    async def trial() -> None:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            if len(sent) == fails_at:
                raise OSError("the browser is gone")
            sent.append(message)

        async def receive() -> Message:
            await asyncio.sleep(60)
            raise AssertionError

        stream = CountedStream(rounds(), lambda: left.append(1))
        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        with contextlib.suppress(Exception):
            await stream(scope, receive, send)

    asyncio.run(trial())
    assert left == [1]


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_what_others_wrote_begins_no_field_of_an_event(end: str) -> None:
    """Browsers end a line of a stream of events at each of the three."""
    text = f"x{end}{end}event: ended{end}retry: 1{end}{end}"
    lines = write_event("fragment", text).splitlines()
    assert lines[0] == "event: fragment"
    assert [it for it in lines[1:] if it and not it.startswith("data: ")] == []

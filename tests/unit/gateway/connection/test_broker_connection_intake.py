from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from penstock.gateway.connection.broker_connection import OPENING, Intake
from penstock.mqtt import (
    PINGRESP,
    V5,
    Connack,
    Connect,
    Disconnect,
    ProtocolError,
    Publish,
    Reader,
    Sender,
)

LIMIT = 1_000


class Line:
    """A transport that takes note of what is asked of it."""

    def __init__(self) -> None:
        self.written = b""
        self._read = True

    def is_read(self) -> bool:
        return self._read

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self._read = False

    def resume_reading(self) -> None:
        self._read = True


def encode(*packets: Any) -> bytes:
    return b"".join(packet.encode(V5) for packet in packets)


def message(number: int, size: int = 1) -> Publish:
    return Publish.of(f"t/{number}", b"x" * size)


def run(trial: Callable[[Intake, Line], Coroutine[Any, Any, None]]) -> None:
    async def start() -> None:
        connack: asyncio.Future[Connack] = asyncio.get_running_loop().create_future()
        intake = Intake(Reader(Sender.SERVER, version=V5), connack, LIMIT)
        line = Line()
        intake.transport = cast("asyncio.Transport", line)
        intake.open(Connect("me"))
        await trial(intake, line)

    asyncio.run(start())


def topics(intake: Intake) -> list[str]:
    """Take everything that is given back, in its order."""
    reader = Reader(Sender.SERVER, version=V5)
    found = [cast("Publish", it).topic for it in intake.packets()]
    for chunk in intake.chunks():
        reader.feed(chunk)
        found += [cast("Publish", it).topic for it in reader.packets()]
    return found


def test_nothing_changes_its_place_until_the_client_is_open() -> None:
    async def trial(intake: Intake, line: Line) -> None:
        intake.keep(encode(Connack(), message(1)))
        assert (await intake.connack).reason == 0
        assert not line.is_read()
        intake.keep(encode(message(2)))
        asked = asyncio.ensure_future(intake.is_current())
        await asyncio.sleep(0)
        assert line.is_read()
        assert line.written.endswith(b"\xc0\x00")
        intake.keep(encode(message(3), PINGRESP, message(4)))
        assert await asked
        assert not line.is_read()
        intake.keep(encode(message(5)))
        assert topics(intake) == []
        intake.reasons.discard(OPENING)
        assert topics(intake) == [f"t/{number}" for number in range(1, 6)]
        intake.go_on()
        assert line.is_read()

    run(trial)


def test_a_connection_that_ends_is_no_longer_the_sessions() -> None:
    async def trial(intake: Intake, line: Line) -> None:
        del line
        intake.keep(encode(Connack()))
        asked = asyncio.ensure_future(intake.is_current())
        await asyncio.sleep(0)
        intake.keep(encode(Disconnect(0x8E)))
        intake.end(None)
        assert not await asked
        assert not await intake.is_current()

    run(trial)


def test_what_comes_before_the_answer_is_bounded() -> None:
    async def trial(intake: Intake, line: Line) -> None:
        del line
        intake.keep(encode(Connack()))
        asked = asyncio.ensure_future(intake.is_current())
        await asyncio.sleep(0)
        intake.keep(encode(message(1, LIMIT)))
        assert not await asked

    run(trial)


def test_the_first_packet_is_the_connack_and_there_is_one() -> None:
    async def early(intake: Intake, line: Line) -> None:
        del line
        with pytest.raises(ProtocolError, match="PUBLISH before the CONNACK"):
            intake.keep(encode(message(1)))

    async def second(intake: Intake, line: Line) -> None:
        del line
        with pytest.raises(ProtocolError, match="CONNACK"):
            intake.keep(encode(Connack(), Connack()))

    async def lost(intake: Intake, line: Line) -> None:
        del line
        intake.end(None)
        with pytest.raises(ConnectionResetError):
            await intake.connack

    for trial in (early, second, lost):
        run(trial)


def test_several_reasons_to_wait_must_all_end() -> None:
    async def trial(intake: Intake, line: Line) -> None:
        intake.keep(encode(Connack()))
        intake.reasons.discard(OPENING)
        intake.go_on()
        intake.wait("stale")
        assert not line.is_read()
        intake.wait("client")
        intake.keep(encode(message(1)))
        intake.reasons.discard("stale")
        intake.go_on()
        assert not line.is_read()
        assert topics(intake) == []
        intake.reasons.discard("client")
        assert topics(intake) == ["t/1"]
        intake.go_on()
        assert line.is_read()

    run(trial)

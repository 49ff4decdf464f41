"""A publish lane without sockets: what it writes, confirms, holds back and loses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.gateway.connection.context import Cause
from penstock.gateway.publishing.lanes import LEFT_BEHIND, WAITS
from penstock.mqtt import PINGRESP, V5, Disconnect, Packet, Pingreq, Properties, Publish
from penstock.telemetry.metrics import REGISTRY
from tests.support.gateway.socketless import NAME, LineBroker, Socketless, turn


class Sensor:
    """Stands in for a client that publishes."""

    def __init__(self) -> None:
        self.lane_mark = 0
        self.holds: set[str] = set()
        self.ended = False

    def hold_reading(self, reason: str) -> None:
        self.holds.add(reason)

    def release_reading(self, reason: str) -> None:
        self.holds.discard(reason)

    def lose_broker(self) -> None:
        self.ended = True


def message(payload: bytes) -> bytes:
    return Publish.of("a/b", payload).encode(V5)


def payloads(packets: list[Packet]) -> list[bytes]:
    return [it.payload for it in packets if isinstance(it, Publish)]


def lost() -> float:
    return REGISTRY.get_sample_value("penstock_gateway_lane_messages_lost_total") or 0.0


def run(trial: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(trial())


def test_all_that_is_handed_over_in_a_turn_of_the_loop_is_written_at_once() -> None:
    async def trial() -> None:
        async with LineBroker().lane() as (_, lane, line):
            one, other = Sensor(), Sensor()
            writes: list[bytes] = []
            line.write = writes.append  # type: ignore[assignment,method-assign]
            lane.write(one, [message(b"1")])
            lane.write(other, [message(b"a")])
            lane.write(one, [message(b"2"), message(b"3")])
            assert not writes
            await turn()
            [written] = writes
            assert written.startswith(message(b"1") + message(b"2") + message(b"3"))
            assert one.lane_mark == other.lane_mark == 1

    run(trial)


def test_a_write_is_confirmed_by_the_answer_to_a_ping_behind_it() -> None:
    async def trial() -> None:
        async with LineBroker().lane() as (_, lane, line):
            sensor = Sensor()
            lane.write(sensor, [message(b"1")])
            await turn()
            assert isinstance(line.taken()[-1], Pingreq)
            lane.write(sensor, [message(b"2")])
            done: list[int] = []
            lane.when_settled(sensor.lane_mark, lambda: done.append(2))
            lane.when_settled(sensor.lane_mark - 1, lambda: done.append(1))
            await turn()
            # Somebody waits: it is asked at once, and once for all.
            assert [type(it) for it in line.taken()] == [Publish, Pingreq]
            lane.data_received(PINGRESP.encode(V5))
            assert done == [1]
            lane.data_received(PINGRESP.encode(V5))
            assert done == [1, 2]
            await lane.settle(sensor.lane_mark)

    run(trial)


def test_who_publishes_while_the_broker_reads_too_slowly_waits_and_others_do_not() -> None:
    async def trial() -> None:
        async with LineBroker().lane() as (_, lane, line):
            busy, quiet = Sensor(), Sensor()
            lane.write(quiet, [message(b"0")])
            await turn()
            lane.pause_writing()
            lane.write(busy, [message(b"1")])
            lane.write(busy, [message(b"2")])
            await turn()
            assert busy.holds == {WAITS}
            assert not quiet.holds
            assert payloads(line.taken()) == [b"0"]
            lane.resume_writing()
            assert not busy.holds
            assert payloads(line.taken()) == [b"1", b"2"]

    run(trial)


def test_who_comes_and_goes_while_the_broker_reads_too_slowly_fills_no_memory() -> None:
    async def trial() -> None:
        async with LineBroker().lane() as (_, lane, line):
            lane.pause_writing()
            before, large = lost(), message(bytes(LEFT_BEHIND // 8))
            for _ in range(100):
                gone = Sensor()
                lane.write(gone, [large])
                lane.forget(gone)
            stays = Sensor()
            lane.write(stays, [message(b"1")])
            assert lost() - before == 93  # seven and their headers fit
            await turn()
            lane.resume_writing()
            assert len(payloads(line.taken())) == 8
            # There is room again.
            lane.pause_writing()
            gone = Sensor()
            lane.write(gone, [large])
            lane.forget(gone)
            lane.resume_writing()
            assert len(payloads(line.taken())) == 1

    run(trial)


def test_what_was_under_way_on_a_lane_that_breaks_is_counted_and_the_rest_follows() -> None:
    async def trial() -> None:
        broker = LineBroker()
        async with broker.lane() as (_, lane, line):
            before = lost()
            sensor, other = Sensor(), Sensor()
            lane.write(sensor, [message(b"0")])
            await turn()
            lane.data_received(PINGRESP.encode(V5))
            lane.write(sensor, [message(b"1"), message(b"2")])
            await turn()
            assert payloads(line.taken()) == [b"0", b"1", b"2"]
            lane.connection_lost(None)
            assert lost() - before == 2
            await lane.settle(sensor.lane_mark)
            lane.write(other, [message(b"3")])
            assert other.holds
            async with asyncio.timeout(5):
                while other.holds:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert payloads(broker.lines[-1].taken()) == [b"3"]
            assert lost() - before == 2

    run(trial)


def test_who_waits_for_a_lane_that_does_not_come_back_is_told_that_the_broker_is_gone() -> None:
    async def trial() -> None:
        broker = LineBroker()
        async with broker.lane() as (_, lane, _):
            broker.reason = 0x88
            before = lost()
            sensor = Sensor()
            lane.connection_lost(None)
            lane.write(sensor, [message(b"1")])
            async with asyncio.timeout(5):
                await lane.settle(sensor.lane_mark)
            assert sensor.ended
            assert lost() - before == 1

    run(trial)


def test_of_a_client_that_may_publish_nothing_more_what_is_not_written_is_recalled() -> None:
    async def trial() -> None:
        async with LineBroker().lane() as (_, lane, line):
            before = lost()
            sensor, other = Sensor(), Sensor()
            lane.write(sensor, [message(b"1")])
            lane.write(other, [message(b"2")])
            lane.recall(sensor)
            await turn()
            assert payloads(line.taken()) == [b"2"]
            assert lost() - before == 1

    run(trial)


@pytest.mark.parametrize("how", ["takeover", "revoked", "kick", "client", "lost"])
def test_of_who_is_sent_away_nothing_passes_later_and_of_who_leaves_all(how: str) -> None:
    async def trial() -> None:
        async with LineBroker().lane() as (lanes, lane, line):
            made = Socketless(lanes=lanes)
            made.open()
            lane.pause_writing()
            made.client.data_received(message(b"1"))
            if how == "kick":
                made.client.kick()
            else:
                made.client.end(Cause(how))
            lane.resume_writing()
            await turn()
            assert payloads(line.taken()) == ([b"1"] if how in {"client", "lost"} else [])

    run(trial)


def test_who_comes_with_the_same_identifier_waits_for_what_was_published_before() -> None:
    async def trial() -> None:
        async with LineBroker().lane() as (_, lane, _):
            await lane.settle_earlier(NAME)
            sensor = Sensor()
            lane.write(sensor, [message(b"1")])
            done: list[str] = []
            lane.leave(NAME, sensor.lane_mark, lambda: done.append("left"))
            next_one = asyncio.create_task(lane.settle_earlier(NAME))
            await turn()
            assert not done
            assert not next_one.done()
            lane.data_received(PINGRESP.encode(V5))
            await next_one
            assert done == ["left"]
            await lane.settle_earlier("another")

    run(trial)


def test_who_comes_waits_no_longer_than_for_a_broker_that_does_not_answer() -> None:
    async def trial() -> None:
        async with LineBroker().lane() as (lanes, lane, _):
            sensor = Sensor()
            lane.write(sensor, [message(b"1")])
            lane.leave(NAME, sensor.lane_mark, lambda: None)
            with pytest.raises(TimeoutError):
                await lanes.take_over(NAME, "holder")

    run(trial)


@pytest.mark.parametrize("client_id", ["x\x01", "x\x85", "x\ufffe", "x" * 1025, "é" * 513])
def test_who_has_an_identifier_that_some_broker_refuses_has_no_lane(client_id: str) -> None:
    """Retained messages name it, and so does each message where preferences exist."""

    async def trial() -> None:
        async with LineBroker().lane() as (lanes, lane, _):
            assert lanes.of(client_id) is None
            assert lanes.of("x" * 1024) is lane

    run(trial)


def test_a_lane_that_is_lost_again_and_again_is_reopened_with_backoff(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def trial() -> None:
        pauses: list[float] = []
        sleep = asyncio.sleep

        async def note(seconds: float) -> None:
            pauses.append(seconds)
            await sleep(0)

        monkeypatch.setattr(asyncio, "sleep", note)
        async with LineBroker().lane() as (_, lane, _):
            for number in range(1, 9):
                assert lane.open
                lane.connection_lost(None)
                async with asyncio.timeout(60):
                    while len(pauses) < number or not lane.open:
                        await sleep(0)
            assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]

    run(trial)


def test_the_limits_of_the_broker_are_known_from_its_answer() -> None:
    async def trial() -> None:
        granted = Properties(maximum_packet_size=9_000, retain_available=0)
        async with LineBroker(granted).lane() as (_, lane, _):
            assert lane.largest == 9_000
            assert not lane.retains

    run(trial)


def test_a_lane_that_the_broker_ends_or_leaves_silent_is_dropped() -> None:
    async def trial() -> None:
        broker = LineBroker()
        async with broker.lane() as (_, lane, line):
            lane.data_received(Disconnect(0x8B).encode(V5))
            assert line.is_closing()
        async with broker.lane() as (lanes, lane, line):
            lanes.tick(1)
            assert [type(it) for it in line.taken()] == [Pingreq]
            lanes.tick(broker.keep_alive)
            assert not line.is_closing()
            lanes.tick(1)
            assert line.is_closing()

    run(trial)


def test_a_gateway_that_ends_waits_for_its_lanes_and_leaves_in_order() -> None:
    async def trial() -> None:
        async with LineBroker().lane() as (lanes, lane, line):
            lane.write(Sensor(), [message(b"1")])
            ending = asyncio.create_task(lanes.finish())
            await turn()
            assert payloads(line.taken()) == [b"1"]
            assert not ending.done()
            lane.data_received(PINGRESP.encode(V5))
            await ending
            assert line.taken() == [Disconnect()]
            assert line.is_closing()

    run(trial)

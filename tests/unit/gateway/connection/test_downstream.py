"""The way of a publication, without sockets: what a client sends, and what reaches the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.gateway.publications import PublishResult
from penstock.mqtt import (
    PINGRESP,
    V3,
    V5,
    Disconnect,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)
from tests.support.gateway.socketless import QUEUE, Socketless, turn


def run(trial: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(trial())


def opened(version: int = V5, takes: Properties | None = None, **given: Any) -> Socketless:
    made = Socketless(version, takes=takes, **given)
    made.open()
    return made


def message(topic: str, payload: bytes = b"x", qos: int = 0, packet_id: int = 0) -> Publish:
    return Publish.of(topic, payload, qos=qos, packet_id=packet_id)


def payloads(packets: list[Packet]) -> list[bytes]:
    assert all(isinstance(it, Publish) for it in packets), packets
    return [it.payload for it in packets if isinstance(it, Publish)]


def test_a_message_goes_to_the_broker_with_the_stamp_of_its_publisher_alone() -> None:
    async def trial() -> None:
        made = opened()
        stamp = (("penstock-publisher", "anonymous"), ("penstock-epoch", "1"))
        told = Publish.of("a/b", b"x", properties=Properties(user=(("mine", "1"),)))
        false = (("penstock-publisher", "another"), ("mine", "1"))
        claimed = Publish.of("a/b", b"x", properties=Properties(user=false))
        # Of the topic it is known from the second message on that every one may pass.
        found = made.send(told, told, claimed)
        assert [it.properties.user for it in found if isinstance(it, Publish)] == [
            (("mine", "1"), *stamp)
        ] * 3
        assert made.counters.messages_in == 3

    run(trial)


def test_where_every_message_to_a_topic_may_pass_that_is_remembered_until_the_rules_change() -> (
    None
):
    async def trial() -> None:
        made = opened()
        made.send(message("a/b"))
        assert made.client.writes == {"a/b"}
        made.reserve("c/#", "care")
        assert payloads(made.send(message("c/d"))) == [b"x"]
        assert made.client.writes == {"c/d"}

    run(trial)


@pytest.mark.parametrize("changed", [False, True])
def test_what_was_decided_under_rules_of_before_is_not_remembered_under_those_of_now(
    monkeypatch: pytest.MonkeyPatch,
    changed: bool,  # noqa: FBT001
) -> None:
    """A message that waited for other gateways let all later ones pass, whatever had changed."""

    async def trial() -> None:
        made, told = opened(), asyncio.Event()

        async def decide_later() -> PublishResult:
            await told.wait()
            return PublishResult(lasting=True)

        monkeypatch.setattr(made.checks.publication, "publish", lambda *_: decide_later())
        assert made.send(message("a/b")) == []
        if changed:
            made.reserve("c/#", "care")
        told.set()
        sent: list[Packet] = []
        while not sent:
            await turn()
            sent = made.broker.taken()
        assert payloads(sent) == [b"x"]
        assert made.client.writes == (set() if changed else {"a/b"})

    run(trial)


@pytest.mark.parametrize("known", [False, True])
def test_while_the_definitions_are_stale_nothing_passes(known: bool) -> None:  # noqa: FBT001
    async def trial() -> None:
        made = opened()
        if known:
            made.send(message("a/b"))
        made.rules.fresh_until = 0.0
        sent = made.send(
            message("a/b"), message("a/b", qos=1, packet_id=1), message("a/b", qos=2, packet_id=2)
        )
        assert sent == []
        first, second = made.line.taken()
        assert isinstance(first, Puback)
        assert isinstance(second, Pubrec)
        assert first.reason == second.reason == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        assert not made.client.unacked

    run(trial)


def test_mqtt_3_is_told_that_a_denied_message_arrived_and_its_release_is_answered() -> None:
    async def trial() -> None:
        made = opened(V3)
        made.rules.fresh_until = 0.0
        assert made.send(message("a/b", qos=2, packet_id=2), Pubrel(2)) == []
        assert made.line.taken() == [Pubrec(2), Pubcomp(2)]

    run(trial)


def test_mqtt_3_is_closed_over_a_denied_message_where_that_is_configured() -> None:
    async def trial() -> None:
        made = opened(V3, close_denied=True)
        made.rules.fresh_until = 0.0
        assert made.send(message("a/b"), message("a/c")) == []
        assert made.line.is_closing()
        assert made.broker.is_closing()

    run(trial)


def test_a_denial_has_no_text_where_the_client_wants_none_or_has_no_room() -> None:
    async def trial() -> None:
        for takes in (
            Properties(request_problem_information=0),
            Properties(maximum_packet_size=10),
        ):
            made = opened(takes=takes)
            made.rules.fresh_until = 0.0
            made.send(message("a/b", qos=1, packet_id=1))
            assert made.line.taken() == [Puback(1, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)]

    run(trial)


def test_more_than_the_quota_breaks_a_rule_of_mqtt_5() -> None:
    async def trial() -> None:
        made = opened()
        sent = [message("a/b", qos=1, packet_id=number) for number in range(1, 22)]
        assert len(made.send(*sent)) == 20
        (told,) = made.line.taken()
        assert isinstance(told, Disconnect)
        assert told.reason == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED

    run(trial)


def test_mqtt_3_waits_for_the_quota_while_its_acknowledgements_pass() -> None:
    async def trial() -> None:
        made = opened(V3)
        sent = [message("a/b", bytes([it]), qos=1, packet_id=it) for it in range(1, 23)]
        assert len(made.send(*sent)) == 20
        assert made.send(Puback(9)) == [Puback(9)]
        assert made.send(message("a/b", b"last")) == []
        made.deliver(Puback(1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert payloads(made.broker.taken()) == [bytes([21])]
        made.deliver(Puback(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert payloads(made.broker.taken()) == [bytes([22]), b"last"]

    run(trial)


def test_what_is_kept_for_the_quota_is_bounded() -> None:
    async def trial() -> None:
        made = opened(V3)
        sent = [message("a/b", qos=1, packet_id=it) for it in range(1, 22)]
        made.send(*sent)
        made.send(message("a/b", b"z" * QUEUE))
        assert made.client.ended

    run(trial)


def test_a_ping_is_answered_here() -> None:
    async def trial() -> None:
        made = opened()
        assert made.send(Pingreq()) == []
        assert made.line.taken() == [PINGRESP]

    run(trial)


def test_what_came_before_a_broken_packet_still_goes_to_the_broker() -> None:
    async def trial() -> None:
        made = opened()
        made.client.data_received(message("a/b").encode(V5) + b"\x00\x00")
        assert payloads(made.broker.taken()) == [b"x"]
        (told,) = made.line.taken()
        assert isinstance(told, Disconnect)
        assert told.reason == ReasonCode.MALFORMED_PACKET

    run(trial)


def test_who_leaves_is_passed_on_in_its_own_words() -> None:
    async def trial() -> None:
        made = opened()
        user = (("mine", "1"), ("penstock-own", "2"))
        sent = made.send(Disconnect(0x04, Properties(user=user)))
        assert sent == [Disconnect(0x04, Properties(user=(("mine", "1"),)))]
        assert made.line.taken() == []
        assert made.line.is_closing()

    run(trial)


def test_a_session_that_ends_with_its_connection_cannot_be_kept_at_the_end() -> None:
    async def trial() -> None:
        made = opened()
        assert made.send(Disconnect(0, Properties(session_expiry=9))) == []
        (told,) = made.line.taken()
        assert isinstance(told, Disconnect)
        assert told.reason == ReasonCode.PROTOCOL_ERROR

    run(trial)


def test_a_client_that_is_silent_for_too_long_is_ended() -> None:
    async def trial() -> None:
        made = opened()
        ticks = made.client.context.limits.idle_ticks(60)
        for _ in range(ticks):
            assert not made.client.ended
            made.registry.tick()
            made.deliver()  # the broker's answers to pings count for the broker alone
        made.registry.tick()
        assert made.line.taken() == [Disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)]

    run(trial)


def test_a_client_that_reads_nothing_is_ended_although_it_speaks() -> None:
    async def trial() -> None:
        made = opened()
        made.client.pause_writing()
        for _ in range(made.client.context.limits.stall_ticks):
            made.client.heard = True
            assert not made.client.ended
            made.registry.tick()
        assert made.client.ended

    run(trial)

"""The way of a delivery, without sockets: what the broker sends, and what reaches the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.gateway.authorization.delivery_check import DeliveryDecision
from penstock.gateway.connection.broker_connection import AWAITING_LEADER, STALE
from penstock.mqtt import (
    V3,
    V5,
    Disconnect,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)
from tests.support.gateway.socketless import QUEUE, Socketless, delivery

FRESH = 1e12
UNDECIDED = DeliveryDecision(awaiting_leader=True)


def run(trial: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(trial())


def opened(version: int = V5, takes: Properties | None = None) -> Socketless:
    made = Socketless(version, takes=takes)
    made.open()
    return made


def payloads(packets: list[Packet]) -> list[bytes]:
    assert all(isinstance(it, Publish) for it in packets), packets
    return [it.payload for it in packets if isinstance(it, Publish)]


# --- verdicts ---


def test_a_delivery_carries_the_clients_own_identifiers_and_no_stamp() -> None:
    async def trial() -> None:
        made = opened()
        number = made.subscribe("a/#", identifier=7)
        (found,) = made.deliver(delivery("a/b", number))
        assert isinstance(found, Publish)
        assert (found.topic, found.payload) == ("a/b", b"x")
        assert found.properties.subscription_identifiers == (7,)
        assert found.properties.user == ()
        assert made.counters.messages_out == 1

    run(trial)


def test_who_subscribed_for_another_purpose_gets_nothing() -> None:
    async def trial() -> None:
        made = opened()
        care, research = made.subscribe("a/#", "care"), made.subscribe("a/b", "research")
        made.reserve("a/#", "care")
        assert payloads(made.deliver(delivery("a/b", care))) == [b"x"]
        assert made.deliver(delivery("a/b", research)) == []
        assert payloads(made.deliver(delivery("a/b", research, care))) == [b"x"]
        assert made.broker.taken() == []

    run(trial)


@pytest.mark.parametrize("numbers", [(), (99,)], ids=["none", "unknown"])
def test_a_delivery_that_names_no_known_subscription_is_denied(numbers: tuple[int, ...]) -> None:
    async def trial() -> None:
        made = opened()
        made.subscribe("a/#")
        assert made.deliver(delivery("a/b", *numbers, qos=1, packet_id=3)) == []
        assert made.broker.taken() == [Puback(3)]

    run(trial)


def test_a_change_of_the_rules_holds_for_the_next_delivery() -> None:
    async def trial() -> None:
        made = opened()
        number = made.subscribe("a/#", "care")
        assert payloads(made.deliver(delivery("a/b", number))) == [b"x"]
        made.reserve("a/#", "research")
        assert made.deliver(delivery("a/b", number)) == []
        made.reserve("a/#", "research", "care")
        assert payloads(made.deliver(delivery("a/b", number))) == [b"x"]

    run(trial)


# --- denied deliveries of QoS 1 and 2 ---


def test_a_denied_delivery_of_qos_2_is_finished_in_the_clients_place() -> None:
    async def trial() -> None:
        made = opened()
        assert made.deliver(delivery("a/b", qos=2, packet_id=5)) == []
        assert made.broker.taken() == [Pubrec(5)]
        assert made.deliver(Pubrel(5)) == []
        assert made.broker.taken() == [Pubcomp(5)]
        # The number is free again: the next PUBREL under it is the client's.
        assert made.deliver(Pubrel(5)) == [Pubrel(5)]

    run(trial)


def test_what_the_client_may_have_half_of_is_released_to_it() -> None:
    async def trial() -> None:
        made = opened()
        assert made.deliver(delivery("a/b", qos=2, packet_id=5, dup=True)) == []
        assert made.broker.taken() == [Pubrec(5)]
        assert made.deliver(Pubrel(5)) == [Pubrel(5)]

    run(trial)


# --- sizes and windows ---


def test_what_is_larger_than_the_client_takes_is_left_out() -> None:
    async def trial() -> None:
        made = opened(takes=Properties(maximum_packet_size=40))
        number = made.subscribe("a/#")
        large = delivery("a/b", number, payload=b"y" * 40, qos=1, packet_id=1)
        found = made.deliver(large, delivery("a/b", number, qos=1, packet_id=2))
        assert payloads(found) == [b"x"]
        assert made.broker.taken() == [Puback(1)]

    run(trial)


def test_no_more_are_unacknowledged_than_the_client_takes_and_order_is_kept() -> None:
    async def trial() -> None:
        made = opened(takes=Properties(receive_maximum=1))
        number = made.subscribe("a/#")
        found = made.deliver(
            delivery("a/b", number, payload=b"1", qos=1, packet_id=1),
            delivery("a/b", number, payload=b"2", qos=1, packet_id=2),
            delivery("a/b", number, payload=b"3"),
        )
        assert payloads(found) == [b"1"]
        assert made.send(Puback(1)) == [Puback(1)]
        assert payloads(made.line.taken()) == [b"2", b"3"]

    run(trial)


def test_where_too_much_waits_for_the_window_the_broker_is_not_read() -> None:
    async def trial() -> None:
        made = opened(takes=Properties(receive_maximum=1))
        number = made.subscribe("a/#")
        made.deliver(delivery("a/b", number, qos=1, packet_id=1))
        assert made.broker.is_read()
        made.deliver(delivery("a/b", number, payload=b"z" * QUEUE, qos=1, packet_id=2))
        assert not made.broker.is_read()
        assert made.upstream.waits_for_client
        made.send(Puback(1))
        assert payloads(made.line.taken()) == [b"z" * QUEUE]
        assert made.broker.is_read()

    run(trial)


def test_what_waited_for_the_window_is_decided_when_it_is_sent() -> None:
    async def trial() -> None:
        made = opened(takes=Properties(receive_maximum=1))
        number = made.subscribe("a/#", "care")
        made.deliver(
            delivery("a/b", number, payload=b"1", qos=1, packet_id=1),
            delivery("a/b", number, payload=b"2", qos=1, packet_id=2),
        )
        made.reserve("a/#", "research")
        assert made.send(Puback(1)) == [Puback(2), Puback(1)]
        assert made.line.taken() == []

    run(trial)


def test_a_slow_client_loses_qos_0_alone_until_several_queues_are_full() -> None:
    async def trial() -> None:
        made = opened()
        number = made.subscribe("a/#")
        made.client.pause_writing()
        made.line.waiting = QUEUE
        found = made.deliver(
            delivery("a/b", number, payload=b"0"),
            delivery("a/b", number, payload=b"1", qos=1, packet_id=1),
        )
        assert payloads(found) == [b"1"]
        assert made.broker.is_read()
        made.line.waiting = 4 * QUEUE + 1
        made.deliver(delivery("a/b", number, qos=1, packet_id=2))
        assert not made.broker.is_read()
        made.client.resume_writing()
        assert made.broker.is_read()

    run(trial)


# --- duplicates ---


@pytest.mark.parametrize(("version", "copies"), [(V3, 1), (V5, 2)])
def test_overlapping_subscriptions_deliver_once_to_mqtt_3(version: int, copies: int) -> None:
    async def trial() -> None:
        made = opened(version)
        one, two = made.subscribe("a/#"), made.subscribe("a/b")
        found = made.deliver(
            delivery("a/b", one, qos=1, packet_id=1), delivery("a/b", two, qos=1, packet_id=2)
        )
        assert len(payloads(found)) == copies
        assert made.broker.taken() == [Puback(2)][: 2 - copies]
        # Published once more it names the same subscription: that is no copy.
        assert len(made.deliver(delivery("a/b", one), delivery("a/b", two))) == copies

    run(trial)


def test_a_copy_that_is_denied_does_not_stand_for_the_one_that_is_not() -> None:
    async def trial() -> None:
        made = opened(V3)
        care, research = made.subscribe("a/#", "care"), made.subscribe("a/b", "research")
        made.reserve("a/#", "care")
        assert payloads(made.deliver(delivery("a/b", research), delivery("a/b", care))) == [b"x"]

    run(trial)


# --- what is waited for ---


def test_before_the_client_is_open_nothing_is_delivered() -> None:
    async def trial() -> None:
        made = Socketless()
        number = made.subscribe("a/#")
        assert made.deliver(delivery("a/b", number, payload=b"1")) == []
        assert not made.broker.is_read()
        assert payloads(made.open()) == [b"1"]
        assert made.broker.is_read()

    run(trial)


def test_while_the_definitions_are_stale_the_broker_keeps_what_it_has() -> None:
    async def trial() -> None:
        made = opened()
        number = made.subscribe("a/#")
        made.rules.fresh_until = 0.0
        assert made.deliver(delivery("a/b", number, payload=b"1")) == []
        assert not made.broker.is_read()
        assert made.deliver(delivery("a/b", number, payload=b"2")) == []
        made.rules.fresh_until = FRESH
        made.registry.tell_fresh()
        assert payloads(made.line.taken()) == [b"1", b"2"]
        assert made.broker.is_read()
        assert STALE not in made.upstream.intake.reasons

    run(trial)


def test_what_cannot_be_decided_waits_and_all_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trial() -> None:
        made = opened()
        number = made.subscribe("a/#")
        with monkeypatch.context() as patch:
            patch.setattr(made.checks.delivery, "decide", lambda *_: UNDECIDED)
            sent = [delivery("a/b", number, payload=bytes([it])) for it in range(3)]
            assert made.deliver(*sent) == []
            assert AWAITING_LEADER in made.upstream.intake.reasons
            assert made.deliver(delivery("a/c", number, payload=b"behind")) == []
            made.registry.retry_deliveries()
            assert made.line.taken() == []
        made.registry.retry_deliveries()
        found = payloads(made.line.taken())
        assert found == [bytes([0]), bytes([1]), bytes([2]), b"behind"]
        assert made.broker.is_read()

    run(trial)


def test_what_waits_for_the_leader_out_of_the_window_goes_back_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def trial() -> None:
        made = opened(takes=Properties(receive_maximum=1))
        number = made.subscribe("a/#")
        made.deliver(
            delivery("a/b", number, payload=b"1", qos=1, packet_id=1),
            delivery("a/c", number, payload=b"2", qos=1, packet_id=2),
            delivery("a/c", number, payload=b"3", qos=1, packet_id=3),
        )
        made.line.taken()
        with monkeypatch.context() as patch:
            patch.setattr(made.checks.delivery, "decide", lambda *_: UNDECIDED)
            made.send(Puback(1))
            assert made.line.taken() == []
        made.registry.retry_deliveries()
        assert payloads(made.line.taken()) == [b"2"]
        made.send(Puback(2))
        assert payloads(made.line.taken()) == [b"3"]

    run(trial)


# --- answers of the broker, and its end ---


class Journal:
    """Makes its one ticket durable when it is told to."""

    durable = 0

    def __init__(self) -> None:
        self._settled: list[Callable[[bool], None]] = []

    def wait(self, ticket: int, settled: Callable[[bool], None]) -> None:
        del ticket
        self._settled.append(settled)

    def settle(self, *, durable: bool) -> None:
        for settled in self._settled:
            settled(durable)


def test_an_acknowledgement_waits_until_what_it_acknowledges_is_durable() -> None:
    async def trial() -> None:
        made = opened()
        journal = Journal()
        made.client.deferred_acks.expect(journal, 4, 1)
        assert made.deliver(Puback(4), Puback(5), Pubrec(6)) == []
        journal.settle(durable=True)
        assert made.line.taken() == [Puback(4), Puback(5), Pubrec(6)]
        assert made.deliver(Puback(7)) == [Puback(7)]

    run(trial)


def test_what_will_never_be_durable_ends_the_connection_unacknowledged() -> None:
    async def trial() -> None:
        made = opened()
        journal = Journal()
        made.client.deferred_acks.expect(journal, 4, 1)
        assert made.deliver(Puback(4)) == []
        journal.settle(durable=False)
        assert made.line.taken() == [Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)]
        assert made.client.ended
        assert made.upstream.ended

    run(trial)


def test_mqtt_3_cannot_be_told_that_the_broker_refuses_so_its_release_is_answered_here() -> None:
    async def trial() -> None:
        made = opened(V3)
        made.deliver(Pubrec(9, ReasonCode.QUOTA_EXCEEDED))
        assert made.send(Pubrel(9)) == []
        assert made.line.taken() == [Pubcomp(9)]

    run(trial)


def test_an_answer_loses_its_text_where_the_client_has_no_room_for_it() -> None:
    async def trial() -> None:
        made = opened(takes=Properties(maximum_packet_size=20))
        told = Puback(1, ReasonCode.NOT_AUTHORIZED, Properties(reason_string="w" * 40))
        assert made.deliver(told) == [Puback(1, ReasonCode.NOT_AUTHORIZED)]

    run(trial)


@pytest.mark.parametrize("reason", [ReasonCode.SESSION_TAKEN_OVER, ReasonCode.SERVER_SHUTTING_DOWN])
def test_the_broker_says_why_it_ends_and_so_is_the_client_told(reason: ReasonCode) -> None:
    async def trial() -> None:
        made = opened()
        assert made.deliver(Disconnect(int(reason))) == [Disconnect(int(reason))]
        assert made.line.is_closing()
        assert made.broker.is_closing()
        assert "me" not in made.registry

    run(trial)


def test_a_broker_that_breaks_a_rule_or_is_lost_ends_the_client() -> None:
    async def broken() -> None:
        made = opened()
        made.upstream.data_received(b"\xc0\x00")  # a PINGREQ, which only clients send
        assert made.line.taken() == [Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)]

    async def lost() -> None:
        made = opened()
        made.upstream.connection_lost(None)
        assert made.line.taken() == [Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)]
        assert made.counters.connections == 0

    run(broken)
    run(lost)

from __future__ import annotations

from penstock.gateway.connection.duplicate_filter import Copies
from penstock.mqtt import Properties, Publish


def message(number: int, payload: bytes = b"x", *, retain: bool = False) -> Publish:
    properties = Properties(subscription_identifiers=(number,))
    return Publish.of("a/b", payload, retain=retain, properties=properties)


def deliver(copies: Copies, packet: Publish) -> bool:
    if copies.repeats(packet):
        return False
    copies.delivered = True
    return True


def test_copies_through_other_subscriptions_are_dropped() -> None:
    copies = Copies()
    assert [deliver(copies, message(number)) for number in (1, 2, 3)] == [True, False, False]


def test_the_same_message_published_again_is_delivered() -> None:
    copies = Copies()
    assert [deliver(copies, message(number)) for number in (1, 2, 1, 2)] == [
        True,
        False,
        True,
        False,
    ]


def test_a_copy_of_a_message_that_was_denied_may_be_delivered() -> None:
    copies = Copies()
    assert not copies.repeats(message(1))  # denied by the rules, so never delivered
    assert deliver(copies, message(2))
    assert not deliver(copies, message(3))


def test_other_messages_and_retained_ones_are_no_copies() -> None:
    copies = Copies()
    assert deliver(copies, message(1))
    assert deliver(copies, message(2, b"y"))
    assert deliver(copies, message(3, b"y", retain=True))
    assert deliver(copies, message(4, b"y", retain=True))

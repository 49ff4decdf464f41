from __future__ import annotations

from penstock.gateway.connection.backlog import DuplicateFilter
from penstock.mqtt import Properties, Publish


def message(number: int, payload: bytes = b"x", *, retain: bool = False) -> Publish:
    properties = Properties(subscription_identifiers=(number,))
    return Publish.of("a/b", payload, retain=retain, properties=properties)


def deliver(duplicates: DuplicateFilter, packet: Publish) -> bool:
    if duplicates.is_copy(packet):
        return False
    duplicates.delivered = True
    return True


def test_copies_through_other_subscriptions_are_dropped() -> None:
    duplicates = DuplicateFilter()
    assert [deliver(duplicates, message(number)) for number in (1, 2, 3)] == [True, False, False]


def test_the_same_message_published_again_is_delivered() -> None:
    duplicates = DuplicateFilter()
    assert [deliver(duplicates, message(number)) for number in (1, 2, 1, 2)] == [
        True,
        False,
        True,
        False,
    ]


def test_a_copy_of_a_message_that_was_denied_may_be_delivered() -> None:
    duplicates = DuplicateFilter()
    assert not duplicates.is_copy(message(1))  # denied by the rules, so never delivered
    assert deliver(duplicates, message(2))
    assert not deliver(duplicates, message(3))


def test_other_messages_and_retained_ones_are_no_copies() -> None:
    duplicates = DuplicateFilter()
    assert deliver(duplicates, message(1))
    assert deliver(duplicates, message(2, b"y"))
    assert deliver(duplicates, message(3, b"y", retain=True))
    assert deliver(duplicates, message(4, b"y", retain=True))

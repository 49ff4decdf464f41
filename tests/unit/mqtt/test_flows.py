from itertools import pairwise
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.mqtt import (
    Incoming,
    Outgoing,
    ProtocolError,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Received,
    ReceiveMaximumError,
    Sent,
    Step,
)


def ready(outgoing: Outgoing[Any]) -> bool:
    """Ask anew each time: type checkers take a property for a constant."""
    return outgoing.ready


def test_qos_1_out() -> None:
    outgoing = Outgoing[str]()
    number = outgoing.start(1, "m")
    assert outgoing.take(Puback(number)) is Step.DONE
    assert outgoing.take(Puback(number)) is Step.UNKNOWN
    assert len(outgoing) == 0


def test_qos_2_out() -> None:
    outgoing = Outgoing[str]()
    number = outgoing.start(2, "m")
    assert outgoing.take(Pubrec(number)) is Step.GOES_ON
    assert outgoing.take(Pubrec(number)) is Step.GOES_ON
    assert outgoing.take(Pubcomp(number)) is Step.DONE
    assert len(outgoing) == 0


def test_a_failed_pubrec_ends_the_exchange_and_a_failed_puback_too() -> None:
    outgoing = Outgoing[str](receive_maximum=1)
    assert outgoing.take(Pubrec(outgoing.start(2, "m"), 0x87)) is Step.DONE
    assert outgoing.take(Puback(outgoing.start(1, "m"), 0x87)) is Step.DONE
    assert ready(outgoing)


@pytest.mark.parametrize(
    ("qos", "ack"), [(1, Pubrec(1)), (1, Pubcomp(1)), (2, Puback(1)), (2, Pubcomp(1))]
)
def test_answers_of_the_wrong_kind_are_protocol_errors(
    qos: int, ack: Puback | Pubrec | Pubcomp
) -> None:
    outgoing = Outgoing[str]()
    outgoing.start(qos, "m")
    with pytest.raises(ProtocolError, match="for a message that waits for"):
        outgoing.take(ack)
    assert len(outgoing) == 1


def test_identifiers_go_round_and_skip_those_in_use() -> None:
    outgoing = Outgoing[int]()
    kept = outgoing.start(1, 0)
    seen = []
    for number in range(65_536):
        packet_id = outgoing.start(1, number)
        seen.append(packet_id)
        outgoing.take(Puback(packet_id))
    assert kept == 1
    assert kept not in seen
    assert set(seen) == set(range(2, 65_536))
    assert all(b == a + 1 or (a, b) == (65_535, 2) for a, b in pairwise(seen))


def test_identifiers_run_out_without_looking_forever() -> None:
    outgoing = Outgoing[int]()
    for number in range(65_535):
        outgoing.start(1, number)
    assert not ready(outgoing)
    with pytest.raises(UsageError, match="cannot be used now"):
        outgoing.start(1, 0)
    outgoing.take(Puback(4_711))
    assert outgoing.start(1, 0) == 4_711


def test_an_adopted_identifier_must_be_free() -> None:
    outgoing = Outgoing[str]()
    outgoing.adopt(5, 1, "m")
    with pytest.raises(UsageError):
        outgoing.adopt(5, 2, "n")
    assert outgoing.take(Puback(5)) is Step.DONE


def test_the_receive_maximum_is_kept() -> None:
    outgoing = Outgoing[str](receive_maximum=2)
    first, second = outgoing.start(1, "a"), outgoing.start(2, "b")
    assert not ready(outgoing)
    with pytest.raises(UsageError):
        outgoing.start(1, "c")
    outgoing.take(Pubrec(second))
    assert not ready(outgoing)
    outgoing.take(Pubcomp(second))
    assert ready(outgoing)
    outgoing.take(Puback(first))
    assert ready(outgoing)


def test_after_a_reconnect_all_is_repeated_in_order() -> None:
    outgoing = Outgoing[str]()
    one, two, three = outgoing.start(1, "a"), outgoing.start(2, "b"), outgoing.start(2, "c")
    outgoing.take(Pubrec(two))
    outgoing.reconnect()
    assert not ready(outgoing)
    due = outgoing.repeat()
    assert [(item.packet_id, item.state, item.message) for item in due] == [
        (one, Sent.WAIT_PUBACK, "a"),
        (three, Sent.WAIT_PUBREC, "c"),
        (two, Sent.WAIT_PUBCOMP, "b"),
    ]
    assert ready(outgoing)
    assert outgoing.repeat() == []


def test_repetitions_keep_to_the_new_receive_maximum() -> None:
    outgoing = Outgoing[str]()
    numbers = [outgoing.start(1, text) for text in "abc"]
    outgoing.reconnect(receive_maximum=2)
    assert [item.message for item in outgoing.repeat()] == ["a", "b"]
    assert not ready(outgoing)
    outgoing.take(Puback(numbers[0]))
    assert [item.message for item in outgoing.repeat()] == ["c"]
    assert not ready(outgoing)
    outgoing.take(Puback(numbers[1]))
    assert ready(outgoing)


def test_a_repeated_pubrel_does_not_free_more_than_the_maximum() -> None:
    outgoing = Outgoing[str](receive_maximum=1)
    old = outgoing.start(2, "old")
    outgoing.take(Pubrec(old))
    outgoing.reconnect(receive_maximum=1)
    outgoing.repeat()
    outgoing.start(1, "new")
    outgoing.take(Pubcomp(old))
    assert not ready(outgoing)


def test_an_answer_to_what_was_not_repeated_yet_ends_it() -> None:
    outgoing = Outgoing[str]()
    number = outgoing.start(1, "a")
    outgoing.reconnect()
    assert outgoing.take(Puback(number)) is Step.DONE
    assert outgoing.repeat() == []
    assert ready(outgoing)


def test_qos_1_in() -> None:
    incoming = Incoming()
    assert incoming.receive(1, 1)
    assert incoming.state(1) is Received.OWES_PUBACK
    assert incoming.step(Puback(1)) is Step.DONE
    assert incoming.state(1) is None
    assert incoming.receive(1, 1)


def test_qos_2_in_delivers_once() -> None:
    incoming = Incoming()
    assert incoming.receive(1, 2)
    assert not incoming.receive(1, 2)
    assert incoming.step(Pubrec(1)) is Step.GOES_ON
    assert not incoming.receive(1, 2)
    assert incoming.step(Pubrec(1)) is Step.GOES_ON
    assert incoming.step(Pubrel(1)) is Step.GOES_ON
    assert incoming.step(Pubrel(1)) is Step.GOES_ON
    assert incoming.step(Pubcomp(1)) is Step.DONE
    assert incoming.receive(1, 2)


def test_a_refused_qos_2_message_is_forgotten() -> None:
    incoming = Incoming()
    incoming.receive(1, 2)
    assert incoming.step(Pubrec(1, 0x87)) is Step.DONE
    assert incoming.receive(1, 2)


def test_an_unknown_pubrel_is_no_error() -> None:
    assert Incoming().step(Pubrel(9)) is Step.UNKNOWN


@pytest.mark.parametrize(
    ("qos", "ack"),
    [(1, Pubrec(1)), (1, Pubrel(1)), (2, Puback(1)), (2, Pubrel(1)), (2, Pubcomp(1))],
)
def test_steps_out_of_turn_are_protocol_errors(
    qos: int, ack: Puback | Pubrec | Pubrel | Pubcomp
) -> None:
    incoming = Incoming()
    incoming.receive(1, qos)
    with pytest.raises(ProtocolError, match="for a message that owes"):
        incoming.step(ack)


def test_an_identifier_has_one_qos_at_a_time() -> None:
    incoming = Incoming()
    incoming.receive(1, 1)
    with pytest.raises(ProtocolError, match="another QoS"):
        incoming.receive(1, 2)


def test_more_than_the_receive_maximum_is_an_error() -> None:
    incoming = Incoming(receive_maximum=2)
    incoming.receive(1, 1)
    incoming.receive(2, 2)
    incoming.receive(2, 2)
    with pytest.raises(ReceiveMaximumError):
        incoming.receive(3, 1)
    incoming.step(Puback(1))
    assert incoming.receive(3, 1)
    assert len(incoming) == 2


def test_only_qos_2_survives_a_reconnect() -> None:
    incoming = Incoming(receive_maximum=3)
    incoming.receive(1, 1)
    incoming.receive(2, 2)
    incoming.receive(3, 2)
    incoming.step(Pubrec(3))
    incoming.reconnect(receive_maximum=2)
    assert [incoming.state(number) for number in (1, 2, 3)] == [
        None,
        Received.OWES_PUBREC,
        Received.WAIT_PUBREL,
    ]
    # What is remembered does not count against the sender's new quota.
    assert incoming.receive(4, 1)
    assert not incoming.receive(2, 2)
    with pytest.raises(ReceiveMaximumError):
        incoming.receive(5, 1)


def test_the_end_of_an_old_exchange_gives_quota_back() -> None:
    incoming = Incoming()
    incoming.receive(1, 2)
    incoming.step(Pubrec(1))
    incoming.reconnect(receive_maximum=1)
    incoming.receive(2, 1)
    incoming.step(Pubrel(1))
    incoming.step(Pubcomp(1))
    assert incoming.receive(3, 1)

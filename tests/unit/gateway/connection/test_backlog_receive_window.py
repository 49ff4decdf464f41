from __future__ import annotations

from penstock.gateway.connection.backlog import ReceiveWindow
from penstock.mqtt import Puback, Pubcomp, Publish, Pubrec


def message(packet_id: int) -> Publish:
    return Publish.of("a", b"xx", qos=1 if packet_id else 0, packet_id=packet_id)


def pass_on(window: ReceiveWindow, packet: Publish) -> bool:
    if not window.admits(packet):
        return False
    window.send(packet)
    return True


def settle(window: ReceiveWindow, answer: Puback | Pubrec | Pubcomp) -> list[int]:
    given = []
    window.settle(answer)
    while (packet := window.release()) is not None:
        assert pass_on(window, packet)
        given.append(packet.packet_id)
    return given


def test_what_is_beyond_waits_in_order() -> None:
    window = ReceiveWindow(2)
    assert [pass_on(window, message(number)) for number in (1, 2, 3, 0, 4)] == [
        *(True, True),
        *(False, False, False),
    ]
    assert window.kept_bytes > 3 * 256
    assert settle(window, Puback(1)) == [3, 0]
    assert settle(window, Puback(2)) == [4]
    assert window.kept_bytes == 0


def test_messages_of_qos_0_are_not_counted() -> None:
    window = ReceiveWindow(1)
    assert [pass_on(window, message(number)) for number in (1, 0, 0)] == [True, True, True]


def test_qos_2_ends_with_its_last_answer_or_a_refusal() -> None:
    window = ReceiveWindow(1)
    assert pass_on(window, message(1))
    assert not pass_on(window, message(2))
    assert settle(window, Pubrec(1)) == []
    assert settle(window, Pubcomp(1)) == [2]
    assert not pass_on(window, message(3))
    assert settle(window, Pubrec(2, 0x87)) == [3]


def test_a_message_that_is_repeated_counts_once() -> None:
    window = ReceiveWindow(1)
    assert pass_on(window, message(1))
    assert pass_on(window, message(1))


def test_what_could_not_be_decided_on_waits_at_its_place() -> None:
    window = ReceiveWindow(1)
    assert pass_on(window, message(1))
    assert [pass_on(window, message(number)) for number in (2, 3)] == [False, False]
    held = window.kept_bytes
    window.settle(Puback(1))
    released = window.release()
    assert released is not None
    assert window.admits(released)
    assert window.takes_back(released)
    assert window.kept_bytes == held
    assert not window.takes_back(released)
    assert settle(window, Puback(1)) == [2]
    assert settle(window, Puback(2)) == [3]

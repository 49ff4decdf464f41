"""QoS 1 and 2 over a link that loses everything in flight whenever it breaks."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from penstock.mqtt import (
    Exchange,
    Incoming,
    Outgoing,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Sent,
    Step,
)

Answer = Puback | Pubrec | Pubcomp


class Link:
    """A sender, a receiver, and what is under way between them."""

    def __init__(self) -> None:
        self.outgoing = Outgoing[Publish]()
        self.incoming = Incoming()
        self.there: deque[Publish | Pubrel] = deque()
        self.back: deque[Answer] = deque()
        self.sent: dict[int, list[str]] = {1: [], 2: []}
        self.delivered: dict[int, list[str]] = {1: [], 2: []}

    def publish(self, qos: int) -> None:
        if not self.outgoing.ready:
            return
        name = f"m{len(self.sent[1]) + len(self.sent[2])}"
        message = Publish.of(name, qos=qos, packet_id=1)
        message.packet_id = self.outgoing.start(qos, message)
        self.sent[qos].append(name)
        self.there.append(message)

    def receive(self) -> None:
        """Let the receiver take one packet and answer it."""
        if not self.there:
            return
        packet = self.there.popleft()
        answer: Answer
        if isinstance(packet, Pubrel):
            answer = Pubcomp(packet.packet_id)
            known = self.incoming.step(packet) is not Step.UNKNOWN
        else:
            if self.incoming.receive(packet.packet_id, packet.qos):
                self.delivered[packet.qos].append(packet.topic)
            answer = (Puback if packet.qos == 1 else Pubrec)(packet.packet_id)
            known = True
        if known:
            self.incoming.step(answer)
        self.back.append(answer)

    def take(self) -> None:
        """Let the sender take one answer."""
        if not self.back:
            return
        answer = self.back.popleft()
        step = self.outgoing.take(answer)
        if isinstance(answer, Pubrec) and step is Step.GOES_ON:
            self.there.append(Pubrel(answer.packet_id))
        self.send_again(self.outgoing.repeat())

    def send_again(self, exchanges: list[Exchange[Publish]]) -> None:
        for exchange in exchanges:
            if exchange.state is Sent.WAIT_PUBCOMP:
                self.there.append(Pubrel(exchange.packet_id))
            else:
                self.there.append(exchange.message)

    def break_down(self, receive_maximum: int) -> None:
        self.there.clear()
        self.back.clear()
        self.outgoing.reconnect(receive_maximum)
        self.incoming.reconnect(receive_maximum)
        self.send_again(self.outgoing.repeat())


steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 2)),
    st.tuples(st.just("receive"), st.just(0)),
    st.tuples(st.just("take"), st.just(0)),
    st.tuples(st.just("break_down"), st.integers(1, 3)),
)


@given(st.lists(steps, max_size=60))
def test_qos_1_arrives_and_qos_2_arrives_once(actions: list[tuple[str, int]]) -> None:
    link = Link()
    for action, argument in actions:
        # The receiver raises if the sender ever goes past the receive maximum.
        if argument:
            getattr(link, action)(argument)
        else:
            getattr(link, action)()
    while link.there or link.back:
        link.receive()
        link.take()
    assert link.outgoing.ready
    assert (len(link.outgoing), len(link.incoming)) == (0, 0)
    assert link.delivered[2] == link.sent[2]
    assert set(link.delivered[1]) == set(link.sent[1])

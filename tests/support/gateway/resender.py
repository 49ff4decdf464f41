"""A client that comes back after every loss and sends again what nobody confirmed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.mqtt import Pubcomp, Publish, Pubrec, Pubrel
from penstock.mqtt.acks import Ack
from tests.support.gateway.raw import ClosedError, RawClient

WINDOW: Final = 50
_DUPLICATE: Final = 0x08
_PACKETS: Final = 10_000


class Resender:
    """Sends the messages 0, 1, 2 … of a topic, and knows which of them were acknowledged.

    A message of QoS 2 is acknowledged with PUBREC: from then on the client cannot send it again.
    """

    def __init__(
        self, port: int, topic: str, payload: Callable[[int], bytes], *, qos: int = 1
    ) -> None:
        self.acknowledged: set[int] = set()
        self._port = port
        self._topic = topic
        self._payload = payload
        self._qos = qos
        self._sent: dict[int, int] = {}  # packet identifier → number
        self._released: set[int] = set()
        self._following = 0
        self._client: RawClient | None = None

    def send_until(self, acknowledged: int, most: int) -> None:
        """Send messages below `most`, until so many are acknowledged."""
        while len(self.acknowledged) < acknowledged:
            try:
                self._step(most)
            except (ClosedError, OSError):
                self._client = None

    def _step(self, most: int) -> None:
        if self._client is None:
            self._client = RawClient(self._port)
            self._client.connect("sender", clean=False, expiry=600)
            for packet_id in self._sent:
                self._send(self._client, packet_id, again=True)
            for packet_id in self._released:
                self._client.send(Pubrel(packet_id))
        while len(self._sent) + len(self._released) < WINDOW and self._following < most:
            packet_id = self._following % _PACKETS + 1
            self._sent[packet_id] = self._following
            self._following += 1
            self._send(self._client, packet_id)
        self._take(self._client, self._client.expect(Ack, 10))

    def _take(self, client: RawClient, answer: Ack) -> None:
        packet_id = answer.packet_id
        if isinstance(answer, Pubcomp):
            # One that is released once more may not be known any longer.
            self._released.discard(packet_id)
            return
        assert not answer.failed, answer
        if isinstance(answer, Pubrec):
            self._released.add(packet_id)
            client.send(Pubrel(packet_id))
        if packet_id in self._sent:
            self.acknowledged.add(self._sent.pop(packet_id))

    def _send(self, client: RawClient, packet_id: int, *, again: bool = False) -> None:
        payload = self._payload(self._sent[packet_id])
        message = Publish.of(self._topic, payload, qos=self._qos, packet_id=packet_id)
        if again:
            message.first |= _DUPLICATE
        client.send(message)

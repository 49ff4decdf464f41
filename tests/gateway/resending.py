"""A client of QoS 1 that comes back after every loss and sends again what nobody confirmed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.mqtt import Puback, Publish
from tests.gateway.raw import ClosedError, RawClient

WINDOW: Final = 50
_DUPLICATE: Final = 0x08
_PACKETS: Final = 10_000


class Resender:
    """Sends the messages 0, 1, 2 … of a topic, and knows which of them were acknowledged."""

    def __init__(self, port: int, topic: str, payload: Callable[[int], bytes]) -> None:
        self.acknowledged: set[int] = set()
        self._port = port
        self._topic = topic
        self._payload = payload
        self._sent: dict[int, int] = {}  # packet identifier → number
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
        while len(self._sent) < WINDOW and self._following < most:
            packet_id = self._following % _PACKETS + 1
            self._sent[packet_id] = self._following
            self._following += 1
            self._send(self._client, packet_id)
        confirmed = self._client.expect(Puback, 10)
        assert not confirmed.failed, confirmed
        self.acknowledged.add(self._sent.pop(confirmed.packet_id))

    def _send(self, client: RawClient, packet_id: int, *, again: bool = False) -> None:
        payload = self._payload(self._sent[packet_id])
        message = Publish.of(self._topic, payload, qos=1, packet_id=packet_id)
        if again:
            message.first |= _DUPLICATE
        client.send(message)

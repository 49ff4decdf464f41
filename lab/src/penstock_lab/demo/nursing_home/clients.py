"""The people and devices of the nursing home as MQTT clients of a gateway.

Rules that hold here:
- Each is a client of its own, named and authenticated as its user; it connects when it is
  first needed.
- What is heard is put in one queue; the story takes it out.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from paho.mqtt.client import MQTTMessage

from penstock.cli.session import ANSWER_SECONDS, connect
from penstock.client import PurposeClient, RefusedError
from penstock.client.commands import NoAnswerError
from penstock.errors import DeniedError


class Heard(NamedTuple):
    """A message that somebody received."""

    user: str
    topic: str
    payload: Mapping[str, Any]


class Clients(AbstractContextManager["Clients"]):
    """All clients, connected as long as the `with` block lasts."""

    def __init__(self, host: str, port: int, password_of: Callable[[str], str | None]) -> None:
        self._address = host, port
        self._password_of = password_of
        self._clients: dict[str, PurposeClient] = {}
        self.heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()

    def publish(self, user: str, topic: str, payload: Mapping[str, Any]) -> bool:
        """Publish and wait for the answer; False where the gateway refuses."""
        client = self.join(user)
        try:
            client.send(topic, json.dumps(payload).encode(), qos=1).wait(ANSWER_SECONDS)
        except RefusedError:
            return False
        return True

    def listen(self, user: str, *filters: str) -> None:
        """Let a user subscribe, and hear what comes."""
        client = self.join(user)
        answers: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        client.on_subscribe = lambda *arguments: answers.put(arguments[3])

        def hear(_: Any, __: Any, message: MQTTMessage) -> None:
            try:
                payload = json.loads(message.payload)
            except ValueError:
                payload = {}
            self.heard.put(Heard(user, message.topic, payload))

        client.on_message = hear
        client.subscribe([(filter_, 1) for filter_ in filters])
        try:
            codes = answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise NoAnswerError(
                f"{user} got no answer to its subscription", fix="check that the gateway is up"
            ) from None
        if any(code.is_failure for code in codes):
            raise DeniedError(
                f"{user} may not subscribe to {', '.join(filters)}",
                fix="apply the definitions of the nursing home to this gateway",
            )

    def take(self) -> list[Heard]:
        """Return what was heard since this was last asked."""
        found = []
        while not self.heard.empty():
            found.append(self.heard.get())
        return found

    def join(self, user: str) -> PurposeClient:
        """Return the client of a user, connected."""
        known = self._clients.get(user)
        if known is not None:
            return known
        client = self._clients[user] = connect(
            self._address,
            user,
            self._password_of(user),
            fix="give it the passwords of the simulation, see --prepare",
        )
        return client

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.disconnect()
            client.loop_stop()

"""The clients of the car-sharing demonstration, and what each of them has received."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from paho.mqtt.client import Client, MQTTMessage, MQTTv5, MQTTv311, topic_matches_sub
from paho.mqtt.enums import CallbackAPIVersion

from penstock.client import PurposeClient
from penstock_lab.demo.story import DemoFailedError

END = "notice/end-of-round"
"""A topic without reservation; its message follows all others of a round."""
WAIT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Service:
    """A subscriber; without a purpose it is an old client that knows none."""

    name: str
    filter: str
    purpose: str | None

    def topics(self, all_topics: Iterable[str]) -> list[str]:
        """Return the topics that its filter matches."""
        return [topic for topic in all_topics if topic_matches_sub(self.filter, topic)]


class Clients(AbstractContextManager["Clients"]):
    """All clients, connected as long as the `with` block lasts."""

    def __init__(self, port: int, passwords: dict[str, str]) -> None:
        self._port = port
        self._passwords = passwords
        self._clients: dict[str, PurposeClient] = {}
        self._received: dict[str, set[str]] = {}
        self._ended: dict[str, threading.Event] = {}

    def join(self, user: str, *, old: bool = False) -> PurposeClient:
        """Return the client of a user, connected; an old one speaks MQTT 3.1.1."""
        if user not in self._clients:
            protocol = MQTTv311 if old else MQTTv5
            client = PurposeClient(
                Client(CallbackAPIVersion.VERSION2, client_id=user, protocol=protocol)
            )
            client.username_pw_set(user, self._passwords[user])
            client.connect("127.0.0.1", self._port)
            client.loop_start()
            self._clients[user] = client
        return self._clients[user]

    def subscribe(self, service: Service) -> None:
        """Let a service subscribe; one without a purpose does it plainly."""
        client = self.join(service.name, old=service.purpose is None)
        got, ended = set[str](), threading.Event()
        self._received[service.name], self._ended[service.name] = got, ended

        def hear(_: Any, __: Any, message: MQTTMessage) -> None:
            if message.topic == END:
                ended.set()
            else:
                got.add(message.topic)

        client.on_message = hear
        client.subscribe([(END, 1)])
        if service.purpose is not None:
            client.subscribe_with_purpose(service.filter, service.purpose, qos=1).wait()
            return
        granted = threading.Event()
        client.on_subscribe = lambda *_: granted.set()
        client.subscribe(service.filter, 1)
        if not granted.wait(WAIT_SECONDS):
            raise DemoFailedError(f"{service.name} got no answer to its subscription")

    def settle(self) -> None:
        """Wait until every service has received all that was published before."""
        self.join("officer").send(END, b"", qos=1).wait()
        for name, ended in self._ended.items():
            if not ended.wait(WAIT_SECONDS):
                raise DemoFailedError(f"{name} did not receive the notice that ends a round")
            ended.clear()

    def take(self) -> dict[str, set[str]]:
        """Return what each service has received since this was last asked."""
        taken = {name: set(topics) for name, topics in self._received.items()}
        for topics in self._received.values():
            topics.clear()
        return taken

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.disconnect()
            client.loop_stop()

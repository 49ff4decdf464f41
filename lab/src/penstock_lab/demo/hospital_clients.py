"""The reception of the hospital: a plain MQTT client that publishes, and counts its acks.

Rules that hold here:
- Every message has QoS 1 and is answered: taken, or refused with the gateway's reason.
- Nothing waits for ever: an answer that does not come in time ends the demonstration.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from penstock_lab.demo.story import DemoFailedError

WAIT_SECONDS: Final = 120.0
TAKEN: Final = "Success"
"""What MQTT calls a message that was taken, or a connection that was let in."""
UNHEARD: Final = "No matching subscribers"
"""So it calls one that was taken, and that nobody at the broker waits for."""

Message = tuple[str, bytes]


@dataclass(slots=True)
class Answers:
    """How many messages were taken, and how many refused, by reason."""

    taken: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How many were answered."""
        return self.taken + self.refused.total()


class Publisher:
    """One user at the gateway, for as long as the `with` block lasts."""

    def __init__(self, port: int, user: str, password: str) -> None:
        self.entry = ""
        """What the gateway said to the connection."""
        self._answers = Answers()
        self._news = threading.Condition()
        self._client = client = Client(CallbackAPIVersion.VERSION2, client_id=user, protocol=MQTTv5)
        client.username_pw_set(user, password)
        client.on_connect = self._hear_entry
        client.on_publish = self._hear_answer
        client.connect("127.0.0.1", port)
        client.loop_start()

    def __enter__(self) -> Self:
        self._wait(lambda: bool(self.entry), "no answer to its connection")
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish(
        self, messages: Iterable[Message], on_progress: Callable[[int], None] = lambda _: None
    ) -> Answers:
        """Publish messages and wait for all answers; `on_progress` gets their number so far."""
        self._answers = Answers()
        sent = 0
        for topic, payload in messages:
            self._client.publish(topic, payload, qos=1)
            sent += 1
            on_progress(self._answers.count)
        seen = 0
        while seen < sent:
            self._wait(lambda: self._answers.count > seen, "no answer to a message")  # noqa: B023
            seen = self._answers.count
            on_progress(seen)
        return self._answers

    def _wait(self, done: Callable[[], bool], trouble: str) -> None:
        with self._news:
            if not self._news.wait_for(done, WAIT_SECONDS):
                raise DemoFailedError(
                    f"a client got {trouble} in {WAIT_SECONDS:g} s", fix="see `penstock doctor`"
                )

    def _hear_entry(self, *arguments: Any) -> None:
        with self._news:
            self.entry = str(arguments[3])
            self._news.notify_all()

    def _hear_answer(self, *arguments: Any) -> None:
        answer = str(arguments[3])
        with self._news:
            if answer in {TAKEN, UNHEARD}:
                self._answers.taken += 1
            else:
                self._answers.refused[answer] += 1
            self._news.notify_all()

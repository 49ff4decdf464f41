"""The connection to the gateway: packets leave through Paho, acknowledgements settle receipts.

Rules that hold here:
- Our callbacks stand in front of the wrapped client's own, which are called as well; also
  those that somebody sets on the wrapped client later are found and kept.
- No lock of ours is held while Paho is called: Paho calls us with locks of its own held.
- The response to a query is a message on the query's topic, sent to us alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.client.acknowledgements import (
    Acknowledgement,
    PacketKind,
    PendingAcks,
    Query,
    Receipt,
)
from penstock.client.commands import NotationError, NotConnectedError, RefusedError

T = TypeVar("T")
Callback = Callable[..., Any]
UserProperties = list[tuple[str, str]]


class PahoConnection:
    """Sends packets of one Paho client and settles their receipts."""

    def __init__(
        self, wrapped: Client, *, tell_wrapped: bool, refused: Callable[[RefusedError], None]
    ) -> None:
        """Take over a client; with `tell_wrapped` its callbacks also hear of our packets."""
        self.wrapped = wrapped
        self.callbacks: dict[str, Callback | None] = {}
        self.hooks: dict[str, Callback] = {
            "on_subscribe": self._hook("subscribe"),
            "on_unsubscribe": self._hook("unsubscribe"),
            "on_publish": self._hook("publish"),
            "on_disconnect": self._hear_of_the_end,
        }
        self._tell_wrapped = tell_wrapped
        self._refused = refused
        self._pending = PendingAcks()
        self._queries: dict[str, list[Query[Any]]] = {}
        self._attach()

    @property
    def speaks_v5(self) -> bool:
        """Whether the client speaks MQTT 5."""
        return bool(self.wrapped.protocol == MQTTv5)

    def publish(
        self,
        receipt: Receipt[T],
        topic: str,
        payload: bytes | str | None,
        qos: int,
        *,
        retain: bool = False,
        user: UserProperties | None = None,
    ) -> Receipt[T]:
        """Send a PUBLISH."""
        properties = _user_properties(PacketTypes.PUBLISH, user) if user else None

        def send() -> tuple[int, int | None]:
            info = self.wrapped.publish(topic, payload, qos, retain, properties)
            # Paho keeps messages of QoS 1 and 2 and sends them once it is connected.
            kept = qos > 0 and info.rc == MQTTErrorCode.MQTT_ERR_NO_CONN
            return (0 if kept else info.rc), info.mid

        return self._send("publish", receipt, send)

    def subscribe(
        self, receipt: Receipt[T], filter_: str, qos: int, user: UserProperties | None = None
    ) -> Receipt[T]:
        """Send a SUBSCRIBE."""
        properties = _user_properties(PacketTypes.SUBSCRIBE, user) if user else None
        return self._send(
            "subscribe",
            receipt,
            lambda: self.wrapped.subscribe(filter_, qos, properties=properties),
        )

    def unsubscribe(self, receipt: Receipt[T], filter_: str) -> Receipt[T]:
        """Send an UNSUBSCRIBE."""
        return self._send("unsubscribe", receipt, lambda: self.wrapped.unsubscribe(filter_))

    def ask(self, query: Query[T], topic: str) -> Receipt[T]:
        """Send a query, and listen for its response until it is settled."""
        waiting = self._queries.setdefault(topic, [])
        waiting.append(query)
        self.wrapped.message_callback_add(topic, self._hear_answer)

        def forget(_: object) -> None:
            waiting.remove(query)
            if not waiting and self._queries.get(topic) is waiting:
                del self._queries[topic]
                self.wrapped.message_callback_remove(topic)

        query.future.add_done_callback(forget)
        return self.publish(query, topic, b"", 1)

    def _send(
        self, kind: PacketKind, receipt: Receipt[T], send: Callable[[], tuple[int, int | None]]
    ) -> Receipt[T]:
        self._attach()
        with self._pending.sending():
            try:
                code, mid = send()
            except ValueError as error:
                # Paho's own check of filters and topics, which names neither.
                raise NotationError(
                    f"{receipt.action} cannot be sent: {error}",
                    fix="let `#` stand alone as the last level, and `+` alone as a level",
                ) from None
            if code or mid is None:
                raise NotConnectedError(
                    f"{receipt.action} could not be sent: Paho's error {int(code)}",
                    fix="connect first, and check that the connection holds",
                )
            early = self._pending.enter(kind, mid, receipt)
        if early is not None:
            self._settle(receipt, early)
        return receipt

    def _settle(self, receipt: Receipt[Any], acknowledgement: Acknowledgement) -> None:
        error = receipt.settle(acknowledgement)
        if error is not None:
            self._refused(error)

    def _attach(self) -> None:
        """Put our callbacks in front of the wrapped client's, also of those set since."""
        for name, hook in self.hooks.items():
            present = getattr(self.wrapped, name)
            if present is not hook:
                self.callbacks[name] = present
                setattr(self.wrapped, name, hook)

    def _hook(self, kind: PacketKind) -> Callback:
        def hear(client: Client, userdata: Any, mid: int, *arguments: Any) -> None:
            answer = Acknowledgement.of(arguments)
            receipt = self._pending.take(kind, mid, answer)
            if receipt is not None:
                self._settle(receipt, answer)
            theirs = self.callbacks.get(f"on_{kind}")
            if theirs is not None and (receipt is None or self._tell_wrapped):
                theirs(client, userdata, mid, *arguments)

        return hear

    def _hear_answer(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        del client, userdata
        for query in list(self._queries.get(message.topic, ())):
            query.take_answer(bytes(message.payload))

    def _hear_of_the_end(self, *arguments: Any) -> None:
        self._pending.end_unanswered()
        theirs = self.callbacks.get("on_disconnect")
        if theirs is not None:
            theirs(*arguments)


def _user_properties(packet: int, pairs: UserProperties) -> Properties:
    properties = Properties(packet)  # type: ignore[no-untyped-call]
    properties.UserProperty = pairs
    return properties

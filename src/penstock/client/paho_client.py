"""A Paho client that knows purposes.

    client = PurposeClient(mqtt.Client(CallbackAPIVersion.VERSION2, client_id="billing"))
    client.connect("localhost", 1883, 60)
    client.loop_start()
    client.reserve("home/#", aip=["marketing", "operational"], pip=["marketing/analytics"])
    client.subscribe_with_purpose("home/sensors/power/#", "operational/billing").wait()
    client.send("home/sensors/power/392/total", b"3142")

Rules that hold here:
- Whatever is not named here is the wrapped client's: methods, properties and callbacks.
- An MQTT 3.1.1 client writes purposes into topics, an MQTT 5 client into user properties
  where there are any; commands are topics in both.
- Commands are sent with QoS 1, so that their acknowledgement means they are in force.
- Every verb gives a `Receipt`; waiting for it raises the refusal, naming what was refused.
  Whoever does not wait finds refusals in `on_refused`, which logs them by default.
- Paho hands over the reasons of refused messages to clients of MQTT 5 with callbacks of
  version 2 only; MQTT 3.1.1 knows refusals of subscriptions and of questions only.
- Our callbacks stand in front of the wrapped client's own, which are called as well; also
  those that somebody sets on the wrapped client later are found and kept.
- No lock of ours is held while Paho is called: Paho calls us with locks of its own held.
- The response to a query is a message on the query's topic, sent to us alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
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
from penstock.client.commands import (
    AIP_PROPERTY,
    AP_PROPERTY,
    CONTENT_PROPERTY,
    NOTATION,
    PIP_PROPERTY,
    Notation,
    NotationError,
    NotConnectedError,
    Purposes,
    RefusedError,
    list_purposes,
    read_affected,
    read_combined,
    refused_message,
    refused_subscription,
)
from penstock.errors import quote

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


_LOG = logging.getLogger("penstock.client")
_OWN = frozenset({"on_refused", "notation", "wrapped"})
_COMMAND_QOS = 1


def log_refusal(error: RefusedError) -> None:
    """Say in the log what was refused: what `on_refused` is until you set it."""
    _LOG.warning("%s", error)


class PurposeClient:
    """Wraps a Paho client and adds purposes to it."""

    wrapped: Client
    notation: Notation
    on_refused: Callable[[RefusedError], None] | None
    _connection: PahoConnection

    def __init__(
        self, wrapped: Client, *, notation: Notation = NOTATION, tell_wrapped: bool = True
    ) -> None:
        """Wrap a client; with `tell_wrapped` its callbacks also hear of our packets."""
        put = super().__setattr__
        put("wrapped", wrapped)
        put("notation", notation)
        put("on_refused", log_refusal)
        put(
            "_connection", PahoConnection(wrapped, tell_wrapped=tell_wrapped, refused=self._refused)
        )

    # --- everything else is the wrapped client's

    def __getattr__(self, name: str) -> Any:
        if name in self._connection.hooks:
            return self._connection.callbacks.get(name)
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
        elif name in self._connection.hooks:
            self._connection.callbacks[name] = value
        else:
            setattr(self.wrapped, name, value)

    # --- verbs

    def connect(self, host: str, port: int = 1883, keepalive: int = 60, **options: Any) -> None:
        """Connect to the gateway."""
        try:
            self.wrapped.connect(host, port, keepalive, **options)
        except OSError as error:
            raise NotConnectedError(
                f"no connection to {host}:{port}: {error.strerror or error}",
                fix="check the address, and that the gateway is up",
            ) from error

    def reserve(
        self, filter_: str, aip: Iterable[str] = (), pip: Iterable[str] = ()
    ) -> Receipt[None]:
        """Reserve the topics of a filter for purposes; without any, for nobody."""
        topic = self.notation.reservation(filter_, aip, pip)
        return self._command(topic, f"the reservation of {quote(filter_)}")

    def release(self, filter_: str) -> Receipt[None]:
        """Remove the reservation of a filter."""
        topic = self.notation.release(filter_)
        return self._command(topic, f"the release of {quote(filter_)}")

    def advertise(self, filter_: str, seconds: int | None = None) -> Receipt[None]:
        """Say that this client will publish below a filter: so long, or until it disconnects."""
        payload = "" if seconds is None else str(seconds)
        action = f"the advertisement of {quote(filter_)}"
        return self._command(self.notation.advertisement(filter_), action, payload)

    def withdraw(self, filter_: str) -> Receipt[None]:
        """End an advertisement."""
        action = f"the withdrawal of {quote(filter_)}"
        return self._command(self.notation.withdrawal(filter_), action)

    def define(self, stream: str, event_type: Mapping[str, Any]) -> Receipt[None]:
        """Define the type of the messages of some topics (`from`, `fields`), or extend it."""
        action = f"the definition of {quote(stream)}"
        return self._command(self.notation.definition(stream), action, json.dumps(event_type))

    def subscribe_with_purpose(
        self, filter_: str, ap: str, qos: int = 0, *, content: str | None = None
    ) -> Receipt[None]:
        """Subscribe for one access purpose; `content` as in `subscribe_to_events`."""
        return self._subscribe(filter_, ap, qos, content)

    def subscribe_to_events(self, filter_: str, content: str, qos: int = 0) -> Receipt[None]:
        """Subscribe without a purpose, to the events that `content` holds for: `r.pulse > 120`."""
        return self._subscribe(filter_, None, qos, content)

    def _subscribe(
        self, filter_: str, ap: str | None, qos: int, content: str | None
    ) -> Receipt[None]:
        def refuse(answer: Acknowledgement) -> RefusedError:
            return refused_subscription(
                filter_, ap, code=answer.code, reason=answer.reason, content=content
            )

        purpose = f"for the purpose {quote(ap)}" if ap is not None else "without a purpose"
        receipt: Receipt[None] = Receipt(f"the subscription to {quote(filter_)} {purpose}", refuse)
        if self._connection.speaks_v5:
            user = [] if ap is None else [(AP_PROPERTY, self.notation.check_purpose(ap))]
            user += [] if content is None else [(CONTENT_PROPERTY, content)]
            return self._connection.subscribe(receipt, filter_, qos, user)
        written = self.notation.subscription(filter_, ap, content)
        return self._connection.subscribe(receipt, written, qos)

    def unsubscribe_with_purpose(self, filter_: str, ap: str) -> Receipt[None]:
        """End a subscription that was made for an access purpose."""
        written = self.notation.subscription(filter_, ap)
        receipt = _receipt(f"the end of the subscription to {quote(filter_)}")
        return self._connection.unsubscribe(
            receipt, filter_ if self._connection.speaks_v5 else written
        )

    def presubscribe(self, client_id: str, filter_: str, ap: str | None) -> Receipt[None]:
        """Set the purpose of a subscription that a client will make plainly; None removes it."""
        topic = self.notation.presubscription(client_id, filter_, ap)
        return self._command(
            topic, f"the presubscription of {quote(client_id)} to {quote(filter_)}"
        )

    def send(
        self,
        topic: str,
        payload: bytes | str | None = None,
        qos: int = 0,
        retain: bool = False,  # noqa: FBT001, FBT002 - as in Paho's publish
        *,
        purposes: Iterable[str] | None = None,
        prohibited: Iterable[str] | None = None,
    ) -> Receipt[None]:
        """Publish; `purposes` and `prohibited` narrow the topic's for this one message."""
        written, user = topic, None
        aip, pip = list_purposes(purposes or ()), list_purposes(prohibited or ())
        if self._connection.speaks_v5 and (aip or pip):
            user = [(AIP_PROPERTY, self.notation.check_purpose(one)) for one in aip]
            user += [(PIP_PROPERTY, self.notation.check_purpose(one)) for one in pip]
        elif purposes is not None or prohibited is not None:
            # Also an empty list in MQTT 5: no property at all would mean no restriction.
            written = self.notation.one_message(topic, aip, pip)
        receipt = _receipt(f"the message to {quote(topic)}")
        return self._connection.publish(receipt, written, payload, qos, retain=retain, user=user)

    # --- queries

    def combined_reservations(self, topic: str) -> Receipt[Purposes | None]:
        """Ask for the effective purposes of a topic; waiting gives them, None if it has none."""
        return self._ask((self.notation.combined, topic), read_combined)

    def affected_reservations(self, filter_: str) -> Receipt[dict[str, Purposes]]:
        """Ask for the reservations that apply to topics of a filter; waiting gives them."""
        written = self.notation.published(filter_)
        return self._ask((self.notation.affected, written), read_affected)

    def reservation_tree(self) -> Receipt[str]:
        """Ask for a drawing of all reservations; waiting gives it."""
        return self._ask((self.notation.tree,), bytes.decode)

    # --- administration

    def set(self, setting: str, value: bool) -> Receipt[None]:  # noqa: FBT001 - as a switch reads
        """Switch a setting such as `filter_hybrid`."""
        text = "true" if value else "false"
        topic = self.notation.command(self.notation.setting, setting)
        return self._command(topic, f"the setting {quote(setting)} to {text}", text)

    def clear(self) -> Receipt[None]:
        """Remove every reservation and presubscription; end all subscriptions for purposes."""
        topic = self.notation.command(self.notation.clear)
        return self._command(topic, "the clearing of all reservations")

    def reset(self) -> Receipt[None]:
        """Clear, with the settings in force as they are set; none changes."""
        topic = self.notation.command(self.notation.reset)
        return self._command(topic, "the reset of all settings")

    def persist(self) -> Receipt[None]:
        """Keep the present state: reservations, presubscriptions, purposes of subscriptions."""
        topic = self.notation.command(self.notation.persist)
        return self._command(topic, "the storing of the state")

    def reload(self) -> Receipt[None]:
        """Return to exactly the state that was kept."""
        topic = self.notation.command(self.notation.reload)
        return self._command(topic, "the reloading of the state")

    # --- how packets leave

    def _command(self, topic: str, action: str, payload: str = "") -> Receipt[None]:
        return self._connection.publish(_receipt(action), topic, payload, _COMMAND_QOS)

    def _ask(self, words: tuple[str, ...], read: Callable[[bytes], T]) -> Receipt[T]:
        topic = self.notation.command(*words)
        action = f"the question {quote(topic)}"
        return self._connection.ask(Query(action, _refuse(action), read), topic)

    def _refused(self, error: RefusedError) -> None:
        if self.on_refused is not None:
            self.on_refused(error)


def _receipt(action: str) -> Receipt[None]:
    return Receipt(action, _refuse(action))


def _refuse(action: str) -> Callable[[Acknowledgement], RefusedError]:
    return lambda answer: refused_message(action, code=answer.code, reason=answer.reason)

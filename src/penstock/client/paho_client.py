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
  version 2 only; MQTT 3.1.1 knows refusals of subscriptions only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.client.errors import (
    NotConnectedError,
    RefusedError,
    refused_message,
    refused_subscription,
)
from penstock.client.notation import (
    AIP_PROPERTY,
    AP_PROPERTY,
    NOTATION,
    PIP_PROPERTY,
    Notation,
    list_purposes,
)
from penstock.client.receipts import Acknowledgement, Kind, Receipt, ReceiptBook
from penstock.errors import quote

_LOG = logging.getLogger("penstock.client")
_OWN = frozenset({"on_refused", "notation", "wrapped"})
_COMMAND_QOS = 1


def log_refusal(error: RefusedError) -> None:
    """Say in the log what was refused: what `on_refused` is until you set it."""
    _LOG.warning("%s", error)


class PurposeClient:
    """Wraps a Paho client and adds purposes to it."""

    def __init__(
        self, wrapped: Client, *, notation: Notation = NOTATION, tell_wrapped: bool = True
    ) -> None:
        """Wrap a client; with `tell_wrapped` its own callbacks also hear of our packets."""
        put = super().__setattr__
        put("wrapped", wrapped)
        put("notation", notation)
        put("on_refused", log_refusal)
        put("_book", ReceiptBook())
        put("_tell_wrapped", tell_wrapped)
        put("_callbacks", {})
        put(
            "_hooks",
            {
                "on_subscribe": self._hook("subscribe"),
                "on_unsubscribe": self._hook("unsubscribe"),
                "on_publish": self._hook("publish"),
                "on_disconnect": self._hear_of_the_end,
            },
        )
        self._attach()

    wrapped: Client
    notation: Notation
    on_refused: Callable[[RefusedError], None] | None
    _book: ReceiptBook
    _tell_wrapped: bool
    _callbacks: dict[str, Callable[..., Any] | None]
    _hooks: dict[str, Callable[..., None]]

    # --- everything else is the wrapped client's

    def __getattr__(self, name: str) -> Any:
        if name in self._hooks:
            return self._callbacks.get(name)
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
        elif name in self._hooks:
            self._callbacks[name] = value
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

    def reserve(self, filter_: str, aip: Iterable[str] = (), pip: Iterable[str] = ()) -> Receipt:
        """Reserve the topics of a filter for purposes; without any, for nobody."""
        topic = self.notation.reservation(filter_, aip, pip)
        return self._command(topic, f"the reservation of {quote(filter_)}")

    def release(self, filter_: str) -> Receipt:
        """Remove the reservation of a filter."""
        topic = self.notation.release(filter_)
        return self._command(topic, f"the release of {quote(filter_)}")

    def subscribe_with_purpose(self, filter_: str, ap: str, qos: int = 0) -> Receipt:
        """Subscribe for one access purpose."""
        written, properties = self.notation.subscription(filter_, ap), None
        if self._speaks_v5:
            properties = _user_properties(PacketTypes.SUBSCRIBE, [(AP_PROPERTY, ap)])
            written = filter_
        receipt = Receipt(
            f"the subscription to {quote(filter_)} for the purpose {quote(ap)}",
            lambda answer: refused_subscription(
                filter_, ap, code=answer.code, reason=answer.reason
            ),
        )
        return self._send(
            "subscribe",
            receipt,
            lambda: self.wrapped.subscribe(written, qos, properties=properties),
        )

    def unsubscribe_with_purpose(self, filter_: str, ap: str) -> Receipt:
        """End a subscription that was made for an access purpose."""
        written = self.notation.subscription(filter_, ap)
        if self._speaks_v5:
            written = filter_
        receipt = _receipt(f"the end of the subscription to {quote(filter_)}")
        return self._send("unsubscribe", receipt, lambda: self.wrapped.unsubscribe(written))

    def presubscribe(self, client_id: str, filter_: str, ap: str | None) -> Receipt:
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
    ) -> Receipt:
        """Publish; `purposes` and `prohibited` narrow the topic's for this one message."""
        written, properties = topic, None
        aip, pip = list_purposes(purposes or ()), list_purposes(prohibited or ())
        if self._speaks_v5 and (aip or pip):
            pairs = [(AIP_PROPERTY, self.notation.check_purpose(one)) for one in aip]
            pairs += [(PIP_PROPERTY, self.notation.check_purpose(one)) for one in pip]
            properties = _user_properties(PacketTypes.PUBLISH, pairs)
        elif purposes is not None or prohibited is not None:
            # Also an empty list in MQTT 5: no property at all would mean no restriction.
            written = self.notation.one_message(topic, aip, pip)
        receipt = _receipt(f"the message to {quote(topic)}")
        return self._publish(receipt, written, payload, qos, retain=retain, properties=properties)

    # --- administration

    def set(self, setting: str, value: bool) -> Receipt:  # noqa: FBT001 - set(name, True) reads well
        """Switch a setting such as `filter_hybrid`."""
        text = "true" if value else "false"
        topic = self.notation.command(self.notation.setting, setting)
        return self._command(topic, f"the setting {quote(setting)} to {text}", text)

    def clear(self) -> Receipt:
        """Remove every reservation and presubscription."""
        return self._command(
            self.notation.command(self.notation.clear), "the clearing of all reservations"
        )

    def reset(self) -> Receipt:
        """Return every setting to what is configured."""
        return self._command(
            self.notation.command(self.notation.reset), "the reset of all settings"
        )

    def persist(self) -> Receipt:
        """Store the present state."""
        return self._command(
            self.notation.command(self.notation.persist), "the storing of the state"
        )

    def reload(self) -> Receipt:
        """Return to the stored state."""
        return self._command(
            self.notation.command(self.notation.reload), "the reloading of the state"
        )

    # --- how packets leave and acknowledgements arrive

    @property
    def _speaks_v5(self) -> bool:
        return self.wrapped.protocol == MQTTv5

    def _command(self, topic: str, action: str, payload: str = "") -> Receipt:
        return self._publish(_receipt(action), topic, payload, _COMMAND_QOS)

    def _publish(
        self,
        receipt: Receipt,
        topic: str,
        payload: bytes | str | None,
        qos: int,
        *,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> Receipt:
        def publish() -> tuple[int, int | None]:
            info = self.wrapped.publish(topic, payload, qos, retain, properties)
            # Paho keeps messages of QoS 1 and 2 and sends them once it is connected.
            kept = qos > 0 and info.rc == MQTTErrorCode.MQTT_ERR_NO_CONN
            return (0 if kept else info.rc), info.mid

        return self._send("publish", receipt, publish)

    def _send(
        self, kind: Kind, receipt: Receipt, send: Callable[[], tuple[int, int | None]]
    ) -> Receipt:
        self._attach()
        with self._book.sending():
            code, mid = send()
            if code or mid is None:
                raise NotConnectedError(
                    f"{receipt.action} could not be sent: Paho's error {int(code)}",
                    fix="connect first, and check that the connection holds",
                )
            early = self._book.enter(kind, mid, receipt)
        if early is not None:
            self._settle(receipt, early)
        return receipt

    def _settle(self, receipt: Receipt, acknowledgement: Acknowledgement) -> None:
        error = receipt.settle(acknowledgement)
        if error is not None and self.on_refused is not None:
            self.on_refused(error)

    def _attach(self) -> None:
        """Put our callbacks in front of the wrapped client's, also of those set since."""
        for name, hook in self._hooks.items():
            present = getattr(self.wrapped, name)
            if present is not hook:
                self._callbacks[name] = present
                setattr(self.wrapped, name, hook)

    def _hook(self, kind: Kind) -> Callable[..., None]:
        def hear(client: Client, userdata: Any, mid: int, *told: Any) -> None:
            answer = Acknowledgement.of(told)
            receipt = self._book.take(kind, mid, answer)
            if receipt is not None:
                self._settle(receipt, answer)
            theirs = self._callbacks.get(f"on_{kind}")
            if theirs is not None and (receipt is None or self._tell_wrapped):
                theirs(client, userdata, mid, *told)

        return hear

    def _hear_of_the_end(self, *told: Any) -> None:
        self._book.end_unanswered()
        theirs = self._callbacks.get("on_disconnect")
        if theirs is not None:
            theirs(*told)


def _receipt(action: str) -> Receipt:
    return Receipt(
        action, lambda answer: refused_message(action, code=answer.code, reason=answer.reason)
    )


def _user_properties(packet: int, pairs: list[tuple[str, str]]) -> Properties:
    properties = Properties(packet)  # type: ignore[no-untyped-call]
    properties.UserProperty = pairs
    return properties

"""Erases what the MQTT broker keeps about a person: retained messages, and queues of sessions.

    SUBSCRIBE to what feeds streams ──▶ retained messages ──▶ the person's? ──▶ empty PUBLISH
    CONNECT as a client that is away ──▶ what waits for it ──▶ the person's? ──▶ acknowledged
                                                                    └── others': left, unanswered

Rules that hold here:
- A message is about whom its streams say it is (`policy.consent.data_subjects`), as recording and
  gateways find it: a level of the topic, a user property, the payload.
- Where a level names the person, the broker is asked for that topic alone. A name that no level
  can have, such as one with a wildcard, is not put into a filter.
- It is looked again until nothing is found: a message that came meanwhile is cleared too.
- The broker knows us as it knows the gateway. An embedded one is told nothing before it is known
  that it runs as the user that we are.
- What waits for a client that is away is taken out of its session as the client itself would: no
  other way leads there. What is not about the person is not acknowledged, so that the broker sends
  it again, in its order, when the client comes. A client that comes meanwhile has the session at
  once, and what waited with it.
- A session is left as it was: it ends when it would have, and one that the broker does not have
  is not begun.
- Between reading and clearing, a topic whose payload names the person may get a message of
  somebody else, which is then cleared as well; MQTT has no way to clear one message.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Self

from penstock.components.mosquitto import GATEWAY_USER, check_listener, reach
from penstock.config.brokers import BrokerSettings
from penstock.errors import UnavailableError
from penstock.eventlog.erasure import Keep
from penstock.model.kinds import Stream
from penstock.model.kinds.fields import named_levels, plain_filter
from penstock.mqtt import (
    FAILURE,
    PINGREQ,
    V5,
    Connack,
    Connect,
    Disconnect,
    MqttError,
    Packet,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reader,
    RequestedSubscription,
    Sender,
    Suback,
    Subscribe,
)
from penstock.policy.access.requests import Message, collect
from penstock.policy.consent import DataSubjects
from penstock.store.sessions import AwaySession

_MOST_UNANSWERED: Final = 0xFFFF
"""How many messages a broker sends before it waits for answers (MQTT5 4.9)."""
PUBLISHER: Final = "penstock-publisher"
"""The user property by which the gateway tells who published."""
ROUNDS: Final = 5
_QUIET_SECONDS: Final = 0.3
_READ: Final = 1 << 16
_PROPERTIES: Final = 100
_NO_LEVEL: Final = frozenset("/+#\0")


def list_filters(streams: Iterable[Stream], person: str) -> list[str]:
    """Return the topics that may have messages about a person."""
    found = set()
    for stream in streams:
        types = {field.name: field.type for field in stream.fields}
        for pattern in stream.patterns if stream.subject else ():
            levels = plain_filter(pattern).split("/")
            places = {name: place for place, name in named_levels(pattern).items()}
            place = places.get(stream.subject or "")
            # A number can be written in several ways; a text in one.
            if place is not None and types[stream.subject or ""] == "string":
                if not person or _NO_LEVEL & set(person):
                    continue
                levels[place] = person
            found.add("/".join(levels))
    return sorted(found)


def clear_retained(
    settings: BrokerSettings, streams: Iterable[Stream], person: str, keep: Keep
) -> int:
    """Clear the retained messages about a person; return how many there were."""
    declared = list(streams)
    filters = list_filters(declared, person)
    if not filters:
        return 0
    subjects = DataSubjects()
    subjects.put(declared)
    cleared: set[str] = set()
    for _ in range(ROUNDS):
        keep()
        with _Session(settings) as session:
            theirs = [
                it.topic
                for it in session.retained(filters, keep)
                if _is_about(it, subjects, person)
            ]
            for topic in theirs:
                session.clear(topic)
        if not theirs:
            return len(cleared)
        cleared.update(theirs)
    raise UnavailableError(
        "messages about the person are retained again and again", fix="stop who publishes them"
    )


def read_retained(
    settings: BrokerSettings, streams: Iterable[Stream], person: str, keep: Keep
) -> list[Publish]:
    """Return the retained messages about a person."""
    declared = list(streams)
    filters = list_filters(declared, person)
    if not filters:
        return []
    subjects = DataSubjects()
    subjects.put(declared)
    with _Session(settings) as session:
        return [it for it in session.retained(filters, keep) if _is_about(it, subjects, person)]


class Waiting(NamedTuple):
    """What came of a look at the sessions of clients that are away."""

    messages: int
    """Messages about the person, which wait no more."""
    unread: int
    """Sessions that could not be read to their end."""


def clear_waiting(
    settings: BrokerSettings,
    sessions: Iterable[AwaySession],
    streams: Iterable[Stream],
    person: str,
    keep: Keep,
) -> Waiting:
    """Take messages about a person out of the sessions of clients that are away."""
    subjects = DataSubjects()
    subjects.put(it for it in streams if it.subject is not None)
    cleared = unread = 0
    for session in sessions:
        keep()
        with _Session(settings, session) as opened:
            found = opened.take_waiting(lambda it: _is_about(it, subjects, person))
        cleared += found.messages
        unread += found.unread
    return Waiting(cleared, unread)


def _is_about(packet: Publish, subjects: DataSubjects, person: str) -> bool:
    properties = collect(packet.properties.user[:_PROPERTIES])
    message = Message(
        packet.topic,
        packet.payload,
        user=properties.get(PUBLISHER),
        rest={"properties": properties},
    )
    return any(key.find(message) == person for key in subjects.of(packet.topic))


class _Session:
    """One connection to the broker, used by one thread."""

    def __init__(self, settings: BrokerSettings, taken: AwaySession | None = None) -> None:
        """Connect; with `taken` as a client that is away."""
        self._timeout = settings.connect_timeout
        self._answers_in_turn = settings.mode == "embedded"
        self._expiry = 0 if taken is None else taken.seconds
        self._reader = Reader(Sender.SERVER, version=V5)
        self._come: deque[Packet] = deque()
        self._number = 0
        try:
            self._socket = _connect(settings)
            embedded = settings.mode == "embedded"
            secret = settings.key if embedded else settings.password
            own = f"penstock-erasure-{secrets.token_hex(8)}"
            request = Connect(
                client_id=own if taken is None else taken.client,
                clean_start=taken is None,
                keep_alive=int(settings.keep_alive),
                username=GATEWAY_USER if embedded else settings.username,
                password=None if secret is None else secret.read_text().encode(),
                properties=Properties(session_expiry=self._expiry or None),
            )
            self._socket.sendall(request.encode(V5))
            answer = next(self._packets(Connack))
        except (OSError, MqttError) as error:
            raise _unavailable() from error
        if not isinstance(answer, Connack) or answer.reason >= FAILURE:
            raise _unavailable()
        if taken is not None and not answer.session_present:
            self._expiry = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            properties = Properties(session_expiry=self._expiry)
            self._socket.sendall(Disconnect(properties=properties).encode(V5))
        self._socket.close()

    def take_waiting(self, is_theirs: Callable[[Publish], bool]) -> Waiting:
        """Acknowledge some of the messages that wait in the session, and leave the others."""
        taken = left = 0
        received: set[int] = set()
        news = True
        try:
            while news:
                news = False
                self._socket.sendall(PINGREQ.encode(V5))
                for packet in self._until_answered():
                    match packet:
                        case Publish(packet_id=int(number), qos=qos) if is_theirs(packet):
                            taken, news = taken + 1, True
                            answer = Puback(number) if qos == 1 else Pubrec(number)
                            received |= {number} if qos > 1 else set()
                            self._socket.sendall(answer.encode(V5))
                        case Publish():
                            left, news = left + 1, True
                        case Pubrel(packet_id=number) if number in received:
                            news = True
                            received.discard(number)
                            self._socket.sendall(Pubcomp(number).encode(V5))
        except (OSError, MqttError):
            # The client is there again: the session is its own, with what is left in it.
            return Waiting(taken, 1)
        return Waiting(taken, int(left >= _MOST_UNANSWERED))

    def _until_answered(self) -> Iterator[Packet]:
        yield from self._packets(Pingresp)
        if not self._answers_in_turn:
            yield from self._packets(None)

    def retained(self, filters: list[str], keep: Keep) -> list[Publish]:
        """Return what the broker retains under these filters."""
        asked = tuple(RequestedSubscription(it) for it in filters)
        found: list[Publish] = []
        try:
            self._socket.sendall(Subscribe(self._next(), asked).encode(V5))
            self._socket.sendall(PINGREQ.encode(V5))
            for packet in self._packets(Pingresp):
                self._collect(packet, found)
                keep()
            # A broker may answer the ping before it has sent them all.
            for packet in self._packets(None):
                self._collect(packet, found)
        except (OSError, MqttError) as error:
            raise _unavailable() from error
        return found

    @staticmethod
    def _collect(packet: Packet, found: list[Publish]) -> None:
        if isinstance(packet, Suback) and any(code >= FAILURE for code in packet.reasons):
            raise UnavailableError(
                "the broker does not let Penstock read what it retains",
                fix="let the gateway's user read all topics there",
            )
        if isinstance(packet, Publish) and packet.retain:
            found.append(packet)

    def clear(self, topic: str) -> None:
        """Let the broker retain nothing for a topic; returns when it has said so."""
        try:
            message = Publish.of(topic, retain=True, qos=1, packet_id=self._next())
            self._socket.sendall(message.encode(V5))
            for packet in self._packets(Puback):
                if isinstance(packet, Puback) and packet.reason >= FAILURE:
                    raise UnavailableError(
                        "the broker does not let Penstock clear what it retains",
                        fix="let the gateway's user write all topics there",
                    )
        except (OSError, MqttError) as error:
            raise _unavailable() from error

    def _next(self) -> int:
        self._number = self._number % 0xFFFF + 1
        return self._number

    def _packets(self, last: type[Any] | None) -> Iterator[Packet]:
        """Yield packets up to one of a kind; with None, until the broker is quiet."""
        deadline = time.monotonic() + self._timeout
        self._socket.settimeout(_QUIET_SECONDS)
        while True:
            # Others may have come in one read with the last that was asked for.
            while self._come:
                packet = self._come.popleft()
                yield packet
                if last is not None and isinstance(packet, last):
                    return
            try:
                data = self._socket.recv(_READ)
            except TimeoutError:
                if last is None:
                    return
                if time.monotonic() > deadline:
                    raise
                continue
            if not data:
                raise ConnectionResetError
            deadline = time.monotonic() + self._timeout
            self._reader.feed(data)
            while batch := self._reader.packets():
                self._come.extend(batch)


def _connect(settings: BrokerSettings) -> socket.socket:
    if settings.mode == "embedded":
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(settings.connect_timeout)
            with reach(settings.socket) as address:
                made.connect(address)
            check_listener(made)
        except BaseException:
            made.close()
            raise
        return made
    connected = socket.create_connection(
        (settings.host, settings.port), timeout=settings.connect_timeout
    )
    if not settings.tls.enabled:
        return connected
    return settings.tls.make_context().wrap_socket(connected, server_hostname=settings.host)


def _unavailable() -> UnavailableError:
    return UnavailableError(
        "the broker cannot be asked for what it retains", fix="check that the broker runs"
    )

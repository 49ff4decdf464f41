"""The broker behind the gateway: its address, and how a client's CONNECT becomes the gateway's.

Rules that hold here:
- TLS towards the broker always verifies its certificate.
- The embedded broker is reached at its socket. It is told nothing, the password least of all,
  before it is known that it runs as the user that we are (`check_listener`).
- A receiver may close the connection over control characters and non-characters, although
  they are UTF-8 (MQTT5 1.5.4). On a client's own connection that is between the client and
  the broker. The gateway's own connections carry messages of all clients, so texts that are
  not acceptable never go out on them, nor topics that some broker may refuse.
- Towards the broker it is always MQTT 5. What 3.1.1 means by "clean session" (MQTT3.1.1 3.1.2.4)
  is said as clean start and session expiry (MQTT5 3.1.2.4, 3.1.2.11.2); its missing receive
  maximum is the gateway's limit.
- The gateway uses no topic aliases towards either side, and expands those of clients.
- Names of user properties that begin with a reserved prefix are the gateway's own: they
  are taken out of what clients send, and never shown to them.
- The client is told the smaller of the broker's and the gateway's limits; those that MQTT 5 has
  no property for, in user properties.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from penstock.components.mosquitto import (
    GATEWAY_USER,
    check_listener,
    find_listener,
    generate_password,
    reach,
)
from penstock.config.brokers import BrokerSettings
from penstock.config.secrets import KeyFile, Secret
from penstock.mqtt import (
    V3,
    Connack,
    Connect,
    Properties,
    ReasonCode,
    Will,
    are_acceptable,
    encode_user_properties,
)
from penstock.mqtt.codes import PACKET_SIZE_LIMIT
from penstock.mqtt.properties import UserProperties

_PROBE_SECONDS: Final = 1.0
_FULL_SECONDS: Final = 0.005
_ORDINARY_BYTES: Final = 1_024
_ORDINARY_LEVELS: Final = 100
SHARED_NAME_BYTES: Final = 1_024
"""So long a client identifier may be to stand in what the gateway's own connections carry."""

P = TypeVar("P", bound=asyncio.Protocol)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The broker behind the gateway."""

    host: str
    port: int
    socket: Path | None = None
    """The socket of the embedded broker; an external one has host and port."""
    keep_alive: int = 30
    timeout: float = 5.0
    tls: ssl.SSLContext | None = None
    username: str | None = None
    secret: Secret | None = None
    client_prefix: str = ""
    """What client identifiers begin with at the broker, where other domains have clients there."""

    @classmethod
    def of(cls, settings: BrokerSettings) -> BrokerAddress:
        """Read the settings."""
        embedded = settings.mode == "embedded"
        return cls(
            host=settings.host,
            port=settings.port,
            socket=settings.socket if embedded else None,
            keep_alive=int(settings.keep_alive),
            timeout=settings.connect_timeout,
            tls=settings.tls.make_context() if settings.tls.enabled else None,
            username=GATEWAY_USER if embedded else settings.username,
            secret=settings.key if embedded else settings.password,
        )

    async def connect(self, factory: Callable[[], P]) -> P:
        """Open a connection; return what the factory made for it."""
        loop = asyncio.get_running_loop()
        if self.socket is None:
            _, made = await loop.create_connection(factory, self.host, self.port, ssl=self.tls)
        else:
            connected = await _dial(self.socket)
            _, made = await loop.create_unix_connection(factory, sock=connected)
        return made

    async def open_stream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to read from and to write to."""
        if self.socket is None:
            return await asyncio.open_connection(self.host, self.port, ssl=self.tls)
        return await asyncio.open_unix_connection(sock=await _dial(self.socket))

    def check(self) -> str | None:
        """Say why no connection can be opened, if so."""
        if self.socket is not None:
            found = find_listener(self.socket)
            return None if found else "the broker cannot be reached at its socket"
        try:
            with socket.create_connection((self.host, self.port), timeout=_PROBE_SECONDS):
                return None
        except OSError as error:
            return f"the broker cannot be reached: {type(error).__name__}"

    def password(self) -> bytes | None:
        """Read the gateway's own password at the broker."""
        if isinstance(self.secret, KeyFile):
            self.secret.read_or_create(generate_password)
        return self.secret.read_text().encode() if self.secret is not None else None


async def _dial(path: Path) -> socket.socket:
    """Connect to the socket of the embedded broker; whoever waits for it bounds the time."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with reach(path) as address:
            # A socket is connected at once, or its queue is full: Mosquitto's has ten places.
            # Nothing tells when there is room.
            while not _is_connected(made, address):  # noqa: ASYNC110
                await asyncio.sleep(_FULL_SECONDS)
        check_listener(made)
    except BaseException:
        made.close()
        raise
    return made


def _is_connected(made: socket.socket, address: str) -> bool:
    try:
        made.connect(address)
    except BlockingIOError:
        return False
    return True


def is_ordinary(topic: str) -> bool:
    """Say whether every broker takes messages to a topic: others cost a client its connection."""
    return (
        len(topic) <= _ORDINARY_BYTES
        and topic.count("/") < _ORDINARY_LEVELS
        and "$" not in topic
        and are_acceptable((topic,))
    )


def may_share(client_id: str) -> bool:
    """Say whether every broker takes messages that name a client."""
    return len(client_id.encode()) <= SHARED_NAME_BYTES and are_acceptable((client_id,))


RESERVED: Final = ("penstock-", "purpose-")
"""What the names of the gateway's own user properties begin with."""

PUBLISHER: Final = "penstock-publisher"
EPOCH: Final = "penstock-epoch"
CLIENT: Final = "penstock-client"
FOR: Final = "penstock-for"
"""The user for whom a message was published: whose preferences hold."""
ACTIONS: Final = ":actions"
"""Who publishes the messages of actions; no user's name has a colon."""
CREDENTIAL: Final = "penstock-credential"
"""Whose gateway vouches for a message, and how that can be checked."""
MESSAGE_AIP: Final = "penstock-aip"
MESSAGE_PIP: Final = "penstock-pip"

ROLE: Final = "penstock-role"
"""Names a role that a client wants to use; several properties name several."""
CHOICE_LIMIT: Final = 64

NEVER_EXPIRES: Final = 0xFFFF_FFFF
HEADROOM: Final = 2048
"""What the gateway's own properties may add to a packet on its way to and from the broker, beside
the client identifier of its publisher."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the gateway grants to one client."""

    packet: int
    receive_maximum: int
    topic_aliases: int
    keep_alive: int
    broker_keep_alive: int
    client_id_bytes: int
    topic_bytes: int
    topic_levels: int
    session_expiry: int
    """For how many seconds the session outlives the connection."""

    def as_properties(self) -> UserProperties:
        """Return the limits that MQTT 5 has no property for."""
        return (
            ("penstock-client-id-bytes", str(self.client_id_bytes)),
            ("penstock-topic-bytes", str(self.topic_bytes)),
            ("penstock-topic-levels", str(self.topic_levels)),
        )


def read_choice(connect: Connect) -> tuple[str, ...] | None:
    """Return the roles that a CONNECT names; None where it names none. What is too much is none."""
    named = tuple(value for name, value in connect.properties.user if name == ROLE)
    return tuple(dict.fromkeys(named))[: CHOICE_LIMIT + 1] or None


def strip(pairs: UserProperties) -> UserProperties:
    """Leave out the user properties whose names are reserved."""
    return tuple(pair for pair in pairs if not pair[0].startswith(RESERVED))


def stamp(publisher: str, epoch: int, purposes: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Encode what the gateway adds to a message: who sent it, and under which epoch."""
    return encode_user_properties(((PUBLISHER, publisher), (EPOCH, str(epoch)), *purposes))


def session_expiry(connect: Connect) -> int:
    """Say for how many seconds the session is to outlive the connection."""
    if connect.version == V3:
        return 0 if connect.clean_start else NEVER_EXPIRES
    return connect.properties.session_expiry or 0


def upstream_connect(
    connect: Connect,
    client_id: str,
    offer: Offer,
    *,
    will: Will | None,
    username: str | None,
    password: bytes | None,
) -> Connect:
    """Make the CONNECT that opens the connection to the broker."""
    asked = connect.properties
    wanted = asked.receive_maximum or (0xFFFF if connect.version != V3 else offer.receive_maximum)
    properties = Properties(
        session_expiry=offer.session_expiry or None,
        receive_maximum=min(wanted, offer.receive_maximum),
        maximum_packet_size=offer.packet + HEADROOM + offer.client_id_bytes,
        request_response_information=asked.request_response_information,
        user=strip(asked.user),
    )
    return Connect(
        client_id=client_id,
        clean_start=connect.clean_start,
        keep_alive=offer.broker_keep_alive,
        username=username,
        password=password,
        will=will,
        properties=properties,
    )


def client_connack(
    answer: Connack, connect: Connect, client_id: str, assigned: str | None, offer: Offer
) -> Connack:
    """Make the CONNACK that tells the client what broker and gateway grant together."""
    granted = answer.properties
    keep_alive = offer.keep_alive if offer.keep_alive != connect.keep_alive else None
    asked = session_expiry(connect)
    expiry = min(offer.session_expiry, granted.session_expiry or offer.session_expiry)
    added = HEADROOM + len(client_id.encode())
    packet = min(granted.maximum_packet_size or PACKET_SIZE_LIMIT, offer.packet + added)
    properties = replace(
        granted,
        assigned_client_id=assigned,
        server_keep_alive=keep_alive,
        session_expiry=expiry if expiry != asked else None,  # MQTT5 3.2.2.3.2
        receive_maximum=min(granted.receive_maximum or 0xFFFF, offer.receive_maximum),
        topic_alias_maximum=offer.topic_aliases or None,
        maximum_packet_size=max(packet - added, 1),
        authentication_method=None,
        authentication_data=None,
        subscription_identifiers_available=None,
        user=(*strip(granted.user), *offer.as_properties()),
    )
    # MQTT 3.1 has no such flag: its byte is reserved.
    present = answer.session_present and not connect.is_31
    return Connack(answer.reason, present, properties)


def refusal(reason: ReasonCode, text: str | None, connect: Connect | None) -> Connack:
    """Make a CONNACK that refuses; the text is for clients that asked for problems."""
    if text is None or (connect and connect.properties.request_problem_information == 0):
        return Connack(int(reason))
    return Connack(int(reason), properties=Properties(reason_string=text))

"""`penstock tail`: subscribe through the gateway, for a purpose, and print what comes."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
from rich.text import Text

from penstock.cli.output import console, json_option, print_json
from penstock.cli.session import configuration
from penstock.errors import DeniedError, UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

PREVIEW = 2_000
KEEP_ALIVE = 30
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("tail")
@click.argument("filter_", metavar="FILTER")
@click.option("--purpose", help="The access purpose of the subscription.")
@click.option("--host", help="The gateway's host; default: that of a listener in penstock.yaml.")
@click.option("--port", type=click.IntRange(1, 65535), help="Its port.")
@click.option(
    "--transport",
    type=click.Choice(["tcp", "tls", "websocket", "websocket-tls"]),
    help="How to connect; default: as the listener in penstock.yaml says, or tcp.",
)
@click.option("--path", default="/mqtt", show_default=True, help="The path of the WebSocket.")
@click.option(
    "--ca",
    type=_FILE,
    help="The CA certificates to verify the gateway with; default: the system's.",
)
@click.option(
    "--certificate", type=_FILE, help="The client certificate, if the gateway asks for one."
)
@click.option(
    "--key", type=_FILE, help="The file of its private key; nobody else may be able to read it."
)
@click.option("--user", help="The user name.")
@click.option(
    "--password-file",
    type=_FILE,
    help="A file that holds the password; nobody else may be able to read it.",
)
@click.option(
    "--client-id", default="", help="The client identifier; default: assigned by the gateway."
)
@click.option("--qos", type=click.IntRange(0, 2), default=1, show_default=True)
@click.option("-n", "--count", type=click.IntRange(1), help="Exit after this many messages.")
@json_option
def command(
    *,
    filter_: str,
    purpose: str | None,
    host: str | None,
    port: int | None,
    transport: str | None,
    path: str,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    user: str | None,
    password_file: Path | None,
    client_id: str,
    qos: int,
    count: int | None,
    as_json: bool,
) -> None:
    """Print the messages of FILTER that the gateway delivers for a purpose.

    With --json, prints one line per message: `payload` is the text as it was sent, `payload_json`
    the same as data if it is a JSON object or list; a payload that is not text is in `base64`.
    """
    from penstock.config.secrets import SecretFile

    place = _find_gateway(host, port, transport, path)
    tls = _make_tls(ca, certificate, key) if place.transport in {"tls", "websocket-tls"} else None
    if tls is None and (ca or certificate or key):
        raise UsageError(
            f"the transport {place.transport} uses no certificates",
            fix="give --transport tls or websocket-tls, or leave them out",
        )
    password = SecretFile(password_file).read_text().encode() if password_file else None
    wanted = SubscriptionRequest(filter_, purpose, qos, count, as_json)
    asyncio.run(_follow(place, tls, wanted, (user, password, client_id)))


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """What is asked for."""

    filter: str
    purpose: str | None
    qos: int
    count: int | None
    as_json: bool


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Where the gateway is, and how it is reached."""

    host: str
    port: int
    transport: str
    path: str

    @property
    def uri(self) -> str:
        """The address of its WebSocket."""
        scheme = "wss" if self.transport == "websocket-tls" else "ws"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}{self.path}"


def _find_gateway(
    host: str | None, port: int | None, transport: str | None, path: str
) -> GatewayAddress:
    """Return where the gateway is: as told, else a listener of this installation, tcp first."""
    if host and port:
        return GatewayAddress(host, port, transport or "tcp", path)
    listeners = configuration().gateway.listeners.values()
    order = [transport] if transport else ["tcp", "tls", "websocket", "websocket-tls"]
    for wanted in order:
        for listener in listeners:
            if listener.transport == wanted and (listener.port or port):
                found = "127.0.0.1" if listener.host == "0.0.0.0" else listener.host  # noqa: S104
                return GatewayAddress(
                    host or found, port or listener.port, wanted, listener.path or path
                )
    of = f"of transport {transport} " if transport else ""
    raise UsageError(
        f"penstock.yaml names no listener {of}with a port",
        fix="name the gateway with --host and --port",
    )


def _make_tls(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    from penstock.config.secrets import SecretFile

    if (certificate is None) != (key is None):
        raise UsageError("--certificate and --key go together", fix="give both, or none")
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None and key is not None:
            SecretFile(key).read()  # raises where others could read it
            context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise UsageError(
            f"the certificates cannot be used: {error.reason or error}",
            fix="give files in PEM form",
        ) from None
    return context


class Connection(Protocol):
    """A connection to the gateway, whatever its transport."""

    async def read(self) -> bytes:
        """Return the next bytes; none where it was closed."""

    async def write(self, data: bytes) -> None:
        """Send bytes."""

    async def close(self) -> None:
        """End it."""


class _Stream:
    """TCP or TLS."""

    def __init__(self, incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def read(self) -> bytes:
        return await self._incoming.read(1 << 16)

    async def write(self, data: bytes) -> None:
        self._outgoing.write(data)
        await self._outgoing.drain()

    async def close(self) -> None:
        self._outgoing.close()


class _WebSocket:
    """MQTT in binary frames (MQTT5 6)."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def read(self) -> bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            data = await self._connection.recv(decode=False)
        except ConnectionClosed:
            return b""
        return bytes(data)

    async def write(self, data: bytes) -> None:
        await self._connection.send(data)

    async def close(self) -> None:
        await self._connection.close()


async def _open(place: GatewayAddress, tls: ssl.SSLContext | None) -> Connection:
    """Connect to the gateway."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake
    from websockets.typing import Subprotocol

    try:
        if place.transport in {"tcp", "tls"}:
            return _Stream(*await asyncio.open_connection(place.host, place.port, ssl=tls))
        return _WebSocket(
            await connect(
                place.uri,
                ssl=tls,
                subprotocols=[Subprotocol("mqtt")],
                compression=None,
                max_size=None,
                proxy=None,
            )
        )
    except (OSError, InvalidHandshake) as error:
        number = getattr(error, "errno", None)
        # asyncio has words of its own for what the system calls "Connection refused".
        system = os.strerror(number).lower() if number and number > 0 else None
        why = system or getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted ({error.verify_message})"
        raise UnavailableError(
            f"the gateway at {place.host} port {place.port} cannot be reached by"
            f" {place.transport}: {why}",
            fix="start it with `penstock up`, or name another with --host, --port and --transport; "
            "--ca names who vouches for its certificate",
        ) from None


async def _follow(
    place: GatewayAddress,
    tls: ssl.SSLContext | None,
    wanted: SubscriptionRequest,
    login: tuple[str | None, bytes | None, str],
) -> None:
    from penstock.mqtt import PINGREQ, V5, Connect, Disconnect, Reader, Sender

    user, password, client_id = login
    connection = await _open(place, tls)
    reader = Reader(Sender.SERVER, version=V5)
    connect = Connect(client_id, keep_alive=KEEP_ALIVE, username=user, password=password)
    await connection.write(connect.encode())
    seen = 0
    while wanted.count is None or seen < wanted.count:
        try:
            async with asyncio.timeout(KEEP_ALIVE / 2):
                data = await connection.read()
        except TimeoutError:
            await connection.write(PINGREQ.encode(V5))
            continue
        if not data:
            raise UnavailableError("the gateway closed the connection", fix="see its log")
        reader.feed(data)
        while batch := reader.packets():
            for packet in batch:
                answer, shown = _take(packet, wanted)
                if answer:
                    await connection.write(answer)
                seen += shown
                if seen == wanted.count:
                    break
    await connection.write(Disconnect().encode(V5))
    await connection.close()


def _take(packet: Any, wanted: SubscriptionRequest) -> tuple[bytes, int]:
    """Deal with a packet; return what to answer, and how many messages were printed."""
    from penstock.mqtt import (
        FAILURE,
        V5,
        Connack,
        Disconnect,
        Properties,
        Publish,
        Pubrel,
        RequestedSubscription,
        Suback,
        Subscribe,
        encode_puback,
        encode_pubcomp,
        encode_pubrec,
    )

    match packet:
        case Connack() if packet.reason >= FAILURE:
            raise DeniedError(
                f"the gateway refused the connection: {_describe(packet)}",
                fix=_connect_otherwise(packet.reason),
            )
        case Connack():
            pairs = (("purpose-ap", wanted.purpose),) if wanted.purpose else ()
            subscription = RequestedSubscription(wanted.filter, wanted.qos)
            return Subscribe(1, (subscription,), Properties(user=pairs)).encode(V5), 0
        case Suback() if packet.reasons[0] >= FAILURE:
            raise DeniedError(
                f"the subscription to {quote(wanted.filter)} was refused: {_describe(packet)}",
                fix=_ask_otherwise(packet.reasons[0], wanted),
            )
        case Suback():
            if not wanted.as_json:
                _announce(wanted)
        case Disconnect():
            raise UnavailableError(f"the gateway ended the connection: {_describe(packet)}")
        case Publish():
            _show(packet, as_json=wanted.as_json)
            if not packet.qos:
                return b"", 1
            answer = encode_puback if packet.qos == 1 else encode_pubrec
            return answer(packet.packet_id), 1
        case Pubrel():
            return encode_pubcomp(packet.packet_id), 0
    return b"", 0


def _describe(packet: Any) -> str:
    """Say why the gateway refused, in its own words where it has some."""
    from penstock.mqtt import ReasonCode, Suback

    reason = packet.reasons[0] if isinstance(packet, Suback) else packet.reason
    code = f"{ReasonCode(reason).name.replace('_', ' ').lower()} (0x{reason:02X})"
    words = packet.properties.reason_string
    return f"{code}, {_visible(words)}" if words else code


def _connect_otherwise(reason: int) -> str:
    from penstock.mqtt import ReasonCode

    if reason in {ReasonCode.NOT_AUTHORIZED, ReasonCode.BAD_USER_NAME_OR_PASSWORD}:
        return "give --user and --password-file"
    if reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID:
        return "choose another --client-id, or leave it out"
    return "see the log of the gateway"


def _ask_otherwise(reason: int, wanted: SubscriptionRequest) -> str | None:
    from penstock.mqtt import ReasonCode

    if reason != ReasonCode.NOT_AUTHORIZED:
        return None
    if wanted.purpose is None:
        return "name what you need it for with --purpose"
    return "name a purpose that is allowed there with --purpose"


def _announce(wanted: SubscriptionRequest) -> None:
    """Say that messages will come: until the first one nothing else shows it."""
    purpose = f" for {wanted.purpose}" if wanted.purpose else ""
    click.echo(f"subscribed to {wanted.filter}{purpose}", err=True)


def _show(packet: Any, *, as_json: bool) -> None:
    text = _as_text(packet.payload)
    if as_json:
        line: dict[str, Any] = {"topic": packet.topic, "qos": packet.qos, "retain": packet.retain}
        if text is None:
            line["base64"] = base64.b64encode(packet.payload).decode()
        else:
            line["payload"] = text
            data = _as_data(text)
            if data is not None:
                line["payload_json"] = data
        print_json(line)
    else:
        shown = f"({len(packet.payload)} bytes)" if text is None else _visible(text)
        mark = " retained" if packet.retain else ""
        console().print(Text.assemble((packet.topic, "bold"), (mark, "dim"), " ", shown))
    sys.stdout.flush()


def _as_text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _as_data(text: str) -> dict[str, Any] | list[Any] | None:
    """Return the object or list that a text is; a lone `80` or `true` stays a text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        found: dict[str, Any] | list[Any] = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return found


def _refuse(word: str) -> None:
    """Refuse what Python takes and JSON does not have: NaN and Infinity."""
    raise ValueError(word)


def _visible(text: str) -> str:
    """Leave out what would move the cursor or end the line."""
    short = text if len(text) <= PREVIEW else text[:PREVIEW] + "…"
    return "".join(it if it.isprintable() else "�" for it in short)

"""`penstock tail`: subscribe through the gateway, for a purpose, and print what comes."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from penstock.cli.output import console, json_option, print_json
from penstock.cli.session import configuration
from penstock.errors import DeniedError, UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from penstock.config import Config

PREVIEW = 2_000
KEEP_ALIVE = 30


@click.command("tail")
@click.argument("filter_", metavar="FILTER")
@click.option("--purpose", help="The access purpose of the subscription.")
@click.option("--host", help="The gateway; else a listener of penstock.yaml.")
@click.option("--port", type=click.IntRange(1, 65535), help="Its port.")
@click.option("--user", help="Who asks.")
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file that holds the password; nobody else may read it.",
)
@click.option("--client-id", default="", help="The client identifier; else one is assigned.")
@click.option("--qos", type=click.IntRange(0, 2), default=1, show_default=True)
@click.option("-n", "--count", type=click.IntRange(1), help="End after so many messages.")
@json_option
def command(
    *,
    filter_: str,
    purpose: str | None,
    host: str | None,
    port: int | None,
    user: str | None,
    password_file: Path | None,
    client_id: str,
    qos: int,
    count: int | None,
    as_json: bool,
) -> None:
    """Print the messages of FILTER that the gateway delivers for a purpose.

    With --json one line per message: `payload` is the text as it was sent, `payload_json`
    the same as data where it is a JSON object or list; what is not text comes as `base64`.
    """
    from penstock.config.secrets import SecretFile

    address = (host, port) if host and port else _listener(configuration(), host, port)
    password = SecretFile(password_file).read_text().encode() if password_file else None
    wanted = SubscriptionRequest(filter_, purpose, qos, count, as_json)
    asyncio.run(_follow(address, wanted, (user, password, client_id)))


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """What is asked for."""

    filter: str
    purpose: str | None
    qos: int
    count: int | None
    as_json: bool


def _listener(config: Config, host: str | None, port: int | None) -> tuple[str, int]:
    """Return the address of a plain listener of this installation."""
    for listener in config.gateway.listeners.values():
        if listener.transport == "tcp" and (listener.port or port):
            found = "127.0.0.1" if listener.host == "0.0.0.0" else listener.host  # noqa: S104
            return host or found, port or listener.port
    raise UsageError(
        "penstock.yaml names no listener of transport tcp with a port",
        fix="name the gateway with --host and --port",
    )


async def _follow(
    address: tuple[str, int],
    wanted: SubscriptionRequest,
    login: tuple[str | None, bytes | None, str],
) -> None:
    from penstock.mqtt import PINGREQ, V5, Connect, Disconnect, Reader, Sender

    user, password, client_id = login
    try:
        incoming, outgoing = await asyncio.open_connection(*address)
    except OSError as error:
        raise UnavailableError(
            f"the gateway at {address[0]} port {address[1]} cannot be reached: {error.strerror}",
            fix="start it with `penstock up`, or name another with --host and --port",
        ) from None
    reader = Reader(Sender.SERVER, version=V5)
    connect = Connect(client_id, keep_alive=KEEP_ALIVE, username=user, password=password)
    outgoing.write(connect.encode())
    seen = 0
    while wanted.count is None or seen < wanted.count:
        try:
            async with asyncio.timeout(KEEP_ALIVE / 2):
                data = await incoming.read(1 << 16)
        except TimeoutError:
            outgoing.write(PINGREQ.encode(V5))
            continue
        if not data:
            raise UnavailableError("the gateway closed the connection", fix="see its log")
        reader.feed(data)
        while batch := reader.packets():
            for packet in batch:
                answer, shown = _take(packet, wanted)
                outgoing.write(answer)
                seen += shown
                if seen == wanted.count:
                    break
    outgoing.write(Disconnect().encode(V5))
    await outgoing.drain()
    outgoing.close()


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

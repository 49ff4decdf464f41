"""MQTT over WebSocket: frames in, bytes out, for the same client connections.

    TCP bytes ──▶ websockets (no I/O) ──▶ binary frames ──▶ Downstream.data_received
    Downstream ──▶ transport.write ──▶ one binary frame ──▶ TCP bytes

Rules that hold here:
- Programs that are no browsers send no Origin (RFC 6455 10.2): they are let pass, for they could
  send any.
- A page has to be of an origin that the settings list, or of this very host where the browser
  has proof of whom it talks to. A name alone is no proof: whoever owns one may let it stand for
  our address (DNS rebinding). A certificate is one, and so is an address in the place of a name.
- The subprotocol is `mqtt`, or `mqttv3.1` as clients of MQTT 3.1 say, the path is the
  configured one, and a web page has to be of an origin that may connect (`OriginRule`); anything
  else is refused with an HTTP answer.
- MQTT packets may span frames and frames may hold several: frames are a stream of bytes.
- Text frames end the connection (MQTT5 6). A message is never larger than the largest packet, and
  compression is not offered: it would let few bytes become many.
- What a peer sends is read piece by piece, so that many small frames take a bounded part of a
  step of the loop. Before its CONNECT is here, it has so many frames and bytes.
- Of the pings that come in one piece the last is answered (RFC 6455 5.5.3). Who pings too often,
  or leaves too much unread, is closed with 1008 and the reason.
"""

from __future__ import annotations

import asyncio
import http
import ipaddress
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, cast

from websockets.exceptions import InvalidHandshake
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from penstock.gateway.connection.context import FAREWELL_SECONDS
from penstock.gateway.connection.downstream import Downstream

_ANYBODY: Final = "*"


class OriginRule:
    """Which web pages may connect."""

    def __init__(self, origins: Iterable[str], *, encrypted: bool) -> None:
        self._origins = frozenset(origins)
        self._encrypted = encrypted

    def allows(self, origins: list[str], hosts: list[str]) -> bool:
        """Say whether a request with these Origin and Host headers may be served."""
        if not origins or _ANYBODY in self._origins:
            return True
        if len(origins) > 1:
            return False
        origin = origins[0].lower()
        return origin in self._origins or (len(hosts) == 1 and self._is_own(origin, hosts[0]))

    def _is_own(self, origin: str, host: str) -> bool:
        """Say whether a page is of this very host, and the browser has proof of the host."""
        host = host.lower()
        if self._encrypted:
            return origin == f"https://{host}"
        return origin == f"http://{host}" and _is_address(host)


def _is_address(host: str) -> bool:
    name = host.rpartition("]")[0].removeprefix("[") or host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


SUBPROTOCOL = Subprotocol("mqtt")
OLD_SUBPROTOCOL = Subprotocol("mqttv3.1")
HEAD_LIMIT: Final = 16_384
"""The longest HTTP request, in bytes."""
EARLY_FRAMES: Final = 256
"""The most frames before the client is let in."""
CONTROL_RATE: Final = 10.0
CONTROL_BURST: Final = 100
"""Pings and pongs: so many a second, and so many at once."""
_FRAME_HEADROOM: Final = 1024
_PIECE: Final = 4_096
_PONG: Final = b"\x8a"


class WebSocketServer(asyncio.Protocol):
    """One WebSocket, with a client connection inside."""

    def __init__(self, client: Downstream, path: str, origins: OriginRule) -> None:
        self._client = client
        self._path = path
        self._origins = origins
        self._open = False
        self._protocol = ServerProtocol(
            subprotocols=[SUBPROTOCOL, OLD_SUBPROTOCOL],
            max_size=client.context.limits.packet + _FRAME_HEADROOM,
        )
        self._head = 0
        self._held = False
        self._frames = 0
        self._controls = 0.0
        self._pieces: deque[bytes] = deque()
        self._closing: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the client connection count, with a transport that writes frames."""
        self._transport = cast("asyncio.Transport", transport)
        self._client.connection_made(FrameTransport(self._transport, self._protocol))

    def data_received(self, data: bytes) -> None:
        """Read frames and pass their content on, a piece now and the rest in later steps."""
        waits = bool(self._pieces)
        self._pieces.extend(data[at : at + _PIECE] for at in range(0, len(data), _PIECE))
        if not waits:
            self._go_on()

    def eof_received(self) -> None:
        """Tell the protocol that the client has closed."""
        self._pieces.clear()
        self._protocol.receive_eof()
        self._flush()

    def pause_writing(self) -> None:
        """Pass on that the client reads too slowly."""
        self._client.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client has caught up."""
        self._client.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the client is gone."""
        self._pieces.clear()
        self._protocol.reader.discard()
        if self._closing is not None:
            self._closing.cancel()
        self._client.connection_lost(exc)

    def _go_on(self) -> None:
        """Read pieces, up to a bounded number of frames in one step."""
        frames = 0
        while self._pieces and frames < EARLY_FRAMES:
            frames += self._read(self._pieces.popleft())
        if self._pieces and not self._transport.is_closing():
            self._held = True
            self._client.hold_reading("frames")
            self._client.context.loop.call_soon(self._go_on)
        elif self._held:
            self._held = False
            self._client.release_reading("frames")

    def _read(self, piece: bytes) -> int:
        """Read a piece; return how many frames ended in it."""
        protocol, client = self._protocol, self._client
        limits = client.context.limits
        largest = limits.packet if client.open else limits.connect
        protocol.max_message_size = largest + _FRAME_HEADROOM
        if not self._open and not self._fits(len(piece)):
            return 0
        protocol.receive_data(piece)
        events = protocol.events_received()
        self._flush()
        for event in events:
            if isinstance(event, Request):
                self._answer(event)
            elif isinstance(event, Frame) and not self._take(event):
                break
        if not client.open and not client.ended:
            held = client.reader.buffered + len(protocol.reader.buffer)
            client.context.arrivals.hold(client.arrival, held)
        self._flush()
        return len(events)

    def _fits(self, size: int) -> bool:
        """Say whether the HTTP request may go on; refuse it where it is too long."""
        self._head += size
        if self._head <= HEAD_LIMIT or self._protocol.state is not State.CONNECTING:
            return True
        self._pieces.clear()
        if not self._protocol.eof_sent:
            status = http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._turn_away("websocket")
            self._refuse(status, f"a request has at most {HEAD_LIMIT} bytes\n")
            self._flush()
        return False

    def _answer(self, request: Request) -> None:
        protocol, headers = self._protocol, request.headers
        if request.path.partition("?")[0] != self._path:
            self._refuse(http.HTTPStatus.NOT_FOUND, "there is nothing here\n")
            return
        if not self._origins.allows(headers.get_all("Origin"), headers.get_all("Host")):
            context = self._client.context
            context.counters.denied("connection", "origin")
            context.denials.connection(self._client.peer, "origin")
            self._turn_away("origin")
            text = "pages of this origin may not connect; see `origins` of the listener\n"
            self._refuse(http.HTTPStatus.FORBIDDEN, text)
            return
        answer = protocol.accept(request)
        opened = answer.status_code == http.HTTPStatus.SWITCHING_PROTOCOLS
        if opened and protocol.subprotocol is None:
            self._refuse(http.HTTPStatus.BAD_REQUEST, "the subprotocol must be mqtt\n")
            return
        protocol.send_response(answer)
        self._open = opened

    def _refuse(self, status: http.HTTPStatus, text: str) -> None:
        self._protocol.handshake_exc = InvalidHandshake(text)
        self._protocol.send_response(self._protocol.reject(status, text))

    def _take(self, frame: Frame) -> bool:
        """Take a frame; False where it ends the connection."""
        client = self._client
        if not client.open:
            self._frames += 1
            if self._frames > EARLY_FRAMES:
                self._fail(CloseCode.POLICY_VIOLATION, "too many frames before CONNACK")
                return False
        if frame.opcode in {Opcode.BINARY, Opcode.CONT}:
            if frame.data and not client.ended:
                client.data_received(bytes(frame.data))
            return True
        if frame.opcode is Opcode.TEXT:
            self._fail(CloseCode.UNSUPPORTED_DATA, "MQTT is binary")
            return False
        if frame.opcode is not Opcode.CLOSE and not self._may_control():
            self._fail(CloseCode.POLICY_VIOLATION, "too many pings")
            return False
        return True

    def _may_control(self) -> bool:
        """Take one from the bucket of control frames, which fills up in time."""
        now = self._client.context.loop.time()
        burst = CONTROL_BURST / CONTROL_RATE
        due = max(self._controls, now - burst) + 1.0 / CONTROL_RATE
        if due > now:
            return False
        self._controls = due
        return True

    def _fail(self, code: CloseCode, reason: str) -> None:
        """Close the connection, with a reason."""
        self._pieces.clear()
        if not self._client.open:
            self._turn_away("websocket")
        if self._protocol.state is State.OPEN:
            self._protocol.fail(code, reason)

    def _turn_away(self, cause: str) -> None:
        self._client.context.counters.turned_away(cause)

    def _flush(self) -> None:
        writes = self._protocol.data_to_send()
        pong = max((at for at, it in enumerate(writes) if it[:1] == _PONG), default=0)
        for at, data in enumerate(writes):
            if not data:
                self._close()
            elif at >= pong or data[:1] != _PONG:
                self._transport.write(data)
        if self._closing is None and self._protocol.close_expected():
            self._closing = self._client.context.loop.call_later(1.0, self._close)

    def _close(self) -> None:
        """Close; a peer that does not read what is still to be sent is cut off."""
        if self._closing is not None:
            self._closing.cancel()
        self._transport.close()
        loop = self._client.context.loop
        self._closing = loop.call_later(FAREWELL_SECONDS, self._transport.abort)


class FrameTransport(asyncio.Transport):
    """What a client connection writes to: each write becomes a binary frame."""

    def __init__(self, transport: asyncio.Transport, protocol: ServerProtocol) -> None:
        super().__init__()
        self._transport = transport
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send one binary frame."""
        if self._transport.is_closing() or self._protocol.state is not State.OPEN:
            return
        self._protocol.send_binary(bytes(data))
        self._send()

    def close(self) -> None:
        """Say good-bye in WebSocket's way and close."""
        if self._transport.is_closing():
            return
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._send()
        self._transport.close()

    def abort(self) -> None:
        """Cut the connection off."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Say whether the connection is on its way out."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Stop reading."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set how much may wait to be written."""
        self._transport.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        """Return how much waits to be written."""
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection."""
        return self._transport.get_extra_info(name, default)

    def _send(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)

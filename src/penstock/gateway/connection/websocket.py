"""MQTT over WebSocket: frames in, bytes out, for the same client connections.

    TCP bytes ──▶ websockets (no I/O) ──▶ binary frames ──▶ Downstream.data_received
    Downstream ──▶ transport.write ──▶ one binary frame ──▶ TCP bytes

Rules that hold here:
- The subprotocol is `mqtt`, or `mqttv3.1` as clients of MQTT 3.1 say, and the path is the
  configured one; anything else is refused with an HTTP answer.
- MQTT packets may span frames and frames may hold several: frames are a stream of bytes.
- Text frames end the connection (MQTT5 6). A message is never larger than the largest packet, and
  compression is not offered: it would let few bytes become many.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable
from typing import Any, cast

from websockets.exceptions import InvalidHandshake
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from penstock.gateway.connection.downstream import Downstream

SUBPROTOCOL = Subprotocol("mqtt")
OLD_SUBPROTOCOL = Subprotocol("mqttv3.1")
_FRAME_HEADROOM = 1024


class WebSocketServer(asyncio.Protocol):
    """One WebSocket, with a client connection inside."""

    def __init__(self, make_client: Callable[[], Downstream], path: str) -> None:
        self._client = make_client()
        self._path = path
        self._open = False
        self._protocol = ServerProtocol(
            subprotocols=[SUBPROTOCOL, OLD_SUBPROTOCOL],
            max_size=self._client.context.limits.packet + _FRAME_HEADROOM,
        )
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the client connection count, with a transport that writes frames."""
        self._transport = cast("asyncio.Transport", transport)
        self._client.connection_made(FrameTransport(self._transport, self._protocol))

    def data_received(self, data: bytes) -> None:
        """Read frames and pass their content on."""
        protocol = self._protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._answer(event)
            elif isinstance(event, Frame) and not self._take(event):
                break
        self._flush()

    def eof_received(self) -> None:
        """Tell the protocol that the client has closed."""
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
        self._client.connection_lost(exc)

    def _answer(self, request: Request) -> None:
        protocol = self._protocol
        if request.path.partition("?")[0] != self._path:
            answer = protocol.reject(http.HTTPStatus.NOT_FOUND, "there is nothing here\n")
        else:
            answer = protocol.accept(request)
            if (
                protocol.subprotocol is None
                and answer.status_code == http.HTTPStatus.SWITCHING_PROTOCOLS
            ):
                protocol.handshake_exc = InvalidHandshake("no subprotocol")
                answer = protocol.reject(
                    http.HTTPStatus.BAD_REQUEST, "the subprotocol must be mqtt\n"
                )
        protocol.send_response(answer)
        self._open = answer.status_code == http.HTTPStatus.SWITCHING_PROTOCOLS

    def _take(self, frame: Frame) -> bool:
        if frame.opcode in {Opcode.BINARY, Opcode.CONT}:
            if frame.data and not self._client.ended:
                self._client.data_received(bytes(frame.data))
            return True
        if frame.opcode is Opcode.TEXT:
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT is binary")
            return False
        return True

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._transport.close()
        if self._protocol.close_expected():
            self._client.context.loop.call_later(1.0, self._transport.close)


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

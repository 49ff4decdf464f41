from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.publications import Fingerprint, PublishOutcome, PublishRequest
from penstock.gateway.replication.protocol import (
    Ack,
    ChannelError,
    Durable,
    Join,
    Leave,
    Message,
    NextDeadline,
    Ping,
    Pong,
    PublishResponse,
    StateUpdate,
    Submit,
    check_version,
    decode,
    encode,
)

REST = {"qos": 1, "retain": False, "size": 3, "contentType": None, "properties": {"ä": "\ud800"}}


@pytest.mark.parametrize(
    "message",
    [
        Join("0123456789abcdef"),
        Ping(1),
        Pong(1, 0.25, None),
        Pong(2, 1e6, 1e6 + 0.001, [("alert", "pat\ud800ient", "Alert")]),
        StateUpdate(3, [("alert", "p", None)], 7.5),
        StateUpdate(4, [], None, whole=True),
        NextDeadline(12.125),
        NextDeadline(None),
        Ack(4),
        Leave(),
        Submit(5, 4, 17, PublishRequest(None, "c", "ward/ä", b"\x00\xff\n", REST)),
        Submit(
            6,
            4,
            17,
            PublishRequest("u", "c", "t", b"", REST, "here", Fingerprint("00", "ff", dup=True)),
        ),
        PublishResponse(5, PublishOutcome.DENIED, "some rule", event=False),
        Durable([1, 2, 3]),
    ],
)
def test_what_is_said_is_understood(message: Message) -> None:
    understood = decode(encode(message))
    assert type(understood) is type(message)
    assert encode(understood) == encode(message)


@given(st.text(), st.text(), st.binary(), st.none() | st.text())
def test_messages_of_clients_come_as_they_are(
    client: str, topic: str, payload: bytes, user: str | None
) -> None:
    asked = PublishRequest(user, client, topic, payload, REST)
    assert decode(encode(Submit(1, 1, 1, asked))) == Submit(1, 1, 1, asked)


@given(st.binary(max_size=60))
def test_anything_else_is_refused(data: bytes) -> None:
    try:
        decode(data)
    except ChannelError:
        return


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"\x07\x00\x00\x00\x02[]", b"\x01\x00\x00\x00\x02{}"]
)
def test_what_is_wrong_is_an_error_of_the_channel(data: bytes) -> None:
    with pytest.raises(ChannelError):
        decode(data)


def test_other_versions_are_refused() -> None:
    check_version(Join("0123456789abcdef"))
    with pytest.raises(ChannelError, match="another way"):
        check_version(Join("0123456789abcdef", 1))

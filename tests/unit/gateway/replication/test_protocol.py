from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.replication.protocol import MARK, Channel, ChannelError, derive_secret

SECRET = derive_secret(b"k" * 32)
LIMIT = 1 << 16


def pair(other: bytes = SECRET) -> tuple[Channel, Channel]:
    return Channel(SECRET, caller=True, limit=LIMIT), Channel(other, caller=False, limit=LIMIT)


def greet(one: Channel, two: Channel) -> None:
    assert list(one.feed(two.hello)) == []
    assert list(two.feed(one.hello)) == []
    first, second = one.greeting, two.greeting
    assert list(one.feed(second)) == []
    assert list(two.feed(first)) == []
    assert one.ready
    assert two.ready


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 200))
def test_messages_come_as_they_were_sent(messages: list[bytes], size: int) -> None:
    one, two = pair()
    greet(one, two)
    sent = b"".join(map(one.seal, messages))
    came: list[bytes] = []
    for start in range(0, len(sent), size):
        came += two.feed(sent[start : start + size])
    assert came == messages
    assert all(message not in sent for message in messages if len(message) > 8)


def test_a_whole_conversation_may_come_at_once() -> None:
    one, two = pair()
    list(one.feed(two.hello))
    list(two.feed(one.hello))
    assert list(two.feed(one.greeting + one.seal(b"first"))) == [b"first"]


def test_who_has_another_secret_is_refused() -> None:
    one, two = pair(derive_secret(b"x" * 32))
    list(one.feed(two.hello))
    list(two.feed(one.hello))
    with pytest.raises(ChannelError, match="secret"):
        list(one.feed(two.greeting))
    assert not one.ready


def test_who_repeats_what_it_hears_is_refused() -> None:
    one, _ = pair()
    list(one.feed(one.hello))
    with pytest.raises(ChannelError):
        list(one.feed(one.greeting))


@pytest.mark.parametrize(
    "hello", [b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\nxxxxxxxxxxxxxxxxxx", MARK + bytes(32)]
)
def test_what_is_no_greeting_is_refused(hello: bytes) -> None:
    one, _ = pair()
    with pytest.raises(ChannelError):
        list(one.feed(hello))


def test_nothing_can_be_changed_repeated_or_left_out() -> None:
    one, two = pair()
    greet(one, two)
    first, second = one.seal(b"first"), one.seal(b"second")
    assert list(two.feed(first)) == [b"first"]
    with pytest.raises(ChannelError, match="changed"):
        list(two.feed(first))
    one, two = pair()
    greet(one, two)
    one.seal(b"left out")
    with pytest.raises(ChannelError):
        list(two.feed(one.seal(b"second")))
    one, two = pair()
    greet(one, two)
    changed = bytearray(one.seal(b"first"))
    changed[-1] ^= 1
    with pytest.raises(ChannelError):
        list(two.feed(bytes(changed)))
    assert second


def test_long_messages_are_refused_before_they_are_here() -> None:
    one, two = pair()
    greet(one, two)
    with pytest.raises(ChannelError, match="long"):
        list(two.feed((LIMIT + 1).to_bytes(4, "big")))
    stranger, _ = pair()
    list(stranger.feed(Channel(SECRET, caller=False, limit=LIMIT).hello))
    with pytest.raises(ChannelError, match="long"):
        list(stranger.feed((129).to_bytes(4, "big")))

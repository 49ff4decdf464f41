"""What is kept of capabilities between messages."""

from __future__ import annotations

import gc
import weakref

from penstock.policy.access.requests import Message
from penstock.policy.capabilities import CapabilityBook, Forcing, Joined


class Content(dict[str, int]):
    """A payload that tells when it is gone."""


def test_nothing_of_a_message_is_kept_behind_it() -> None:
    """Values that are forced are one message's own: thousands of them filled the memory."""
    book = CapabilityBook()
    narrowing = book.narrowing("capability c", frozenset({"a"}))
    content = Content(a=1, b=2)
    gone = weakref.ref(content)
    joined = book.join(Forcing("capability c", content), narrowing)
    made = joined.apply(Message("t", b'{"a": 5}'), lambda: ({}, {}, {}, {}))
    assert not isinstance(made, str)
    assert made.payload == b'{"a":1}'
    del content, joined, made
    gc.collect()
    assert gone() is None
    # What is the same for many messages is one.
    other = book.narrowing("capability d", frozenset({"b"}))
    assert isinstance(book.join(narrowing, other), Joined)
    assert book.join(narrowing, other) is book.join(narrowing, other)

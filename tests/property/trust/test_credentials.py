"""Credentials of messages: no character of one can be changed, and nothing is delivered twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import ShownCapability
from penstock.model.grants import parse_grant
from penstock.trust.capabilities import Link, issue
from penstock.trust.credentials import SEEN_LIMIT, ReplayGuard
from penstock.trust.keys import generate_pem
from tests.support.scale import scaled
from tests.support.trust.domains import DAY, NOW, chain, domain
from tests.support.trust.messages import Crossing, said_in, with_credential

PUBLISHES = "type: sighting; action: publish"
HELD = chain("pito", ("met", "type: *; action: *"), ("user:camera", PUBLISHES))
PLATE = b'{"numberplate":"AB12 CDE"}'


def own_key() -> Crossing:
    """Return a gateway where a camera has shown a capability that names its own key."""
    made = Crossing("met")
    key = generate_pem()
    names = {"user": "camera", "client": "c7"}
    shown = ShownCapability(key, "", domain=domain("met").key, clock=lambda: made.now / 1000)
    holder = f"key:{shown.key}"
    grants = (parse_grant(PUBLISHES),)
    held = issue(domain("pito"), Link(domain("pito").key, holder, grants, NOW - 1, NOW + DAY, 0))
    shown._capability = held.text
    proof = dict(shown.pairs(**names))["penstock-proof"]
    made.credentials.present("camera", "c7", f"{held.text}~{proof}")
    made.book.presented = made.credentials.presented
    return made


@pytest.mark.parametrize("met", [lambda: Crossing("met", HELD), own_key], ids=["user", "key"])
def test_a_credential_with_any_bit_flipped_is_refused(met: Callable[[], Crossing]) -> None:
    """The chain is thousands of bits long: all of its letters are tried, some bits of each."""
    charge = Crossing("charge")
    crossed = met().publish(PLATE)
    text = said_in(crossed).encode()
    for at in range(len(text)):
        for bit in range(0, 7, 1 if at < 400 or scaled(1) > 1 else 3):
            changed = bytearray(text)
            changed[at] ^= 1 << bit
            forged = with_credential(crossed, changed.decode("latin-1"))
            assert charge.refuses(forged), (at, bit)
    assert not charge.refuses(crossed)


def test_a_signed_message_with_any_bit_of_topic_payload_or_stamp_flipped_is_refused() -> None:
    met, charge = Crossing("met", HELD), Crossing("charge")
    crossed = met.publish(PLATE)
    for bit in range(8 * len(crossed.payload)):
        changed = bytearray(crossed.payload)
        changed[bit // 8] ^= 1 << bit % 8
        assert charge.refuses(replace(crossed, payload=bytes(changed)))
    pairs = crossed.properties.reserved
    for at in range(len(pairs)):
        for changed_pairs in (
            pairs[:at] + pairs[at + 1 :],
            (*pairs[:at], (pairs[at][0], f"{pairs[at][1]}x"), *pairs[at + 1 :]),
        ):
            listed = replace(crossed.properties, reserved=changed_pairs)
            assert charge.refuses(replace(crossed, properties=listed))
    for topic in ("cameras/8/sighting", "cameras//sighting"):
        assert charge.refuses(replace(crossed, topic=topic))
    assert not charge.refuses(crossed)


@given(
    st.lists(
        st.tuples(st.sampled_from(["come", "back", "fresh"]), st.integers(0, 30), st.booleans()),
        max_size=60,
    )
)
def test_a_guard_delivers_what_a_plain_model_says(steps: list[tuple[str, int, bool]]) -> None:
    """The model remembers all: a nonce once per connection, later ones only if sent again."""
    guard = ReplayGuard()
    guard.begin(0, 0)
    delivered: dict[int, int] = {}
    connection = floor = 0
    for step, at, again in steps:
        if step != "come":
            connection += 1
            floor = floor if step == "back" else max(floor, at)
            guard.begin(at, at if step == "fresh" else 0)
            continue
        allowed = at >= floor if at not in delivered else again and delivered[at] != connection
        assert (guard.object_to((at,), at, 30, again=again) is None) == allowed
        if allowed:
            guard.note((at,), at)
            delivered[at] = connection


def test_a_guard_that_forgets_refuses_what_it_cannot_tell() -> None:
    guard = ReplayGuard()
    guard.begin(0, 0)
    grown = sum(guard.note((at,), at) for at in range(3 * SEEN_LIMIT))
    assert grown == SEEN_LIMIT
    for at in range(0, 3 * SEEN_LIMIT, 997):
        assert guard.object_to((at,), at, 3 * SEEN_LIMIT) is not None
    assert guard.object_to((-1,), 3 * SEEN_LIMIT, 3 * SEEN_LIMIT) is None
    assert guard.compact() == SEEN_LIMIT
    for at in range(0, 3 * SEEN_LIMIT, 997):
        assert guard.object_to((at,), at, 3 * SEEN_LIMIT) is not None

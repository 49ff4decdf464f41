"""Sealed messages: what is changed is refused, and keys open what a plain model says they open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.trust.key_ring import GroupKey, KeyRing
from penstock.trust.sealed_messages import (
    Kind,
    Opener,
    SealedMessageError,
    Sealer,
    read_sealed,
)

EVENT, *ATTRIBUTES = (UUID(int=number) for number in range(1, 6))
TOPIC = "police/sightings"
values = st.binary(max_size=40)
attributes = st.dictionaries(st.sampled_from(ATTRIBUTES), values, min_size=1)


def _ring(resources: Iterable[UUID] = (EVENT, *ATTRIBUTES), *, seed: int = 7) -> KeyRing:
    ring = KeyRing(grace=100, delay=100, skew=10)
    for resource in resources:
        ring.add(GroupKey(resource, 1, 0, bytes([resource.int, seed]) * 16))
    return ring


@given(values, attributes, st.sets(st.sampled_from(ATTRIBUTES)))
def test_who_has_keys_opens_what_they_are_for(
    payload: bytes, parts: dict[UUID, bytes], held: set[UUID]
) -> None:
    sealer = Sealer(_ring(), os.urandom)
    whole = sealer.seal_whole(EVENT, TOPIC, payload, now=50)
    single = sealer.seal_attributes(EVENT, TOPIC, parts, now=50)
    reader = Opener(_ring(held))
    assert reader.open_whole(read_sealed(whole), TOPIC, now=50) is None
    assert Opener(_ring()).open_whole(read_sealed(whole), TOPIC, now=50) == payload
    opened = reader.open_attributes(read_sealed(single), TOPIC, now=50)
    assert opened == {it: value for it, value in parts.items() if it in held}


@given(attributes, st.sampled_from(Kind), st.data())
def test_no_bit_can_be_changed(parts: dict[UUID, bytes], kind: Kind, data: st.DataObject) -> None:
    sealer = Sealer(_ring(), os.urandom)
    if kind is Kind.WHOLE:
        sealed = sealer.seal_whole(EVENT, TOPIC, b"plain", now=50)
    else:
        sealed = sealer.seal_attributes(EVENT, TOPIC, parts, now=50)
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    changed = bytearray(sealed)
    changed[bit // 8] ^= 1 << bit % 8
    opener = Opener(_ring())
    try:
        read = read_sealed(bytes(changed))
        if read.kind is Kind.WHOLE:
            # Where the mark was changed no key is found, and nothing opens.
            assert opener.open_whole(read, TOPIC, now=50) is None
        else:
            assert not opener.open_attributes(read, TOPIC, now=50)
    except SealedMessageError:
        pass


@given(attributes, attributes)
def test_parts_cannot_be_moved_to_another_message_or_topic(
    first: dict[UUID, bytes], second: dict[UUID, bytes]
) -> None:
    sealer, opener = Sealer(_ring(), os.urandom), Opener(_ring())
    sealed = sealer.seal_attributes(EVENT, TOPIC, first, now=50)
    other = sealer.seal_attributes(EVENT, TOPIC, second, now=50)
    with pytest.raises(SealedMessageError, match="sealed for another topic"):
        opener.open_attributes(read_sealed(sealed), "police/other", now=50)
    with pytest.raises(SealedMessageError, match="other properties"):
        opener.open_attributes(read_sealed(sealed), TOPIC, now=50, bound=b"purposes")
    read, head = read_sealed(sealed), read_sealed(other).head
    body = sealed[len(read.head) :]
    with contextlib.suppress(SealedMessageError):
        assert not opener.open_attributes(read_sealed(head + body), TOPIC, now=50)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=5, unique=True),
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(0, 4),
)
def test_a_key_opens_what_was_published_in_its_time_and_the_grace(
    starts: list[int], published: int, now: int, generation: int
) -> None:
    grace, delay, skew = 20, 40, 5
    starts, ring = sorted(starts), KeyRing(grace=grace, delay=delay, skew=skew)
    keys = [GroupKey(EVENT, number, start, os.urandom(32)) for number, start in enumerate(starts)]
    for key in keys:
        ring.add(key)
    key = keys[generation % len(keys)]
    ends = [*starts[1:], 10**9]
    is_in_time = key.start <= published <= ends[key.generation] + grace
    expected = is_in_time and published <= now + skew and now <= ends[key.generation] + delay
    assert (ring.find(key.mark, published, now) is key) == expected
    ring.destroy_old(now)
    left = {it.generation for it in ring}
    assert left == {it.generation for it in keys if now <= ends[it.generation] + delay}
    assert ring.newest(EVENT, 10**9) is keys[-1]


@given(attributes)
def test_no_nonce_comes_twice_under_a_key(parts: dict[UUID, bytes]) -> None:
    # Two gateways that share keys, and one of them started anew.
    seen = set()
    for sealer in (Sealer(_ring(), os.urandom) for _ in range(3)):
        for _ in range(3):
            read = read_sealed(sealer.seal_attributes(EVENT, TOPIC, parts, now=50))
            seen.add((read.sealer, read.number))
    assert len(seen) == 9


@given(st.text(alphabet="abcdefgh", min_size=8, max_size=20), st.sampled_from(ATTRIBUTES))
def test_nothing_plain_is_in_the_bytes(secret: str, attribute: UUID) -> None:
    sealed = Sealer(_ring(), os.urandom).seal_attributes(
        EVENT, TOPIC, {attribute: secret.encode()}, now=50
    )
    assert secret.encode() not in sealed
    assert attribute.bytes not in sealed

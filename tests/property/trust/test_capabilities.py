"""Capabilities: chains against a naive model, and every bit of what is signed flipped once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.trust import capabilities
from penstock.trust.capabilities import Capability, Revocations, read, revoke
from penstock.trust.keys import TrustError
from tests.property.model.test_grants import allowed, grants
from tests.support.trust.domains import DAY, NOW, chain, domain, link

SENTENCES = (
    "type: a*; action: *",
    "type: a*; action: publish | subscribe",
    "type: ab; action: publish; attributes: plate & speed = 1",
    "type: ab*; action: subscribe; attributes: plate",
)


def flips(raw: bytes) -> Iterator[bytes]:
    for at in range(len(raw) * 8):
        changed = bytearray(raw)
        changed[at // 8] ^= 1 << at % 8
        yield bytes(changed)


def refused(take: Callable[[], Any]) -> bool:
    try:
        take()
    except TrustError:
        return True
    return False


@pytest.mark.parametrize(
    "made",
    [
        chain("owner", ("met", SENTENCES[0])),
        chain("owner", ("met", SENTENCES[0]), ("user:smith", SENTENCES[2]), refresh=60),
        chain("owner", ("met", SENTENCES[0]), ("ccs", SENTENCES[1]), ("user:x", SENTENCES[3])),
    ],
    ids=["one link", "two links", "three links"],
)
def test_a_capability_with_any_bit_flipped_is_refused(made: Capability) -> None:
    for changed in flips(made.text.encode()):
        assert refused(partial(read, changed.decode("latin-1")))


def test_the_bytes_inside_with_any_bit_flipped_are_refused() -> None:
    made = chain("owner", ("met", SENTENCES[0]), ("user:smith", SENTENCES[2]))
    owner, raw = capabilities._unpack(made.text)
    for changed in flips(raw):
        assert refused(partial(read, capabilities._pack_bytes(owner, changed)))


def test_a_revocation_list_with_any_bit_flipped_is_refused() -> None:
    held = chain("owner", ("met", SENTENCES[0]))
    made = revoke(domain("owner"), [held.links[0].id], NOW)
    raw = json.dumps(capabilities.write_revocations(made)).encode()
    for changed in flips(raw):
        try:
            document = json.loads(changed)
        except ValueError:
            continue
        assert refused(partial(capabilities.read_revocations, document))


@given(st.lists(st.lists(grants(), min_size=1, max_size=2), min_size=1, max_size=4))
def test_nobody_ever_grants_more_than_was_held(steps: list[list[Any]]) -> None:
    holders = ["met", "ccs", "pito", "user:smith"]
    made: Capability | None = None
    signer = "owner"
    for wanted, holder in zip(steps, holders, strict=False):
        told = link(signer, holder, *map(str, wanted))
        try:
            made = (
                capabilities.issue(domain(signer), told)
                if made is None
                else capabilities.delegate(made, domain(signer), told)
            )
        except TrustError:
            break
        signer = holder
    assert made is not None
    again = read(made.text)
    assert again == made
    for before, after in pairwise(again.links):
        held = set().union(*map(allowed, before.grants))
        assert all(allowed(it) <= held for it in after.grants)


times = st.integers(NOW - 3 * DAY, NOW + 3 * DAY)


@given(
    st.lists(st.tuples(times, times).filter(lambda it: it[0] < it[1]), min_size=1, max_size=3),
    st.sets(st.integers(0, 2)),
    st.sampled_from((0, 60, DAY)),
    st.none() | times,
)
def test_a_chain_holds_while_all_of_its_links_do(
    windows: list[tuple[int, int]], revoked: set[int], refresh: int, issued: int | None
) -> None:
    names = ["owner", "met", "ccs", "user:smith"]
    made: Capability | None = None
    for at, (start, until) in enumerate(windows):
        told = link(
            names[at], names[at + 1], SENTENCES[1], start=start, until=until, refresh=refresh
        )
        made = (
            capabilities.issue(domain(names[at]), told)
            if made is None
            else capabilities.delegate(made, domain(names[at]), told)
        )
    assert made is not None
    ids = [it.id for at, it in enumerate(made.links) if at in revoked]
    known = Revocations()
    if issued is not None:
        # The owner revokes; all others only refresh.
        for name in names[: len(windows)]:
            known.take(revoke(domain(name), ids if name == "owner" else (), issued))
    in_time = all(start <= NOW < until for start, until in windows)
    is_revoked = issued is not None and bool(ids)
    fresh = not refresh or (issued is not None and issued + refresh > NOW)
    expected = in_time and not is_revoked and fresh
    assert (made.object_to(NOW, known) is None) is expected
    if expected:
        end = made.holds_until(known)
        assert made.object_to(end - 1, known) is None
        assert made.object_to(end, known) is not None


def test_only_the_signer_of_a_link_and_those_before_it_revoke_it() -> None:
    made = chain("owner", ("met", SENTENCES[0]), ("ccs", SENTENCES[1]), ("user:x", SENTENCES[3]))
    signers = ["owner", "met", "ccs"]
    for at, told in enumerate(made.links):
        for who, name in enumerate([*signers, "stranger"]):
            known = Revocations([revoke(domain(name), [told.id], NOW)])
            assert (made.object_to(NOW, known) is not None) is (who <= at)


def test_an_older_list_takes_nothing_back() -> None:
    made = chain("owner", ("met", SENTENCES[0]))
    old = revoke(domain("owner"), (), NOW - 60)
    new = revoke(domain("owner"), [made.links[0].id], NOW)
    for lists in ([old, new], [new, old]):
        assert made.object_to(NOW, Revocations(lists)) is not None

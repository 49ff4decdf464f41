"""Members of a network: walks of announcements that are sent, lost, repeated and forged.

The model knows who really announced what, and when: nobody counts as a member whose gateway did not
itself hear a recent nonce, and who was not allowed to connect at that time.
"""

from __future__ import annotations

import random

import pytest

from penstock.trust.capabilities import Revocations, revoke
from penstock.trust.keys import TrustError
from penstock.trust.membership import Members, read_announcement
from tests.property.trust.test_capabilities import flips
from tests.support.scale import scaled
from tests.support.trust.domains import NOW, chain, domain

SKEW, PATIENCE = 1_000, 20_000
CONNECT = "network: City; action: connect"
CAPABILITIES = {
    "pito": "",
    "met": chain("pito", ("met", CONNECT)).text,
    "ccs": chain("pito", ("ccs", CONNECT)).text,
    "eve": chain("eve", ("eve", CONNECT)).text,  # her own say-so
}
GATEWAYS = {name: f"{at:016x}" for at, name in enumerate(CAPABILITIES)}
NAMES = {name: f"{domain(name).key}/{GATEWAYS[name]}" for name in CAPABILITIES}


def open_members(name: str) -> Members:
    return Members("City", domain("pito").key, NAMES[name], skew=SKEW, patience=PATIENCE)


def say(
    members: Members, name: str, now: int, nonce: int, capability: str | None = None,
    known: Revocations | None = None,
) -> bytes:  # fmt: skip
    text = CAPABILITIES[name] if capability is None else capability
    return members.announce(
        domain(name), GATEWAYS[name], text, now, f"{nonce:032x}", known or Revocations()
    )


def test_both_check_before_either_is_a_member_to_the_other() -> None:
    known, now = Revocations(), NOW * 1000
    met, ccs = open_members("met"), open_members("ccs")
    ccs.hear(say(met, "met", now, 1), now, known)
    assert ccs.current(now, known) == frozenset()  # it may be a copy of an old announcement
    met.hear(say(ccs, "ccs", now, 2), now, known)
    assert met.current(now, known) == {NAMES["ccs"]}  # it named our nonce
    ccs.hear(say(met, "met", now + 1, 3), now + 1, known)
    assert ccs.current(now + 1, known) == {NAMES["met"]}
    assert ccs.current(now + PATIENCE + 1, known) == frozenset()


@pytest.mark.parametrize(
    "capability",
    [
        CAPABILITIES["ccs"],
        CAPABILITIES["eve"],
        chain("pito", ("met", "network: Other; action: connect")).text,
        chain("pito", ("met", "network: City; action: install")).text,
        chain("pito", ("met", CONNECT), until=NOW).text,
        "",
    ],
    ids=["somebody else's", "of her own", "another network", "another action", "ended", "none"],
)
def test_nobody_joins_without_the_coordinators_say(capability: str) -> None:
    ccs, now = open_members("ccs"), NOW * 1000
    payload = say(open_members("met"), "met", now, 1, capability)
    with pytest.raises(TrustError):
        ccs.hear(payload, now, Revocations())


def test_an_announcement_with_any_bit_flipped_is_refused() -> None:
    now = NOW * 1000
    ccs, met = open_members("ccs"), open_members("met")
    met.hear(say(ccs, "ccs", now, 1), now, Revocations())
    payload = say(met, "met", now, 2)
    for changed in flips(payload):
        with pytest.raises(TrustError):
            read_announcement(changed)


def test_who_is_expelled_is_out_at_once() -> None:
    known, now = Revocations(), NOW * 1000
    met, ccs = open_members("met"), open_members("ccs")
    ccs.hear(say(met, "met", now, 1), now, known)
    met.hear(say(ccs, "ccs", now, 2), now, known)
    ccs.hear(say(met, "met", now + 1, 3), now + 1, known)
    assert ccs.domains(now + 1, known) == {domain("met").key}
    link = chain("pito", ("met", CONNECT))
    held = next(it for it in ccs._known.values() if it.said.key == domain("met").key).capability
    assert held is not None
    assert held.links[0].grants == link.links[0].grants
    known.take(revoke(domain("pito"), [held.links[0].id], NOW))
    assert ccs.domains(now + 1, known) == frozenset()
    with pytest.raises(TrustError, match="revoked"):
        ccs.hear(say(met, "met", now + 2, 4), now + 2, known)


def test_walks() -> None:
    for seed in range(scaled(20)):
        walk(random.Random(seed))


def walk(chance: random.Random) -> None:
    known = Revocations()
    sides = {name: open_members(name) for name in CAPABILITIES}
    wire: list[tuple[str, bytes, int]] = []
    now, nonce = NOW * 1000, 0
    spoke: dict[str, int] = {}
    for _ in range(120):
        now += chance.choice((1, 100, 3_000))
        name = chance.choice(sorted(sides))
        if chance.random() < 0.5 or not wire:
            nonce += 1
            wire.append((name, say(sides[name], name, now, nonce), now))
            spoke[name] = now
        else:
            # Anything that was ever said, to anybody, again and in any order.
            sender, payload, _ = chance.choice(wire)
            if sender != name:
                try:
                    sides[name].hear(payload, now, known)
                except TrustError:
                    continue
        for listener, members in sides.items():
            for found in members.current(now, known):
                other = next(it for it, full in NAMES.items() if full == found)
                assert other != "eve"
                assert spoke[other] > now - PATIENCE
                # It answered: it heard this one say something, itself.
                assert any(
                    dict(read_announcement(payload).heard).get(NAMES[listener])
                    for sender, payload, _ in wire
                    if sender == other
                )

"""Messages between domains: what is believed, what is refused, and that nothing comes twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from penstock.errors import PenstockError
from penstock.gateway.broker import CREDENTIAL, PUBLISHER
from penstock.mqtt import Publish
from penstock.trust import credentials as pure
from penstock.trust.capabilities import Capability, revoke
from penstock.trust.credentials import Credential, read_credential
from tests.support.trust.domains import DAY, NOW, chain, domain
from tests.support.trust.messages import (
    CLIENT,
    IDS,
    TOPIC,
    Crossing,
    live,
    said_in,
    with_credential,
)

PLATE = b'{"numberplate":"AB12 CDE"}'
PUBLISHES = "type: sighting; action: publish"


def met_camera(text: str = PUBLISHES, user: str = "camera") -> Capability:
    return chain("pito", ("met", "type: *; action: *"), (f"user:{user}", text))


@pytest.fixture
def met() -> Crossing:
    return Crossing("met", met_camera())


@pytest.fixture
def charge() -> Crossing:
    return Crossing("charge")


def test_attributes_cross_by_uuid_and_arrive_by_name(met: Crossing, charge: Crossing) -> None:
    crossed = met.publish(PLATE)
    assert json.loads(crossed.payload) == {IDS["numberplate"]: "AB12 CDE"}
    assert b"numberplate" not in crossed.payload
    assert charge.read(crossed).payload == PLATE
    # What says who vouches for it is of no use to conditions.
    assert CREDENTIAL not in dict(charge.credentials.check(
        met.publish(PLATE), CLIENT, charge.connection).properties.reserved)  # fmt: skip


def test_a_message_comes_once_on_its_topic_as_it_was_published(
    met: Crossing, charge: Crossing
) -> None:
    crossed = met.publish(PLATE)
    other = Publish.of("cameras/8/sighting", crossed.payload, qos=1, packet_id=1)
    assert "sign" in charge.refuses(replace(other, properties=crossed.properties))
    assert "sign" in charge.refuses(replace(crossed, payload=crossed.payload.replace(b"1", b"2")))
    stamped = tuple(
        (name, "smith" if name == PUBLISHER else value)
        for name, value in crossed.properties.reserved
    )
    for_another = replace(crossed.properties, reserved=stamped)
    assert charge.refuses(replace(crossed, properties=for_another))
    assert not charge.refuses(crossed)
    assert "delivered before" in charge.refuses(crossed)
    # Each reader gets it once.
    assert not charge.refuses(crossed, ("other", "other"))
    without = tuple(it for it in crossed.properties.reserved if it[0] != CREDENTIAL)
    bare = replace(crossed, properties=replace(crossed.properties, reserved=without))
    assert "no credential" in charge.refuses(bare)
    twice = (*crossed.properties.reserved, (CREDENTIAL, said_in(crossed)))
    doubled = replace(crossed, properties=replace(crossed.properties, reserved=twice))
    assert "several" in charge.refuses(doubled)


@pytest.mark.parametrize(
    ("capability", "payload", "why"),
    [
        (met_camera("type: sighting; action: subscribe"), PLATE, "does not let them publish"),
        (met_camera("type: other; action: publish"), PLATE, "does not let them publish"),
        (met_camera(user="smith"), PLATE, "held by somebody else"),
        (chain("eve", ("met", "type: *; action: *"), ("user:camera", PUBLISHES)), PLATE, "owner"),
        (
            chain("pito", ("eve", "type: *; action: *"), ("user:camera", PUBLISHES)),
            PLATE,
            "not given by the domain",
        ),
        (met_camera(f"{PUBLISHES}; attributes: location"), PLATE, "may not publish what"),
        (met_camera(f"{PUBLISHES}; attributes: * & numberplate = 'X'"), PLATE, "may not publish"),
        (met_camera(f"{PUBLISHES}; attributes: * & location = 'X'"), PLATE, "may not publish"),
    ],
)
def test_who_reads_checks_what_the_owner_lets_the_publisher_do(
    charge: Crossing, capability: Capability, payload: bytes, why: str
) -> None:
    """A gateway that lets its users publish what they may not is believed by nobody."""
    lying = Crossing("met", met_camera())
    lying.credentials._choose = lambda *_: capability.text  # type: ignore[method-assign]
    assert why in charge.refuses(lying.publish(payload))


def test_who_has_no_capability_cannot_be_vouched_for(met: Crossing, charge: Crossing) -> None:
    for gateway, user in ((met, "smith"), (charge, "camera")):
        with pytest.raises(PenstockError, match="no capability of its publisher"):
            gateway.publish(PLATE, user=user)
    # The owner's own gateways need none.
    assert not charge.refuses(Crossing("pito").publish(PLATE, user="anybody"))


def test_a_capability_that_ended_or_was_revoked_counts_for_nothing(
    met: Crossing, charge: Crossing
) -> None:
    crossed = met.publish(PLATE)
    later = Crossing("charge", now=NOW + DAY)
    later.connection.begun = 0
    later.connection.since = 0
    assert "ended" in later.refuses(crossed)
    assert not charge.refuses(met.publish(PLATE))
    charge.add_list(revoke(domain("pito"), [met_camera().links[0].id], NOW))
    assert not charge.refuses(met.publish(PLATE))  # another one's link
    held = met._held[0]
    charge.add_list(revoke(domain("pito"), [held.links[0].id], NOW + 1))
    assert "revoked" in charge.refuses(met.publish(PLATE))


def test_nothing_from_before_a_client_was_there_and_nothing_from_the_future(
    met: Crossing, charge: Crossing
) -> None:
    old = met.publish(PLATE)
    charge.now += 61_000
    fresh = charge.arrive()
    assert "before the client was there" in charge.refuses(old, CLIENT, fresh)
    met.now = charge.now + 61_000
    assert "future" in charge.refuses(met.publish(PLATE), CLIENT, fresh)
    met.now = charge.now + 59_000
    assert not charge.refuses(met.publish(PLATE), CLIENT, fresh)
    met.now = charge.now
    slow = met.publish(PLATE)
    charge.now += pure.FRESH + 1
    assert "too long on its way" in charge.refuses(slow, CLIENT, fresh)


def test_what_waited_for_a_client_comes_once_and_again_if_it_was_not_acknowledged(
    met: Crossing, charge: Crossing
) -> None:
    seen, queued = met.publish(PLATE), met.publish(PLATE)
    assert not charge.refuses(seen)
    charge.now += 3_600_000
    back = charge.arrive(since=0)
    assert "delivered before" in charge.refuses(seen, CLIENT, back)
    assert not charge.refuses(replace(seen, first=seen.first | 8), CLIENT, back)
    assert not charge.refuses(queued, CLIENT, back)
    assert "delivered before" in charge.refuses(queued, CLIENT, back)
    assert "delivered before" in charge.refuses(
        replace(queued, first=queued.first | 8), CLIENT, back
    )


@pytest.mark.parametrize("later", [0, 1])
def test_what_the_broker_keeps_never_gives_way_to_something_older(
    met: Crossing, charge: Crossing, later: int
) -> None:
    first = met.publish(PLATE, retain=True)
    met.now += later
    second = met.publish(PLATE, retain=True)
    charge.now += later
    assert not charge.refuses(first)
    assert not charge.refuses(live(second))
    for other in (("late", "late"), CLIENT):
        assert "newer" in charge.refuses(first, other)
        assert not charge.refuses(second, other)
    kept = met.publish(PLATE)
    assert "not published to be kept" in charge.refuses(replace(kept, first=kept.first | 1))


def test_no_nonce_comes_twice_whatever_restarts(met: Crossing) -> None:
    seen = set()
    for _ in range(3):
        for _ in range(5):
            seen.add(read_credential(said_in(met.publish(PLATE))).nonce)
        met.restart()
    assert len(seen) == 15


def test_how_many_are_verified_is_configured(
    met: Crossing, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    verify = pure.is_signed_by

    def look(said: Credential, topic: str, payload: bytes, bound: bytes) -> bool:
        looked.append(said.proof)
        return verify(said, topic, payload, bound)

    monkeypatch.setattr("penstock.gateway.authorization.credentials.is_signed_by", look)
    for rate, least, most in ((1.0, 200, 200), (0.0, 1, 1), (0.5, 60, 140)):
        looked.clear()
        reader = Crossing("charge", verify_rate=rate)
        for _ in range(200):
            assert not reader.refuses(met.publish(PLATE))
        assert least <= len(looked) <= most
    # Readers of one message share what was found out.
    looked.clear()
    reader, crossed = Crossing("charge"), met.publish(PLATE)
    for at in range(20):
        assert not reader.refuses(crossed, (f"r{at}", f"r{at}"))
    assert len(looked) == 1


def test_where_one_was_wrong_all_of_the_next_are_verified_and_the_right_ones_pass(
    met: Crossing,
) -> None:
    reader = Crossing("charge", verify_rate=0.0)
    crossed = met.publish(PLATE)
    zeros = str(read_credential(said_in(crossed))._replace(proof="0" * 128))
    assert "sign" in reader.refuses(with_credential(crossed, zeros))
    for _ in range(5):
        assert not reader.refuses(met.publish(PLATE))
        forged = met.publish(PLATE)
        bad = str(read_credential(said_in(forged))._replace(number=9_999))
        assert "sign" in reader.refuses(with_credential(forged, bad))


def test_the_stamp_of_another_domain_names_nobody_here() -> None:
    home = Crossing("pito", network="City", signed=False)
    other = Crossing("met", network="City", signed=False)
    same = Crossing("pito", network="City", signed=False)
    own = same.publish(b"hello", topic="plain", user="anna")
    assert dict(home.read(own).properties.reserved)[PUBLISHER] == "anna"
    foreign = other.publish(b"hello", topic="plain", user="anna")
    assert PUBLISHER not in dict(home.read(foreign).properties.reserved)
    bare = tuple(it for it in own.properties.reserved if it[0] != CREDENTIAL)
    unmarked = replace(own, properties=replace(own.properties, reserved=bare))
    assert PUBLISHER not in dict(home.read(unmarked).properties.reserved)
    # What claims to be ours and is not is not delivered.
    assert "not" in home.refuses(replace(own, payload=b"other"), ("b", "b"))
    moved = Publish.of("other", own.payload, qos=1, packet_id=1)
    assert home.refuses(replace(moved, properties=own.properties), ("b", "b"))
    assert "delivered before" in home.refuses(own)
    key = domain("pito").key
    claimed = str(read_credential(said_in(foreign))._replace(key=key))
    assert "marked as ours" in home.refuses(with_credential(foreign, claimed))


def test_without_trust_in_use_nothing_is_added() -> None:
    plain = Crossing("met", signed=False)
    assert not plain.credentials.in_use
    assert plain.credentials.prepare(TOPIC, PLATE, b"") == (PLATE, b"")

"""What a gateway makes of requests and keys that come over the broker, from anybody."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from penstock.gateway.publishing.key_exchange import KeyExchange, Outgoing
from penstock.model.document import Document
from penstock.store.database import Database
from penstock.store.definitions.documents import Snapshot
from penstock.store.key_groups import KeyOffice
from penstock.store.keys import GroupKeys, KeyWrapping
from penstock.trust.event_types import sign_type
from tests.support.trust.domains import NOW, attribute, chain, domain

MS = 1000 * NOW
DAY = 86_400_000
SKEW, PAUSE = 60_000, 30_000
STREAM = Document("stream", "s", {"event_type": "sighting/1", "sealed": "whole", "from": ["c/+"]})


class Side:
    """A domain with a store and a gateway."""

    def __init__(self, folder: Path, name: str, *documents: Document) -> None:
        self.own = domain(name)
        self.database = Database.open(f"sqlite:///{folder / name}.db")
        self.keys = GroupKeys(self.database, KeyWrapping(self.own.seed(), "group keys"))
        self.snapshot = Snapshot(1, "m", MappingProxyType({it.key: it for it in documents}))
        self.exchange = self.begin()

    def begin(self) -> KeyExchange:
        """Return another gateway of the domain."""
        office = KeyOffice(self.keys, self.own, refresh_every=30 * DAY, lead=0)
        return KeyExchange(lambda: office, skew=SKEW, pause=PAUSE)

    def work(self, now: int = MS, exchange: KeyExchange | None = None) -> list[Outgoing]:
        return (exchange or self.exchange).prepare(self.snapshot, now)()

    @property
    def held(self) -> list[int]:
        stored = self.keys.keys()
        return [it.generation for it in stored]


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Callable[[str], Side]]:
    made = sign_type(
        domain("pito"), "sighting/1", "sighting", str(uuid.uuid4()), [attribute("plate")]
    )
    found: list[Side] = []

    def open_side(name: str) -> Side:
        held = chain("pito", (name, "type: sighting; action: publish | subscribe"))
        own = (STREAM, Document("capability", "c", {"token": held.text}))
        found.append(Side(tmp_path, name, made.document(), *(own if name != "pito" else ())))
        return found[-1]

    yield open_side
    for it in found:
        it.database.close()


def ask(member: Side, now: int = MS) -> bytes:
    (asked,) = [it for it in member.work(now) if not it.retain]
    return asked.payload


def give(owner: Side, member: Side, now: int = MS) -> list[Outgoing]:
    offered = owner.work(now)
    for it in offered:
        member.exchange.hear_offer(it.owner, it.place, it.payload)
    member.work(now)
    return offered


def test_who_has_a_capability_gets_keys_and_asks_no_more(sides: Callable[[str], Side]) -> None:
    pito, met = sides("pito"), sides("met")
    pito.exchange.hear_request(met.own.key, ask(met))
    assert len(give(pito, met)) == 2
    assert met.held == [1, 1]
    assert met.work(MS + PAUSE) == []


def test_a_request_counts_for_who_signed_it_and_at_its_time(sides: Callable[[str], Side]) -> None:
    pito, met, eve = sides("pito"), sides("met"), sides("eve")
    asked = ask(met)
    for who, said, now in (
        (eve.own.key, asked, MS),
        (met.own.key, asked, MS + SKEW + 1),
        (met.own.key, asked, MS - SKEW - 1),
        (met.own.key, asked.replace(b'"asked"', b'"bsked"'), MS),
        (met.own.key, asked[:-20], MS),
    ):
        pito.exchange.hear_request(who, said)
        assert pito.work(now) == []
    pito.exchange.hear_request(met.own.key, asked)
    assert pito.work(MS + SKEW)


def test_asking_twice_changes_nothing_at_any_gateway(sides: Callable[[str], Side]) -> None:
    pito, met = sides("pito"), sides("met")
    asked, second = ask(met), pito.begin()
    pito.exchange.hear_request(met.own.key, asked)
    first = {it.place: it.payload for it in pito.work()}
    second.hear_request(met.own.key, asked)
    # The other gateway of the domain sends the same, and no other keys.
    assert {it.place: it.payload for it in pito.work(exchange=second)} == first
    pito.exchange.hear_request(met.own.key, asked)
    assert pito.work() == []


def test_what_somebody_writes_over_is_sent_again(sides: Callable[[str], Side]) -> None:
    pito, met = sides("pito"), sides("met")
    pito.exchange.hear_request(met.own.key, ask(met))
    sent = pito.work()
    for it in sent:
        met.exchange.hear_offer(
            it.owner, it.place, it.payload.replace(b'"generation": 1', b'"generation": 2')
        )
        pito.exchange.hear_offer(it.owner, it.place, b"{}")
    met.work()
    assert met.held == []
    again = {it.place: it.payload for it in pito.work()}
    assert again == {it.place: it.payload for it in sent}


def test_keys_are_taken_from_their_owner_alone(sides: Callable[[str], Side]) -> None:
    pito, met, eve = sides("pito"), sides("met"), sides("eve")
    pito.exchange.hear_request(met.own.key, ask(met))
    for it in pito.work():
        met.exchange.hear_offer(eve.own.key, it.place, it.payload)
    met.work()
    assert met.held == []

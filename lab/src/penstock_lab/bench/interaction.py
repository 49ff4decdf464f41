"""What a delivery with three masks costs beside one without, for a JSON message of ten fields.

Method:
- Decision and encoding of deliveries to one reader, in process: as the gateway's loop does it, from
  the packet as read to the bytes to be written. Everything else is the same with and without.
- `alone`: each message goes to one reader: it is parsed, masked and encoded for it.
  `shared`: each message goes to 100 readers: that is done once, and each decided on by itself.
- `without`: rules of interaction control are in use, and none is about this topic.
- `none`: there are no such rules at all.
- The figure is the median CPU time of rounds; `added` is against `without`.
"""

from __future__ import annotations

import json
import statistics
import time
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

from penstock.gateway.authorization.delivery_check import DecisionCache, DeliveryCheck
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.event_loop import Clock
from penstock.gateway.session import Session
from penstock.model.document import Document
from penstock.mqtt import Properties, Publish
from penstock.policy.access.emergencies import NO_SITUATIONS
from penstock.policy.purposes.settings import PurposeSettings
from penstock.store.definitions.documents import Snapshot

GOAL_US = 15.0
READERS = 100
_FIELDS = [{"name": f"f{at}", "type": "int"} for at in range(5)]
_FIELDS += [{"name": f"t{at}", "type": "string"} for at in range(5)]
_DEFINITIONS = [
    Document("stream", "s", {"fields": _FIELDS}),
    Document(
        "transformation",
        "three-masks",
        {
            "filter": "masked/#",
            "stream": "s",
            "anonymizers": [
                {"anonymizer": "bucketizing", "keys": ["f0"], "bucket_size": 10},
                {"anonymizer": "suppression", "keys": ["t0"]},
                {"anonymizer": "blurring", "keys": ["t1"]},
            ],
        },
    ),
]


def measure(*, rounds: int) -> dict[str, Any]:
    """Return the microseconds of a delivery, and what masks add to it."""
    found = {
        "none": _measure([], "plain/a", 1, rounds),
        "without": _measure(_DEFINITIONS, "plain/a", 1, rounds),
        "alone": _measure(_DEFINITIONS, "masked/a", 1, rounds),
        "shared": _measure(_DEFINITIONS, "masked/a", READERS, rounds),
    }
    return {
        name: {"us": us, "added_us": us - found["without"], "goal_us": GOAL_US}
        for name, us in found.items()
    }


def _measure(documents: list[Document], topic: str, readers: int, rounds: int) -> float:
    rules = Rules(PurposeSettings())
    held = {it.key: it for it in documents}
    rules.take(Snapshot(1, "bench", MappingProxyType(held)), list(held))
    # Nothing is detected here: there are no situations, and none are waited for.
    detection = SimpleNamespace(
        catch_up=lambda _: None,
        board=NO_SITUATIONS,
        follower=SimpleNamespace(awaiting_leader=False),
    )
    check = DeliveryCheck(rules, cast("Any", detection), Clock(), Denials(None, None))
    sessions = []
    for at in range(readers):
        session = Session(f"reader-{at}", "ann", 0)
        admission = rules.engine.subscribe(session.client_id, "#", None, 1, owner="ann")
        if admission.subscription is None:
            raise RuntimeError("the benchmark may not subscribe")
        session.hold(admission.subscription)
        sessions.append((session, DecisionCache(check)))
    count = max(1, 1_000 // readers)
    taken = []
    for round_ in range(rounds + 1):
        packets = [_packets(topic, number, round_, sessions) for number in range(count)]
        began = time.process_time()
        for copies in packets:
            for packet, (session, cache) in zip(copies, sessions, strict=True):
                _deliver(packet, session, cache)
        if round_:  # the first round finds the way
            taken.append((time.process_time() - began) / (count * readers) * 1e6)
    return statistics.median(taken)


def _deliver(packet: Publish, session: Session, cache: DecisionCache) -> bytes:
    key = (packet.topic, packet.properties.raw)
    listed = cache.passing.get(key)
    if listed is None:
        decision = cache.decide(session, packet, key)
        if decision.properties is None:
            raise RuntimeError("the benchmark's message was denied")
        listed = decision.properties
        if decision.sent is not None:
            packet = decision.sent
    return packet.to_v5(listed)


def _packets(
    topic: str, number: int, round_: int, sessions: list[tuple[Session, DecisionCache]]
) -> list[Publish]:
    body = {f"f{at}": number + at for at in range(5)}
    said = {**body, **{f"t{at}": f"a text of {round_}" for at in range(5)}}
    payload = json.dumps(said).encode()
    return [
        Publish.of(
            topic,
            bytes(bytearray(payload)),  # each copy comes from the network by itself
            properties=Properties(subscription_identifiers=tuple(session.by_number)),
        )
        for session, _ in sessions
    ]

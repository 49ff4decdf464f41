"""What trust between domains costs: capabilities and event types verified, and looked at.

Method:
- CPU time of this process, the smallest of several rounds of many calls: other work on the machine
  slows rounds, and never makes one faster.
- `verify`: the text of a capability of one to four links is read: signatures, shape, narrowing.
- `holds`: times and revocations of one that was read, as when definitions change.
- `type`: an event type is verified, signed by its issuer and by a manager.
- `decide`: the authorizer on a delivery of another domain's type, as for each message.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from penstock.definitions import DefinitionSet
from penstock.definitions.authorizer import make_authorizer
from penstock.model.document import Document
from penstock.model.grants import parse_grant
from penstock.model.kinds.trust import TypeAttribute, TypeCertificate
from penstock.policy.access.requests import AccessRequest, Message
from penstock.trust import capabilities
from penstock.trust.capabilities import Capability, Link, Revocations
from penstock.trust.event_types import TypeRegistry, sign_type
from penstock.trust.keys import DomainKey
from penstock_lab.bench import sealing
from penstock_lab.bench.tables import Table, show

AIM_US: Final = 1000.0
"""A capability is verified within a millisecond."""
ROUNDS: Final = 7
CALLS: Final = 200
LINKS: Final = (1, 2, 3, 4)
IN_TABLES: Final = ("verify", "others")
WIDE: Final = "type: sighting*; action: publish | subscribe | addAttribute"
NARROW: Final = "type: sighting; action: subscribe; attributes: numberplate & gate = 500"


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure all of it."""
    rounds = 2 if quick else ROUNDS
    calls = 20 if quick else CALLS
    chains = {number: _make_chain(number) for number in LINKS}

    def measure(work: Callable[[], object]) -> float:
        return _measure(work, rounds, calls)

    longest = chains[LINKS[-1]]
    revocations, now = Revocations(), time.time()
    return {
        "load_before": round(os.getloadavg()[0], 2),
        "aim_us": AIM_US,
        "verify": {
            str(number): {
                "bytes": len(it.text),
                "us": measure(lambda text=it.text: capabilities.read(text)),  # type: ignore[misc]
            }
            for number, it in chains.items()
        },
        "others": {
            "holds, 4 links": measure(lambda: longest.object_to(now, revocations)),
            **{name: measure(work) for name, work in _verify_types().items()},
            **{name: measure(work) for name, work in _decide().items()},
        },
        "sealing": sealing.measure(quick=quick),
        "load_after": round(os.getloadavg()[0], 2),
    }


def _measure(work: Callable[[], object], rounds: int, calls: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(calls):
            work()
        best = min(best, time.process_time() - started)
    return round(best / calls * 1e6, 1)


def _link(signer: DomainKey, holder: str, text: str) -> Link:
    now = int(time.time())
    return Link(signer.key, holder, (parse_grant(text),), now - 60, now + 86_400, 0)


def _make_chain(links: int, last: str = "user:smith") -> Capability:
    keys = [DomainKey.generate() for _ in range(links)]
    holders = [f"key:{it.key}" for it in keys[1:]] + [last]
    made = capabilities.issue(keys[0], _link(keys[0], holders[0], WIDE))
    for key, holder in zip(keys[1:], holders[1:], strict=True):
        text = NARROW if holder == last else WIDE
        made = capabilities.delegate(made, key, _link(key, holder, text))
    return made


def _attribute(name: str, kind: str) -> TypeAttribute:
    return TypeAttribute.model_validate({"name": name, "id": str(uuid.uuid4()), "type": kind})


def _verify_types() -> dict[str, Callable[[], object]]:
    pito, met = DomainKey.generate(), DomainKey.generate()
    attributes = [_attribute(f"attribute-{it}", "string") for it in range(8)]
    base = sign_type(pito, "sighting/1", "sighting", str(uuid.uuid4()), attributes)
    held = capabilities.issue(pito, _link(pito, f"key:{met.key}", WIDE))
    more = sign_type(
        met,
        "sighting/2",
        "sighting",
        str(uuid.uuid4()),
        [*attributes, _attribute("colour", "string")],
        issuer=pito.key,
        certificates=[TypeCertificate(token=held.text, revises=base.version)],
    )
    registry = TypeRegistry([base, more])
    return {
        "type of its issuer": lambda: registry.object_to(base),
        "type of a manager": lambda: registry.object_to(more),
    }


def _decide() -> dict[str, Callable[[], object]]:
    pito, met = DomainKey.generate(), DomainKey.generate()
    names = {"numberplate": "string", "location": "string", "gate": "int"}
    attributes = [_attribute(name, kind) for name, kind in names.items()]
    made = sign_type(pito, "sighting/1", "sighting", str(uuid.uuid4()), attributes)
    held = capabilities.issue(pito, _link(pito, f"key:{met.key}", WIDE))
    smith = capabilities.delegate(held, met, _link(met, "user:smith", NARROW))
    fields = [{"name": name, "type": kind} for name, kind in names.items()]
    body: dict[str, Any] = {"from": ["cams/+/sighting"], "fields": fields}
    foreign = Document("stream", "sightings", {**body, "event_type": "sighting/1"})
    documents = [made.document(), foreign, Document("capability", "s", {"token": smith.text})]
    payload = b'{"numberplate":"AB12 CDE","location":"gate 3","gate":500}'
    e = {"time": datetime.now(UTC)}

    def ask(found: DefinitionSet) -> Callable[[], object]:
        authorizer = make_authorizer(found, home=lambda: met.key)
        topic = "cams/7/sighting"

        def work() -> object:
            message = Message(topic, payload, rest={"size": len(payload)})
            request = AccessRequest("read", topic, "smith", "c", message=message, environment=e)
            return authorizer.authorize(request)

        return work

    return {
        "decide, type of our own": ask(DefinitionSet.build([Document("stream", "s", body)])),
        "decide, type of another": ask(DefinitionSet.build(documents)),
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    """Return the figures for people."""
    aim = figures["aim_us"]
    return [
        Table(
            "A capability is verified",
            ("links", "characters", "µs CPU", "within the aim"),
            [
                (name, f"{it['bytes']:,}", show(it["us"], 0), "yes" if it["us"] <= aim else "no")
                for name, it in figures["verify"].items()
            ],
        ),
        Table(
            "Others",
            ("what", "µs CPU"),
            [(name, show(us, 1)) for name, us in figures["others"].items()],
        ),
        *sealing.tables(figures["sealing"]),
    ]

"""What sealing costs: a ladder through a gateway, in process, and when keys of a group change.

Method:
- `ladder`: one gateway process, one client that publishes JSON of eight attributes, one that reads
  it through the same gateway: each message is sealed and opened once. A burst is sent when the one
  before has arrived. The stream is recorded, as every sealed one is: on sealed rungs that is one
  sealing more. CPU is that of the gateway process, as the median of rounds with rungs in turns.
- On the rung `none` messages pass as bytes; on `checked` the payload of each is looked at
  (`conform`), and nothing is sealed: what lies between is no cost of sealing.
- `seal`, `open`: the same without sockets: the smallest CPU time of rounds.
- `rekey`: one member of a group of n leaves: messages, and CPU time of who manages the group.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from penstock.components import MosquittoServer
from penstock.config.secrets import KeyFile
from penstock.model.document import Document
from penstock.model.kinds import EventType
from penstock.model.kinds.trust import TypeAttribute
from penstock.mqtt import V5, Connect, Publish, RequestedSubscription, Subscribe
from penstock.store.database import Database
from penstock.store.keys import GroupKeys, StoredKey, group_wrapping
from penstock.trust.event_types import TypeRegistry, find_resources, sign_type
from penstock.trust.key_groups import KeyGroup
from penstock.trust.key_ring import GroupKey, KeyRing
from penstock.trust.keys import DomainKey, open_key
from penstock.trust.sealed_events import EventLayout, open_event, seal_event
from penstock.trust.sealed_messages import Opener, Sealer
from penstock_lab.bench.gateway.server import GatewayServer
from penstock_lab.bench.tables import Table, show

RUNGS: Final = ("none", "checked", "whole", "attributes")
SEALED: Final = RUNGS[2:]
AIMS_US: Final = {"whole": 10.0, "attributes": 40.0}
ATTRIBUTES: Final = 8
BURST: Final = 100
TOPIC: Final = "cameras/7/sighting"
GROUPS: Final = (10, 100, 1_000, 10_000)
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_DAY: Final = 86_400_000


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure all of it."""
    messages, rounds = (500, 1) if quick else (10_000, 3)
    return {
        "ladder": _climb(messages, rounds),
        "in_process": _measure_in_process(200 if quick else 5_000, 2 if quick else 7),
        "rekey": {str(it): _rekey(it) for it in (GROUPS[:2] if quick else GROUPS)},
    }


# --- through a gateway ---


def _climb(messages: int, rounds: int) -> dict[str, dict[str, float]]:
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        broker = stack.enter_context(MosquittoServer(folder / "broker", persistent=False))
        running = {}
        for rung in RUNGS:
            place = folder / rung
            documents = _prepare(place, rung)
            server = GatewayServer(place, broker.port, documents=documents, lanes=0)
            running[rung] = stack.enter_context(server)
        for _ in range(rounds):
            for rung, server in running.items():
                figures = _pass_messages(server, messages)
                found.setdefault(rung, []).append(figures)
    made = {
        rung: {name: round(statistics.median(it[name] for it in taken), 1) for name in taken[0]}
        for rung, taken in found.items()
    }
    for figures in made.values():
        figures["added_us"] = round(figures["cpu_us"] - made["none"]["cpu_us"], 1)
        figures["beside_checked_us"] = round(figures["cpu_us"] - made["checked"]["cpu_us"], 1)
        figures["of_none"] = round(figures["per_second"] / made["none"]["per_second"], 2)
    return made


def _event_type(own: DomainKey) -> EventType:
    attributes = [
        TypeAttribute.model_validate({"name": f"a{it}", "id": str(uuid.uuid4()), "type": "string"})
        for it in range(ATTRIBUTES)
    ]
    return sign_type(own, "sighting", "sighting", str(uuid.uuid4()), attributes)


def _prepare(folder: Path, rung: str) -> list[Document]:
    """Write the key of a domain, and keys of its type; return its definitions."""
    folder.mkdir(parents=True)
    file = KeyFile(folder / "keys" / "domain.key")
    event_type = _event_type(open_key(file))
    resources = find_resources(event_type, TypeRegistry([event_type]))
    with Database.open(f"sqlite:///{folder / 'penstock.db'}") as database:
        keys = [StoredKey(it.id, 1, 0, os.urandom(32)) for it in resources]
        GroupKeys(database, group_wrapping(file)).add(keys)
    fields = [{"name": it.name, "type": it.type} for it in event_type.attributes]
    body: dict[str, Any] = {
        "event_type": "sighting",
        "fields": fields,
        "from": ["cameras/+/sighting"],
    }
    if rung in SEALED:
        body["sealed"] = rung
    body["conform"] = rung == "checked"
    stream = Document("stream", "sightings", body)
    return [event_type.document(), stream]


def _payload() -> bytes:
    return json.dumps({f"a{it}": f"value {it} of a sighting" for it in range(ATTRIBUTES)}).encode()


def _connect(port: int, name: str) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=60)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(Connect(client_id=name, clean_start=True, keep_alive=0).encode(V5))
    made.recv(1 << 16)
    return made


def _pass_messages(server: GatewayServer, messages: int) -> dict[str, float]:
    with _connect(server.port, "reader") as reader, _connect(server.port, "camera") as camera:
        reader.sendall(Subscribe(1, (RequestedSubscription(TOPIC, 0),)).encode(V5))
        reader.recv(1 << 16)
        one = Publish.of(TOPIC, _payload()).to_v5(b"")
        camera.sendall(one)
        # The first one tells how long it is as it arrives: its attributes are written anew.
        size = _wait_for_one(reader, camera, one)
        started, used = time.perf_counter(), _cpu(server.pid)
        for _ in range(messages // BURST):
            camera.sendall(one * BURST)
            left = size * BURST
            while left > 0:
                left -= len(reader.recv(min(left, 1 << 18)))
        seconds, spent = time.perf_counter() - started, _cpu(server.pid) - used
    return {"per_second": messages / seconds, "cpu_us": spent / messages * 1e6}


def _wait_for_one(reader: socket.socket, camera: socket.socket, one: bytes) -> int:
    reader.settimeout(2)
    while True:
        try:
            size = len(reader.recv(1 << 16))
        except TimeoutError:
            camera.sendall(one)  # the gateway learns of keys a second later
        else:
            reader.settimeout(60)
            return size


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


# --- in process ---


def _measure_in_process(calls: int, rounds: int) -> dict[str, float]:
    own = DomainKey.generate()
    event_type = _event_type(own)
    whole, *rest = find_resources(event_type, TypeRegistry([event_type]))
    ring = KeyRing(grace=0, delay=_DAY, skew=0)
    for it in (whole, *rest):
        ring.add(GroupKey(it.id, 1, 0, os.urandom(32)))
    named = {str(it.attribute): it.id for it in rest}
    sealer, opener, payload = Sealer(ring, os.urandom), Opener(ring), _payload()
    found: dict[str, float] = {}
    for rung in SEALED:
        layout = EventLayout(whole.id, rung == "attributes", named)
        sealed = seal_event(sealer, layout, TOPIC, payload, 1)
        works = {
            "seal": partial(seal_event, sealer, layout, TOPIC, payload, 1),
            "open": partial(open_event, opener, layout, TOPIC, sealed, 1),
        }
        for what, work in works.items():
            best = min(_time(work, calls) for _ in range(rounds))
            found[f"{what} {rung}"] = round(best / calls * 1e6, 1)
    return found


def _time(work: Callable[[], object], calls: int) -> float:
    started = time.process_time()
    for _ in range(calls):
        work()
    return time.process_time() - started


def _rekey(members: int) -> dict[str, float]:
    group = KeyGroup(uuid.uuid4(), _DAY)
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    for number in range(members):
        group.join(f"m{number}", public, 0, 10 * _DAY, 1, os.urandom)
    group.refresh(2, os.urandom, at_once=True)
    times = []
    for number in range(5):
        started = time.process_time()
        refresh = group.expel(f"m{number}", 3 + number, os.urandom)
        times.append(time.process_time() - started)
    assert refresh is not None  # noqa: S101 - the member was in
    return {"messages": len(refresh.rekey.keys), "ms": round(min(times) * 1e3, 2)}


def tables(figures: dict[str, Any]) -> list[Table]:
    """Return the figures for people."""
    return [
        Table(
            "Through a gateway: JSON of eight attributes",
            ("sealed", "messages/s", "of no sealing", "µs CPU", "added", "beside checked", "aim"),
            [
                (
                    rung,
                    f"{it['per_second']:,.0f}",
                    show(it["of_none"], 2),
                    show(it["cpu_us"], 1),
                    show(it["added_us"], 1),
                    show(it["beside_checked_us"], 1),
                    show(AIMS_US[rung], 0) if rung in AIMS_US else "",
                )
                for rung, it in figures["ladder"].items()
            ],
        ),
        Table(
            "In process",
            ("what", "µs CPU"),
            [(name, show(us, 1)) for name, us in figures["in_process"].items()],
        ),
        Table(
            "One member of a key group leaves",
            ("members", "keys sent", "ms CPU"),
            [
                (f"{int(name):,}", str(it["messages"]), show(it["ms"], 2))
                for name, it in figures["rekey"].items()
            ],
        ),
    ]

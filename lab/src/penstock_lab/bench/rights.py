"""Privacy controls: how fast an opt-out holds everywhere, and what many of them cost a gateway.

Method:
- `enforcement`: messages about a person flow all the time to a subscriber at each of three
  gateways. In each round another person opts out. The commit starts the clock; the last message
  that reaches a subscriber gives that gateway's figure, 0 where none comes. The answer comes
  when all gateways have confirmed; what still comes after it is counted.
- `acceptance` and `sweep`: see `requests`; `shredding`: see `kafka.shredding`.
- `index`: two gateways before one broker, one with a million opt-outs on record and one with none,
  under the same load in turns. Memory is what the kernel says each process holds; CPU is that of
  the gateway for each message that a client sent and another received, once it has seen every
  person. Persons are told by a level of the topic, by a user property, or by the payload.
"""

from __future__ import annotations

import contextlib
import os
import select
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.components import MosquittoServer, PostgresServer
from penstock.config.secrets import SecretFile
from penstock.errors import UnavailableError
from penstock.model.document import Document
from penstock.mqtt import V5, Properties, Publish, RequestedSubscription, Suback, Subscribe
from penstock.store.consent import Choice, ConsentBook, ProfileChoice, changes_table, key_table
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock_lab.bench import requests
from penstock_lab.bench.gateway.revocation import Peer
from penstock_lab.bench.gateway.server import GatewayServer
from penstock_lab.bench.load.fleet import LoadError
from penstock_lab.bench.load.open import percentile

PARTS = ("enforcement", "index", *requests.PARTS, "shredding")
GOAL_MS = 100.0
GOAL_MEMORY_MB = 200.0
GOAL_CPU = 0.10
GATEWAYS = 3
PURPOSE = "ads"
OPT_OUTS = 1_000_000
PEOPLE = 500
_SECRET = bytes(range(32))
_GAP_SECONDS = 0.001
_QUIET_SECONDS = 0.2
_BURST = 100
_GIVE_UP_SECONDS = 30.0
_PAGE = 10_000
_TICKS = os.sysconf("SC_CLK_TCK")

_FIELDS = [{"name": "pid", "type": "string", "category": "identifier"}]
DOCUMENTS = (
    Document("purpose", PURPOSE, {}),
    Document("stream", "level", {"fields": _FIELDS, "subject": "pid", "from": ["home/+pid/pulse"]}),
    Document("stream", "payload", {"fields": _FIELDS, "subject": "pid", "from": ["gps"]}),
    Document(
        "stream",
        "property",
        {
            "fields": _FIELDS,
            "subject": "pid",
            "from": ["steps"],
            "adds": {"properties": {"pid": "person"}},
        },
    ),
)


def run(*, quick: bool, only: Sequence[str] = PARTS) -> dict[str, Any]:
    """Measure the parts that are asked for."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-rights-") as name:
        folder = Path(name)
        with MosquittoServer(folder / "broker") as broker:
            if "enforcement" in only:
                found["enforcement"] = measure_enforcement(folder, broker, 5 if quick else 200)
            if "index" in only:
                count, rounds = (20_000, 2) if quick else (OPT_OUTS, 5)
                found["index"] = measure_index(folder / "index", broker, count, rounds)
    found |= requests.run(quick=quick, only=only)
    if "shredding" in only:
        # Spark is for those who measure it.
        from penstock_lab.bench.kafka import shredding  # noqa: PLC0415

        found["shredding"] = shredding.measure(quick=quick)
    return found


# --- enforcement ---


def measure_enforcement(folder: Path, broker: MosquittoServer, rounds: int) -> dict[str, Any]:
    """Measure how long messages come after an opt-out, with both stores."""
    found: dict[str, Any] = {"goal_p99_ms": GOAL_MS, "rounds": rounds, "gateways": GATEWAYS}
    url = f"sqlite:///{folder / 'shared.db'}"
    found["sqlite"] = _measure_store(folder / "sqlite", broker, url, rounds)
    try:
        server = PostgresServer()
    except UnavailableError as error:
        return found | {"postgresql": {"missing": str(error)}}
    with server:
        return found | {"postgresql": _measure_store(folder / "pg", broker, server.url, rounds)}


def _measure_store(
    folder: Path, broker: MosquittoServer, url: str, rounds: int
) -> dict[str, float]:
    latest: list[float] = []
    answers: list[float] = []
    late = 0
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(Database.open(url))
        folder.mkdir(parents=True, exist_ok=True)
        book = ConsentBook.open(database, _make_key(folder / "keys"))
        ports = []
        for number in range(GATEWAYS):
            gateway = GatewayServer(
                folder / f"g{number}",
                broker.port,
                documents=DOCUMENTS if not number else (),
                store_url=url,
                keys=folder / "keys",
            )
            ports.append(stack.enter_context(gateway).port)
        publisher = Peer("publisher", ports[0])
        subscribers = [Peer(f"s{number}", port) for number, port in enumerate(ports)]
        for peer in (publisher, *subscribers):
            stack.callback(peer.socket.close)
        for peer in subscribers:
            _subscribe(peer, "home/PLUS/pulse")
        for number in range(rounds):
            after, answered, more = _opt_out(book, database, publisher, subscribers, f"p{number}")
            latest += after
            answers.append(answered)
            late += more
    return {
        "commit_to_last_delivery_p50_ms": round(percentile(sorted(latest), 0.5), 2),
        "commit_to_last_delivery_p99_ms": round(percentile(sorted(latest), 0.99), 2),
        "commit_to_last_delivery_highest_ms": round(max(latest), 2),
        "commit_to_answer_p50_ms": round(percentile(sorted(answers), 0.5), 2),
        "commit_to_answer_p99_ms": round(percentile(sorted(answers), 0.99), 2),
        "received_after_the_answer": late,
    }


class _Committed:
    """An opt-out in a thread of its own: when it was committed, and when it was answered."""

    def __init__(self, book: ConsentBook, database: Database, person: str) -> None:
        self.commit = self.answer = 0.0
        self.error: Exception | None = None
        self._book, self._database, self._person = book, database, person
        self.thread = threading.Thread(target=self._choose)
        self.thread.start()

    def _choose(self) -> None:
        choice = ProfileChoice(
            self._book.marks.of(self._person), Choice.OPT_OUT, {PURPOSE: (PURPOSE,)}
        )
        try:
            with self._database.write("consent") as connection:
                self._book.note_within(connection, [choice])
            self.commit = time.perf_counter()
            self._book.await_enforcement()
        except Exception as error:  # noqa: BLE001 - told by who reads it
            self.error = error
        self.answer = time.perf_counter()


def _opt_out(
    book: ConsentBook, database: Database, publisher: Peer, subscribers: list[Peer], person: str
) -> tuple[list[float], float, int]:
    """Let a person opt out while messages flow.

    Returns for each gateway how long they still came, when the answer came, and how many
    messages came after it; the times in ms from the commit on.
    """
    message = Publish.of(f"home/{person}/pulse", b"x" * 32).to_v3()
    last = [0.0] * len(subscribers)
    due = 0.0

    def flow() -> list[int]:
        nonlocal due
        now = time.perf_counter()
        if now >= due:
            publisher.send(message)
            due = now + _GAP_SECONDS
        select.select([it.socket for it in subscribers], [], [], max(0.0, due - now))
        return [sum(isinstance(it, Publish) for it in peer.read()) for peer in subscribers]

    missing = set(range(len(subscribers)))
    deadline = time.perf_counter() + _GIVE_UP_SECONDS
    while missing:
        missing -= {n for n, count in enumerate(flow()) if count}
        if time.perf_counter() > deadline:
            raise LoadError(f"subscribers {sorted(missing)} receive nothing", fix="see the logs")
    choice = _Committed(book, database, person)
    late, quiet_until = 0, deadline
    while (now := time.perf_counter()) < quiet_until:
        if choice.answer and quiet_until == deadline:
            quiet_until = max(now, choice.answer) + _QUIET_SECONDS
        answered = bool(choice.answer)
        for number, count in enumerate(flow()):
            if count:
                last[number] = time.perf_counter()
                late += count if answered else 0
    choice.thread.join()
    if choice.error is not None:
        raise choice.error
    after = [max(0.0, (it - choice.commit) * 1e3) for it in last]
    return after, (choice.answer - choice.commit) * 1e3, late


def _subscribe(peer: Peer, words: str) -> None:
    wanted = RequestedSubscription(f"!AP/{words}{{{PURPOSE}}}")
    peer.send(Subscribe(1, (wanted,)).encode(peer.version))
    answer = peer.await_packet(Suback)
    if not isinstance(answer, Suback) or answer.reasons != (0,):
        raise LoadError(f"a subscription was refused: {answer}")


# --- index ---


def measure_index(folder: Path, broker: MosquittoServer, count: int, rounds: int) -> dict[str, Any]:
    """Measure what opt-outs of people who send nothing cost a gateway."""
    found: dict[str, Any] = {
        "opt_outs": count,
        "goal_memory_mb": GOAL_MEMORY_MB,
        "goal_cpu_share": GOAL_CPU,
    }
    with contextlib.ExitStack() as stack:
        gateways = {
            name: stack.enter_context(_gateway(folder / name, broker, opted_out))
            for name, opted_out in (("none", 0), ("many", count))
        }
        for kind, make in _MESSAGES.items():
            used: dict[str, list[float]] = {name: [] for name in gateways}
            for _ in range(rounds):
                for name, gateway in gateways.items():
                    used[name].append(_load(gateway, kind, make))
            none, many = (statistics.median(used[name]) for name in ("none", "many"))
            found[kind] = {
                "cpu_us_per_message_without": round(none, 2),
                "cpu_us_per_message_with": round(many, 2),
                "more": round(many / none - 1, 3),
            }
        memory = {name: _resident_mb(gateway.pid) for name, gateway in gateways.items()}
    found["memory_mb_without"] = round(memory["none"], 1)
    found["memory_mb_with"] = round(memory["many"], 1)
    found["memory_mb_more"] = round(memory["many"] - memory["none"], 1)
    return found


_Make = Callable[[int], Publish]
_MESSAGES: dict[str, _Make] = {
    "level": lambda n: Publish.of(f"home/p{n % PEOPLE}/pulse", b'{"bpm": 70}'),
    "property": lambda n: Publish.of(
        "steps", b"{}", properties=Properties(user=(("person", f"p{n % PEOPLE}"),))
    ),
    "payload": lambda n: Publish.of("gps", b'{"pid": "p%d", "x": 7.5, "y": 9.25}' % (n % PEOPLE)),
}
_TOPICS = {"level": "home/PLUS/pulse", "property": "steps", "payload": "gps"}


@contextlib.contextmanager
def _gateway(folder: Path, broker: MosquittoServer, opted_out: int) -> Iterator[GatewayServer]:
    folder.mkdir(parents=True)
    url = f"sqlite:///{folder / 'store.db'}"
    with Database.open(url) as database:
        key = _make_key(folder / "keys")
        if opted_out:
            _fill(database, SubjectMarks(key.read()), opted_out)
    gateway = GatewayServer(
        folder / "g", broker.port, documents=DOCUMENTS, store_url=url, keys=folder / "keys"
    )
    with gateway:
        yield gateway


def _fill(database: Database, marks: SubjectMarks, count: int) -> None:
    """Put opt-outs on record, as many choices would have; nobody of them sends anything."""
    now = datetime.now(UTC)
    with database.write("consent") as connection:
        connection.execute(key_table.insert().values(id=1, fingerprint=marks.fingerprint))
        for start in range(1, count + 1, _PAGE):
            connection.execute(
                changes_table.insert(),
                [
                    {
                        "epoch": epoch, "mark": uuid.uuid4().hex, "at": now,
                        "subject": marks.of(f"other-{epoch}"), "purpose": PURPOSE,
                        "choice": Choice.OPT_OUT.value,
                    }
                    for epoch in range(start, min(start + _PAGE, count + 1))
                ],
            )  # fmt: skip


def _load(gateway: GatewayServer, kind: str, make: _Make, messages: int = 10_000) -> float:
    """Send messages through a gateway; return its CPU for each, in µs."""
    sender, reader = (Peer(f"{kind}-{name}", gateway.port, version=V5) for name in ("s", "r"))
    try:
        _subscribe(reader, _TOPICS[kind])
        packets = [make(number).encode(V5) for number in range(PEOPLE)]
        received, before = 0, 0.0
        deadline = time.perf_counter() + _GIVE_UP_SECONDS
        for start in range(0, PEOPLE + messages, _BURST):
            if start == PEOPLE:  # every person has been seen once
                before = _cpu_seconds(gateway.pid)
            sender.send(b"".join(packets[n % PEOPLE] for n in range(start, start + _BURST)))
            while received < start + _BURST:
                select.select([reader.socket], [], [], 0.01)
                received += sum(isinstance(it, Publish) for it in reader.read())
                if time.perf_counter() > deadline:
                    raise LoadError(f"{received} of {messages} messages came", fix="see the log")
        return (_cpu_seconds(gateway.pid) - before) / messages * 1e6
    finally:
        sender.socket.close()
        reader.socket.close()


def _make_key(folder: Path) -> SecretFile:
    key = SecretFile(folder / "consent.key")
    key.read_or_create(lambda: _SECRET)
    return key


def _cpu_seconds(pid: int) -> float:
    threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if threads:  # by the nanosecond; else by the tick
        return sum(int(it.read_text().split()[0]) for it in threads) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(it for it in status.splitlines() if it.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

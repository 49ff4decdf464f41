"""What records tell of their time moves no watermark and no clock beyond their arrival."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.components import MosquittoServer
from penstock.config import Config
from penstock.definitions import DefinitionSet, read_text
from penstock.eventlog import EventLog
from penstock.model.document import Document
from penstock.pipeline.sinks.commits import ViewFolder
from penstock.pipeline.sinks.published import read_published
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("mosquitto", "java")
pytest_plugins = ("tests.support.gateway.fixtures",)

HOUR, YEAR = 3_600_000, 366 * 86_400_000
FIELDS = [
    {"name": "patient", "type": "string", "category": "identifier"},
    {"name": "ward", "type": "string"},
    {"name": "pulse", "type": "int"},
    {"name": "at", "type": "long", "optional": True},
]
STREAM = Document(
    "stream",
    "vitals",
    {"fields": FIELDS, "subject": "patient", "time": "at", "from": ["home/+patient/pulse"]},
)
HOURLY = Document(
    "view",
    "hourly",
    {
        "stream": "vitals",
        "anonymizers": [
            {"anonymizer": "suppression", "keys": ["patient"]},
            {"anonymizer": "aggregation", "keys": ["pulse"], "aggregation_mode": "average"},
        ],
        "window": {"size": "1h"},
    },
)
# So large an epsilon that noise other than zero comes once in 10^43 figures.
PRIVATE = Document(
    "view",
    "private",
    {
        "stream": "vitals",
        "anonymizers": [
            {
                "anonymizer": "differential_privacy",
                "aggregates": [{"name": "visits", "mode": "count"}],
                "groups": [{"key": "ward", "values": ["east"]}],
                "epsilon": 100,
                "budget": 1000,
            }
        ],
        "window": {"size": "1h"},
    },
)
EVENTS = """
{kind: vocabulary, name: v, object: {k: string}, payload: {pulse: int, at: int}}
---
{kind: object, name: o, topics: home/+k/pulse}
---
kind: event
name: Reading
attributes: {k: string, pulse: int}
packet: {filters: [home/+/pulse], set: {k: o.k, pulse: t.payload.pulse}, time: t.payload.at,
         lateness: 6h}
---
kind: event
name: Thrice
attributes: {k: string}
pattern: {aggregate: [{event: Reading}], by: [k], window: {last: 1h}, values: {n: count()},
          where: it.n >= 3, set: {k: it.k}}
---
kind: event
name: Silent
description: Comes about as time passes.
attributes: {k: string}
pattern: {sequence: [{event: Reading, as: a}, {not: {event: Reading}, as: b}], by: [k],
          within: 50m, set: {k: a.k}}
---
{kind: plan, name: p, situations: [{id: Busy, level: 1}, {id: Lost, level: 2}],
 evolutions: [{event: Thrice, to: Busy}, {event: Silent, to: Lost}]}
---
{kind: scenario, name: s, plan: p, attribute: k}
"""
OPEN = [
    Document("enforcement", "default", {"policies": "required"}),
    Document(
        "policy", "own", {"subject": "user:device", "filter": "home/+/pulse", "allow": "write"}
    ),
]


class House:
    """A gateway that records, and the pipeline that reads what it recorded."""

    def __init__(self, gateway: GatewayThread) -> None:
        self.gateway = gateway
        self.config: Config = gateway.config
        self.topic = EventLog(self.config.pipeline.event_log).topic("vitals")
        self._sent = 0

    def send(self, *pulses: tuple[str, int, int | None]) -> None:
        """Publish what patients tell, and wait until the log has it."""
        # A connection each time: between two, Spark may take longer than a keep-alive.
        with RawClient(self.gateway.port) as device:
            device.connect("device", username="device", password=b"d")
            for patient, pulse, at in pulses:
                payload = json.dumps({"ward": "east", "pulse": pulse, "at": at}).encode()
                assert not device.publish(f"home/{patient}/pulse", payload, qos=1).failed
        self._sent += len(pulses)
        wait_until(lambda: self.topic.next_offset >= self._sent)

    def view(self, name: str) -> ViewFolder:
        return ViewFolder(self.config.pipeline.folder / name)

    def has_read(self, name: str, end: int) -> bool:
        view = self.view(name)
        last = view.last()
        # Files come to their places after the commit that makes them count.
        placed = last is not None and all((view.data / it).exists() for it in last.files)
        return placed and last is not None and last.totals.read >= end

    def figures(self) -> list[int]:
        rows = sorted(read_published(self.view("private")), key=lambda row: row["window_start"])
        return [row["visits"] for row in rows]

    def dead(self, name: str) -> dict[int, str]:
        return {it["offset"]: it["reason"] for it in self.view(name).dead_letters()}


def wait_until(holds: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def open_house(folder: Path, broker: MosquittoServer, *documents: Document) -> Iterator[House]:
    passwords = write_passwords(folder / "passwords", {"device": "d"}, {})
    settings = {"open_mode": False, "authentication": {"passwords": str(passwords)}}
    with run_gateway(folder / "g", broker.port, settings) as gateway:
        with Database.open(gateway.config.store.connection_url()) as database:
            checked = CheckedDefinitions(Definitions(database))
            epoch = checked.apply([*OPEN, *documents], actor="test", reason="").epoch
        wait_until(lambda: gateway.do(lambda: gateway.gateway.rules.epoch) >= epoch)
        yield House(gateway)


@contextmanager
def run_views(spark: SparkSession, house: House, definitions: DefinitionSet) -> Iterator[None]:
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

    manager = Manager(spark, house.config.pipeline, lambda: definitions)
    for name in ("hourly", "private"):
        manager.control.change(name, "start")
    told = threading.Event()
    thread = threading.Thread(target=manager.run, args=(told,))
    thread.start()
    try:
        yield
    finally:
        told.set()
        thread.join()


@pytest.mark.timeout(900)
def test_live_windows_close_right_whatever_single_records_tell(
    broker: MosquittoServer, spark: SparkSession, tmp_path: Path
) -> None:
    documents = [STREAM, HOURLY, PRIVATE]
    with open_house(tmp_path, broker, *documents) as house:
        now = time.time_ns() // 1_000_000
        hour = now // HOUR * HOUR - 3 * HOUR
        with run_views(spark, house, DefinitionSet.build([*OPEN, *documents])):

            def follow(*pulses: tuple[str, int, int | None]) -> None:
                house.send(*pulses)
                end = house.topic.next_offset
                for name in ("hourly", "private"):
                    wait_until(partial(house.has_read, name, end))

            follow(("eve", 300, -(2**63)), ("eve", 300, 0), ("eve", 300, now - 8 * 24 * HOUR))
            follow(("ann", 60, hour + 1), ("bob", 70, hour + 2))
            follow(("eve", 300, now + YEAR), ("eve", 300, 2**63 - 1))
            assert list(read_published(house.view("hourly"))) == [], "no window is over"
            assert list(read_published(house.view("private"))) == []
            follow(("cid", 80, hour + 3), ("dan", 200, hour + HOUR))
            follow(("dan", 100, hour + HOUR + 1), ("dan", 40, hour + 2 * HOUR))
            rows = list(read_published(house.view("hourly")))
            assert sorted((row["at"], row["pulse"]) for row in rows) == [
                *((hour + 1, 70.0), (hour + 2, 70.0), (hour + 3, 70.0)),
                *((hour + HOUR, 150.0), (hour + HOUR + 1, 150.0)),
            ]
            assert house.figures() == [3, 1]
            # A clock that is ahead by less: such a record counts as of its arrival, so that
            # it ends the windows before the present one, and that one stays open.
            ahead = now + 2 * HOUR
            follow(("dan", 50, ahead), ("dan", 60, None))
            rows = list(read_published(house.view("hourly")))
            assert sorted(row["at"] for row in rows)[5:] == [hour + 2 * HOUR]
            assert house.figures() == [3, 1, 1]
        for name in ("hourly", "private"):
            dead = house.dead(name)
            assert dead[12] == "the record does not say when it happened"
            assert {dead[it] for it in (0, 1, 2)} == {
                "the record tells a time more than 7d before its arrival"
            }
            assert {dead[it] for it in (5, 6)} == {
                "the record tells a time more than 1d after its arrival"
            }
            more = {9} if name == "private" else set()  # he counts once in a window
            assert dead.keys() == {0, 1, 2, 5, 6, 12, *more}
            last = house.view(name).last()
            assert last is not None
            assert last.totals.rejected == len(dead)


def test_detection_in_line_and_at_scale_refuses_the_same_times(
    broker: MosquittoServer, spark: SparkSession, tmp_path: Path
) -> None:
    from penstock.pipeline.detection.runner import open_detection  # noqa: PLC0415 - loads Spark

    documents = [*read_text(EVENTS).documents, STREAM]
    with open_house(tmp_path, broker, *documents) as house:
        detection = house.gateway.gateway.emergencies.detection
        wait_until(lambda: house.gateway.do(lambda: detection.engine) is not None)
        now = time.time_ns() // 1_000_000

        def find(patient: str) -> str | None:
            return house.gateway.do(lambda: detection.board.current("s", patient))

        house.send(("ann", 60, now), ("ann", 61, now + 1))
        house.send(*[("ann", 300, now + YEAR), ("ann", 300, 2**63 - 1), ("ann", 300, -(2**63))] * 3)
        house.send(("ann", 62, now - 7 * HOUR))
        assert find("ann") is None
        house.send(("bob", 70, now + 2), ("ann", 63, now + 3))
        assert (find("ann"), find("bob")) == ("Busy", None)
        assert detection.engine is not None
        counts = detection.engine.counts
        assert (counts["far_ahead"], counts["late"]) == (6, 4)
    runner = open_detection(house.config, spark, DefinitionSet.build([*OPEN, *documents]), "vitals")
    runner.catch_up()
    runner.close()
    found = ViewFolder(house.config.pipeline.folder / ".detection" / "vitals")
    rows = [it for it in read_published(found) if it["kind"] == "transition"]
    assert [(it["subject"], it["target"]) for it in rows] == [("ann", "Busy")]
    assert now <= runner.clock <= time.time() * 1000
    assert len(list(found.dead_letters())) == runner.totals.rejected == 9

"""Erasure as a worker does it: real broker, both databases, kills between any two steps."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from paho.mqtt import publish, subscribe

from penstock.components.mosquitto import MosquittoServer
from penstock.definitions import read_text
from penstock.model.document import Document
from penstock.model.kinds.controls import ERASURE
from penstock.rights.dispatch import Channels, open_caller
from penstock.rights.dispatch.message import LeaseLostError, Outcome
from penstock.rights.erasure.records import ViewTrace, trace_views
from penstock.rights.erasure.service import _Case
from penstock.rights.notices import NoticeSender
from penstock.rights.worker import RightsWorker
from penstock.store.audit.signatures import Signer
from penstock.store.audit.verification import verify
from penstock.store.database import Database
from penstock.store.detection.journal import DetectionStore
from penstock.store.detection.tables import situations_table
from penstock.store.detokenization import StoreVault
from penstock.store.rights.erasures import evidence_table
from penstock.store.rights.tables import RequestStatus
from tests.support.gateway.harness import GatewayThread
from tests.support.gateway.ward import WARD, login, open_ward
from tests.support.rights.erasing import STREAM, SUBSCRIBER, Installation
from tests.support.rights.office import SECRET

TOKENS = {"anonymizer": "tokenization", "keys": ["pid"], "method": "vault", "vault": "people"}
DOCUMENTS = (
    Document("stream", "vitals", STREAM | {"from": ["home/+pid/vitals"]}),
    Document("stream", "notes", STREAM | {"from": ["plain"]}),
    Document("view", "open", {"stream": "vitals", "format": "json"}),
    Document("view", "coded", {"stream": "vitals", "format": "json", "anonymizers": [TOKENS]}),
)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'penstock.db'}"


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with Database.open(url) as opened:
        yield opened


def make_worker(place: Installation) -> RightsWorker:
    return RightsWorker(
        place.book,
        lambda: place.definitions,
        Channels.open(place.config, SECRET),
        NoticeSender.open(place.config, SECRET, open_caller(place.config)),
        built_in={ERASURE: place.service},
    )


def fill(place: Installation) -> str:
    """Record and publish rows of two people; return the token of ann."""
    place.config.pipeline.key.read_or_create(lambda: SECRET)
    rows = [{"pid": who, "ward": "north", "pulse": 70} for who in ("ann", "anna", "ann", "bob")]
    place.record("vitals", *rows)
    traces = {it.view.name: it for it in _traces(place, "ann")}
    others = {it.view.name: it for it in _traces(place, "anna")}
    vault = StoreVault(place.database)
    vault.put("people", {token: b"sealed" for _, token in traces["coded"].tokens})
    vault.put("people", {token: b"sealed" for _, token in others["coded"].tokens})
    for name in ("open", "coded"):
        data = place.config.pipeline.folder / name / "data"
        data.mkdir(parents=True)
        lines = [
            {"pid": traces[name].value if who == "ann" else others[name].value}
            for who in ("ann", "anna")
        ]
        (data / "000-000.json").write_text("".join(json.dumps(it) + "\n" for it in lines))
    return str(traces["coded"].value)


def _traces(place: Installation, person: str) -> list[ViewTrace]:
    return trace_views(place.definitions, SECRET, person)


def settings(port: int) -> dict[str, Any]:
    return {"broker": {"mode": "external", "host": "127.0.0.1", "port": port}}


@pytest.mark.needs("mosquitto", "postgresql")
def test_a_deletion_is_carried_out_and_proved(
    database: Database, tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    place = Installation(tmp_path, database, *DOCUMENTS, **settings(mosquitto.port))
    token = fill(place)
    retained = {
        "home/ann/vitals": b"{}", "home/anna/vitals": b"{}", "plain": b'{"pid":"ann"}',
        "else": b'{"pid":"ann"}',
    }  # fmt: skip
    for topic, payload in retained.items():
        publish.single(topic, payload, qos=1, retain=True, port=mosquitto.port)
    place.book.profiles.set_contact("app", "ann", {"email": "ann@example.com"})
    request = place.submit("ann")
    make_worker(place).run_once()
    shown = place.book.show(request)
    assert shown is not None
    assert shown[0].status == RequestStatus.COMPLETED
    assert shown[0].sealed is None
    proof = place.evidence("ann")
    assert proof.is_intact
    counts = {it["place"]: it for it in proof.content["erased"]}
    assert counts["event log of vitals"] == {
        "place": "event log of vitals", "records": 2, "files": 1, "through": 4,
    }  # fmt: skip
    assert counts["retained messages"]["messages"] == 2
    assert counts["vault"]["entries"] == 1
    assert counts["contacts"]["addresses"] == 1
    assert (counts["view open"]["rows"], counts["view coded"]["rows"]) == (1, 1)
    left = {it["place"] for it in proof.content["remains"]}
    assert {"copies", "backups", "audit-log"} <= left
    assert "ann" not in json.dumps(proof.content)
    assert [it.key for it in place.events.topic("vitals").read()] == [b"anna", b"bob"]
    assert token not in (place.config.pipeline.folder / "coded/data/000-000.json").read_text()
    assert StoreVault(database).get("people", token) is None
    assert place.book.profiles.contact("app", "ann") == {}
    kept = subscribe.simple("#", msg_count=2, port=mosquitto.port)  # type: ignore[no-untyped-call]
    assert {it.topic for it in kept} == {"home/anna/vitals", "else"}
    assert verify(database, place.audit.signer.public_keys).ok


@pytest.mark.needs("postgresql")
def test_a_kill_between_any_two_steps_goes_on_where_it_was(
    database: Database, url: str, tmp_path: Path
) -> None:
    documents = [Document("stream", "vitals", STREAM), *DOCUMENTS[2:]]
    place = Installation(tmp_path, database, *documents)
    fill(place)
    request = place.submit("ann")
    steps = [it.name for it in place.service._steps(_case(place, request))]
    spawn = multiprocessing.get_context("fork")
    for kills in range(2 * (len(steps) + 1)):
        database.close()  # a connection does not survive a fork
        child = spawn.Process(target=_die, args=(url, tmp_path, documents, kills % 2))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
    assert child.exitcode == 0
    assert kills >= len(steps)
    proof = place.evidence("ann")
    assert proof.is_intact
    counts = {it["place"]: it for it in proof.content["erased"]}
    assert counts["event log of vitals"]["through"] == 4
    assert [it.key for it in place.events.topic("vitals").read()] == [b"anna", b"bob"]
    assert place.service.book.steps(request) == {}


def _case(place: Installation, request: str) -> _Case:
    return _Case(request, "ann", place.definitions, _traces(place, "ann"), lambda: None)


def _die(url: str, folder: Path, documents: list[Document], after: int) -> None:
    """Do one step, and be killed before or after it is noted; end well where nothing is left."""
    with Database.open(url) as database:
        place = Installation(folder, database, *documents)
        note = place.service.book.note

        def stop(*given: Any) -> Any:
            if after:
                note(*given)
            os.kill(os.getpid(), signal.SIGKILL)

        place.service.book.note = stop  # type: ignore[method-assign, assignment]
        made = place.erase("ann")
        os._exit(0 if made.outcome is Outcome.DONE else 1)


@pytest.mark.needs("postgresql")
def test_a_worker_that_lost_its_lease_stops(database: Database, tmp_path: Path) -> None:
    place = Installation(tmp_path, database, Document("stream", "vitals", STREAM))
    place.record("vitals", {"pid": "ann"})

    def lost() -> None:
        raise LeaseLostError("another worker has the request now")

    made = place.erase("ann", keep=lost)
    assert (made.outcome, made.trouble) == (Outcome.FAILED, "lease-lost")
    assert len(list(place.events.topic("vitals").read())) == 1
    assert not place.book.renew(place.submit("ann"), SUBSCRIBER, "somebody", 60)


@pytest.mark.needs("postgresql")
def test_a_broker_out_of_reach_lets_it_wait(database: Database, tmp_path: Path) -> None:
    place = Installation(tmp_path, database, *DOCUMENTS)
    fill(place)
    request = place.submit("ann")
    make_worker(place).run_once()
    shown = place.book.show(request)
    assert shown is not None
    (row,) = shown[1]
    assert (row.status, row.trouble) == ("INIT", "erasure-unavailable")
    assert place.service.book.evidence(request) == []


@pytest.mark.needs("postgresql")
def test_evidence_that_was_changed_is_told(database: Database, tmp_path: Path) -> None:
    place = Installation(tmp_path, database, Document("stream", "vitals", STREAM))
    place.record("vitals", {"pid": "ann"})
    assert place.erase("ann").outcome is Outcome.DONE
    assert place.evidence("ann").is_intact
    changed = {**place.evidence("ann").content, "erased": []}
    with database.write() as connection:
        connection.execute(evidence_table.update().values(evidence=json.dumps(changed)))
    assert not place.evidence("ann").is_intact
    with database.write() as connection:
        connection.execute(evidence_table.update().values(entry=0))
    assert place.evidence("ann").audited is None


@pytest.mark.needs("postgresql")
def test_views_that_run_are_looked_at_when_their_batch_is_over(
    database: Database, tmp_path: Path
) -> None:
    documents = [Document("stream", "vitals", STREAM), *DOCUMENTS[2:]]
    place = Installation(tmp_path, database, *documents, rights={"settle": "1h"})
    fill(place)
    path = place.config.pipeline.folder / "open" / ".lock"
    with path.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        request = place.submit("ann")
        make_worker(place).run_once()
        shown = place.book.show(request)
        assert shown is not None
        (row,) = shown[1]
        assert (row.status, row.trouble, row.attempts) == ("INIT", "views-running", 0)
        assert row.next_at - row.updated > timedelta(minutes=59)
        assert place.events.topic("vitals").next_offset == 4
        assert len(list(place.events.topic("vitals").read())) == 2
    assert place.erase("ann").outcome is Outcome.DONE


@pytest.mark.needs("postgresql")
def test_people_who_are_erased_at_once_do_not_come_back(database: Database, tmp_path: Path) -> None:
    place = Installation(tmp_path, database, Document("stream", "vitals", STREAM), DOCUMENTS[2])
    people = [f"p{number}" for number in range(6)]
    written = [json.dumps({"pid": who, "pulse": it}) for it in range(4000) for who in people]
    path = _publish(place, "open", "".join(f"{it}\n" for it in (*written, '{"pid":"bob"}')))
    for who in people:
        place.submit(who, who)
    make_worker(place).run_once()
    assert path.read_text() == '{"pid":"bob"}\n'
    for who in people:
        counts = {it["place"]: it for it in place.evidence(who, who).content["erased"]}
        assert counts["view open"]["rows"] == 4000


@pytest.mark.needs("postgresql")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("0.json", '{"pid":"ann"}\n{"pid'),
        ("0.json", "7\n"),
        ("0.parquet", "nonsense"),
        ("0.avro", "nonsense"),
        ("log", "ann\n"),
    ],
)
def test_a_damaged_file_fails_one_request_and_stops_no_worker(
    database: Database, tmp_path: Path, name: str, content: str
) -> None:
    place = Installation(tmp_path, database, Document("stream", "vitals", STREAM), DOCUMENTS[2])
    place.record("vitals", {"pid": "ann"})
    if name == "log":
        (segment,) = place.events.topic("vitals").segments()
        segment.write_bytes(content.encode() + segment.read_bytes())
    else:
        _publish(place, "open", content, name)
    request = place.submit("ann")
    make_worker(place).run_once()
    shown = place.book.show(request)
    assert shown is not None
    assert [it.trouble for it in shown[1]] == ["erasure-unavailable"]
    assert place.service.book.evidence(request) == []


@pytest.mark.needs("postgresql")
def test_what_nobody_can_look_through_remains_and_is_listed(
    database: Database, tmp_path: Path
) -> None:
    fields = [{"name": "pid", "type": "double"}]
    shares = Document("stream", "shares", {"fields": fields, "subject": "pid"})
    place = Installation(tmp_path, database, Document("stream", "vitals", STREAM), shares)
    _publish(place, "dropped", '{"pid":"token-of-ann"}\n')
    assert place.erase("ann").outcome is Outcome.DONE
    left = {it["place"]: it["reason"] for it in place.evidence("ann").content["remains"]}
    assert left["view dropped"] == "files of a view that no definition describes"
    assert left["shares"] == "the stream does not say whom records are about"


@pytest.mark.needs("postgresql", "mosquitto")
def test_a_worker_on_another_machine_than_the_files_says_so(
    database: Database, tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    place = Installation(tmp_path, database, DOCUMENTS[0], DOCUMENTS[2], **settings(mosquitto.port))
    assert place.erase("ann").outcome is Outcome.DONE
    left = {it["place"]: it["reason"] for it in place.evidence("ann").content["remains"]}
    assert "no such folder" in left["event log"]
    assert "no such folder" in left["views"]
    place.record("vitals", {"pid": "ben"})
    assert place.erase("ben", "other").outcome is Outcome.DONE
    remains = place.evidence("ben", "other").content["remains"]
    assert "event log" not in {it["place"] for it in remains}


@pytest.mark.needs("postgresql")
def test_what_a_view_published_before_it_was_changed_goes_too(
    database: Database, tmp_path: Path
) -> None:
    place = Installation(tmp_path, database, Document("stream", "vitals", STREAM), DOCUMENTS[2])
    place.events.topic("vitals-open").append([b'{"pid":"ann"}', b'{"pid":"bob"}'], [b"0", b"0"])
    assert place.erase("ann").outcome is Outcome.DONE
    left = [it.value for it in place.events.topic("vitals-open").read()]
    assert left == [b'{"pid":"bob"}']


def _publish(place: Installation, view: str, content: str, name: str = "0.json") -> Path:
    data = place.config.pipeline.folder / view / "data"
    data.mkdir(parents=True)
    path = data / name
    path.write_text(content)
    return path


@pytest.mark.needs("mosquitto")
def test_detection_forgets_who_is_erased(tmp_path: Path, mosquitto: MosquittoServer) -> None:
    documents = read_text(WARD.replace("WINDOW", "1h")).documents

    def knock(gateway: GatewayThread, *people: str) -> None:
        with login(gateway.port, "sensor") as sensor:
            for who in people:
                sensor.publish(f"ward/{who}/knock", b"{}", qos=1)

    def kept(database: Database) -> str:
        data, _, batches = DetectionStore(database, "test", seconds=1).load()
        state = b"" if data is None else zlib.decompress(data[4 + int.from_bytes(data[:4]) :])
        return str((state, batches))

    def wait_for(done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def find(database: Database) -> list[str]:
        with database.read() as connection:
            return sorted(connection.scalars(sa.select(situations_table.c.subject)))

    with ExitStack() as stack:
        gateway = stack.enter_context(open_ward(tmp_path / "one", mosquitto.port, window="1h"))
        url = gateway.config.store.connection_url()
        database = stack.enter_context(Database.open(url))
        signer = Signer.open(gateway.config.audit.signing_key)
        more = {"signer": signer, **settings(mosquitto.port)}
        place = Installation(tmp_path, database, *documents, **more)
        knock(gateway, "ann", "bob", "eve", "eve")
        wait_for(lambda: find(database) == ["eve"] and '"bob"' in kept(database))
        for who in ("ann", "eve"):
            request, worker = place.submit(who, who), make_worker(place)
            wait_for(lambda: worker.run_once() >= 0 and _is_done(place, request))  # noqa: B023
        erased = {it["place"]: it for it in place.evidence("ann", "ann").content["erased"]}
        assert erased["event detection"]["rows"] > 0
        left = {it["place"]: it["reason"] for it in place.evidence("eve", "eve").content["remains"]}
        assert "forgotten when it has ended" in left["event detection"]
        assert '"ann"' not in kept(database)
        assert '"bob"' in kept(database)
        # Each has knocked once now, as far as anybody remembers; and a situation stays.
        knock(gateway, "ann", "bob")
        wait_for(lambda: find(database) == ["bob", "eve"])
        stack.pop_all().close()
    with Database.open(url) as database:
        place = Installation(tmp_path, database, *documents, **more)
        request = place.submit("ann", "again")
        make_worker(place).run_once()
        shown = place.book.show(request)
        assert shown is not None
        assert [it.trouble for it in shown[1]] == ["erasure-unavailable"]
        # Where nothing is detected any more, nobody has to be asked.
        assert '"bob"' in kept(database)
        bare = Installation(tmp_path, database, **more)
        assert bare.erase("ann", "bare").outcome is Outcome.DONE
        assert '"bob"' not in kept(database)


def _is_done(place: Installation, request: str) -> bool:
    shown = place.book.show(request)
    return shown is not None and shown[0].status == RequestStatus.COMPLETED

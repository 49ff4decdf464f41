"""What Penstock keeps about a person, as a package for the front end that asked."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import publish

from penstock.components.mosquitto import MosquittoServer
from penstock.errors import DeniedError, UsageError
from penstock.model.document import Document
from penstock.rights.broker import PrivacyBroker
from penstock.rights.dispatch.message import Notification, Outcome
from penstock.rights.export import MANIFEST, ExportService, hand_over
from penstock.store.consent import Choice, ConsentBook
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.requests import NewRequest
from tests.support.rights.erasing import STREAM, Installation
from tests.support.rights.office import HOUR, SECRET

DOCUMENTS = (
    Document("stream", "vitals", STREAM | {"from": ["home/+pid/vitals"]}),
    Document("view", "open", {"stream": "vitals", "format": "json"}),
    Document("view", "told", {"stream": "vitals", "format": "topic"}),
    Document("control", "export-me", {"stateful": False, "operation": "export"}),
    Document(
        "control-publisher", "portal", {"subjects": ["user:portal"], "controls": ["export-me"]}
    ),
    Document(
        "control-subscriber", "exporter",
        {"control": "export-me", "delivery": "built-in", "uri": "penstock:export"},
    ),
)  # fmt: skip


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    with Database.open(url) as opened:
        yield opened


def read(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as package:
        return {
            name: [json.loads(line) for line in package.read(name).decode().splitlines()]
            for name in package.namelist()
        }


@pytest.mark.needs("mosquitto", "postgresql")
def test_a_package_has_all_of_one_person_and_is_handed_over_once(
    database: Database, tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    broker = {"mode": "external", "port": mosquitto.port}
    place = Installation(tmp_path, database, *DOCUMENTS, broker=broker)
    rows = [{"pid": who, "ward": "north", "pulse": 7} for who in ("ann", "anna", "ann")]
    place.record("vitals", *rows)
    place.record("vitals-told", *rows)
    data = place.config.pipeline.folder / "open" / "data"
    data.mkdir(parents=True)
    (data / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for who in ("ann", "anna"):
        publish.single(f"home/{who}/vitals", b"{}", qos=1, retain=True, port=mosquitto.port)
        place.book.profiles.set_contact("app", who, {"email": f"{who}@example.com"})
    marks = SubjectMarks(SECRET)
    ConsentBook(database, marks).choose(Choice.OPT_OUT, ["ann"], "marketing")
    wanted = NewRequest(
        "portal", "k", "export-me", "export", "ann", (), {"exporter": HOUR}, ()
    )  # fmt: skip
    (made,) = place.book.submit([wanted], 1)
    service = ExportService(
        place.config, place.audit, database, place.people, marks, place.book.profiles
    )
    told = Notification(made.id, "exporter", "export-me", "export", "ann", (), 1)
    for _ in range(2):  # told twice, it does the same
        assert service.run(told, place.definitions, lambda: None).outcome is Outcome.DONE
    package = place.config.rights.package(made.id)
    assert package.stat().st_mode & 0o777 == 0o600
    assert package.parent.stat().st_mode & 0o777 == 0o700
    found = read(package)
    (manifest,) = found.pop(MANIFEST)
    assert {it["name"]: it["records"] for it in manifest["files"]} == {
        "streams/vitals.jsonl": 2, "views/open.jsonl": 2, "views/told.jsonl": 2,
        "retained.jsonl": 1, "choices.jsonl": 1, "contacts.jsonl": 1,
    }  # fmt: skip
    assert set(found) == {it["name"] for it in manifest["files"]}
    assert [it["record"] for it in found["streams/vitals.jsonl"]] == [rows[0], rows[2]]
    assert found["views/told.jsonl"] == found["views/open.jsonl"] == [rows[0], rows[2]]
    assert found["contacts.jsonl"] == [{"kept_by": "app", "email": "ann@example.com"}]
    assert found["choices.jsonl"][0]["purposes"] == ["marketing"]
    assert "anna" not in json.dumps(found)
    (proof,) = service.book.evidence(made.id)
    assert proof.is_intact
    assert "ann" not in json.dumps(proof.content)
    # Who did not ask gets nothing, whomever they name.
    office = PrivacyBroker(place.book, place.audit, place.people, place.definitions, 1)
    for user, subject in (("app", "ann"), ("portal", "anna"), ("stranger", "ann")):
        with pytest.raises(DeniedError):
            office.find_own(user, made.id, subject)
    assert office.find_own("portal", made.id, "ann").id == made.id
    target = tmp_path / "given" / "ann.zip"
    record = partial(office.note_handed_over, "portal", made.id, "ann")
    hand_over(place.config, made.id, target, record)
    assert target.stat().st_mode & 0o777 == 0o600
    assert MANIFEST in read(target)
    assert not package.exists()
    with pytest.raises(UsageError, match="handed over"):
        hand_over(place.config, made.id, target, record)


@pytest.mark.needs("postgresql")
def test_erasure_removes_a_package_that_waits(database: Database, tmp_path: Path) -> None:
    place = Installation(tmp_path, database, Document("stream", "vitals", STREAM))
    packages = {who: place.config.rights.package(place.submit(who, who)) for who in ("ann", "bob")}
    for path in packages.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PK")
    assert place.erase("ann").outcome is Outcome.DONE
    assert not packages["ann"].exists()
    assert packages["bob"].exists()
    counts = {it["place"]: it for it in place.evidence("ann").content["erased"]}
    assert counts["exports"]["packages"] == 1

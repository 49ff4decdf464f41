"""What becomes of a request under everything that a service may do: a table, and walks.

| The service …                  | Its status     | The request | Told      |
| answers 202                    | SENT           | INPROGRESS  | once      |
| answers 200, synchronous       | COMPLETED      | COMPLETED   | once      |
| answers wrongly, is down, slow | INIT, then SENDFAILED | SOMEFAILED | with backoff |
| acknowledges twice             | ACKNOWLEDGED   | INPROGRESS  | once      |
| acknowledges after completing  | COMPLETED      | COMPLETED   | once      |
| is overdue                     | SENT, then FAILED | SOMEFAILED | again   |
| completes late                 | COMPLETED      | COMPLETED   |           |
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.definitions import DefinitionSet
from penstock.model.document import Document
from penstock.store.database import Database
from penstock.store.rights.requests import NewRequest
from penstock.store.rights.tables import ProgressEvent, ProgressStatus, RequestStatus
from tests.support.rights.office import HOUR, Office
from tests.support.rights.service import Service, serving

ACKNOWLEDGED, COMPLETED = ProgressEvent.ACKNOWLEDGED, ProgressEvent.COMPLETED


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        yield opened


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as running:
        yield running


@pytest.mark.parametrize(
    ("delivery", "answer", "steps", "service_status", "request_status", "told"),
    [
        ("http", 202, ["work"], "SENT", "INPROGRESS", 1),
        ("http", 200, ["work"], "SENT", "INPROGRESS", 1),
        ("http-sync", 200, ["work"], "COMPLETED", "COMPLETED", 1),
        ("http-sync", 202, ["work"], "SENT", "INPROGRESS", 1),
        ("http", 500, ["work"], "INIT", "INIT", 1),
        ("http", 500, ["work", "work", "work"], "SENDFAILED", "SOMEFAILED", 3),
        ("http", 500, [ACKNOWLEDGED, "work", "work", "work"], "FAILED", "SOMEFAILED", 3),
        ("http", 202, ["work", ACKNOWLEDGED, ACKNOWLEDGED], "ACKNOWLEDGED", "INPROGRESS", 1),
        ("http", 202, [ACKNOWLEDGED, "work"], "ACKNOWLEDGED", "INPROGRESS", 1),
        ("http", 202, ["work", COMPLETED, ACKNOWLEDGED], "COMPLETED", "COMPLETED", 1),
        ("http", 202, ["work", COMPLETED, COMPLETED, "late"], "COMPLETED", "COMPLETED", 1),
        ("http", 202, [COMPLETED, "work"], "COMPLETED", "COMPLETED", 0),
        ("http", 202, ["work", "late"], "SENT", "INPROGRESS", 2),
        ("http", 202, ["work", ACKNOWLEDGED, "late"], "ACKNOWLEDGED", "INPROGRESS", 2),
        ("http", 202, ["work", "late", "late"], "FAILED", "SOMEFAILED", 2),
        ("http", 202, ["work", "late", "late", ACKNOWLEDGED], "FAILED", "SOMEFAILED", 2),
        ("http", 202, ["work", "late", "late", COMPLETED], "COMPLETED", "COMPLETED", 2),
        ("http", 202, ["work", "late", "late", "redrive", "work"], "SENT", "INPROGRESS", 3),
        ("http", 500, ["work", "work", "work", COMPLETED], "COMPLETED", "COMPLETED", 3),
        ("http", 202, ["work", COMPLETED, "redrive", "work"], "COMPLETED", "COMPLETED", 1),
    ],
)
def test_the_table(
    database: Database, service: Service, delivery: str, answer: int,
    steps: list[str | ProgressEvent], service_status: str, request_status: str, told: int,
) -> None:  # fmt: skip
    service.status = answer
    service.told.clear()
    office = Office(database, service.uri, delivery=delivery)
    for step in steps:
        take(office, step)
    assert office.look()[:2] == (request_status, service_status)
    assert len(service.told) == told


def take(office: Office, step: str | ProgressEvent) -> None:
    match step:
        case ProgressEvent():
            office.book.note(office.accepted.id, "crm", step)
        case "late":
            office.work(minutes=61)
        case "redrive":
            office.book.redrive(office.book.lost())
        case _:
            office.work(seconds=30)


STEPS = st.sampled_from([ACKNOWLEDGED, COMPLETED, "late", "redrive", "work", "down", "up"])
RANKS = {
    "INIT": 0, "SENT": 1, "ACKNOWLEDGED": 2, "SENDFAILED": 3, "FAILED": 3, "INPROGRESS": 1,
    "SOMEFAILED": 3, "COMPLETED": 4,
}  # fmt: skip


@settings(max_examples=15)
@given(st.lists(STEPS, max_size=12))
def test_no_walk_goes_backwards_and_completed_is_the_end(
    service: Service, tmp_path_factory: pytest.TempPathFactory, steps: list[str | ProgressEvent]
) -> None:
    service.status = 202
    folder = tmp_path_factory.mktemp("walk")
    with Database.open(f"sqlite:///{folder / 'store.db'}") as database:
        office = Office(database, service.uri)
        before = office.look()
        for step in steps:
            if step in {"down", "up"}:
                service.status = 500 if step == "down" else 202
                continue
            take(office, step)
            after = office.look()
            if step != "redrive":
                assert RANKS[after[0]] >= RANKS[before[0]]
                assert RANKS[after[1]] >= RANKS[before[1]]
            if step is COMPLETED:
                assert after[:2] == (RequestStatus.COMPLETED, ProgressStatus.COMPLETED)
            assert (after[0] == "COMPLETED") == (after[1] == "COMPLETED")
            assert (after[0] == "SOMEFAILED") == (after[1] in {"FAILED", "SENDFAILED"})
            before = after


def test_each_toggle_is_told_without_state_and_the_last_one_holds(
    database: Database, service: Service
) -> None:
    service.status, service.told = 202, []
    office = Office(database, service.uri)
    office.definitions = DefinitionSet.build(
        [
            Document("control", "ads", {"stateful": True}),
            Document("control", "forget", {"stateful": False, "operation": "delete"}),
            Document("control-subscriber", "crm", {
                "subjects": ["user:x"], "control": "ads", "uri": service.uri,
            }),
        ]
    )  # fmt: skip
    office.work()
    service.told.clear()
    for number, choice in enumerate(["opt-out", "opt-in", "opt-out"]):
        wanted = NewRequest("app", f"t{number}", "ads", choice, "ann", (), {"crm": HOUR}, ())
        office.book.submit([wanted], 1)
    office.work()
    assert [told["action"] for told, _, _ in service.told] == ["changed"] * 3
    assert all("opt" not in body.decode() for _, _, body in service.told)
    assert office.book.profiles.state_of("ann", "ads", "", "opt-in") == "opt-out"

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from penstock.cep.context import decode_snapshot
from penstock.gateway.detection.leadership import ErasureRequests, SituationRequests
from penstock.gateway.detection.persistence import unpack_state
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.signatures import Signer
from penstock.store.detection.erasures import DetectionErasures
from penstock.store.detection.situations import Situations
from penstock.store.detection.tables import Request, State, requests_table
from tests.support.gateway.detection import Detecting, detecting, run, ward_program

PEOPLE = Pseudonyms(bytes(32))
ASKED = Request(
    request="r1",
    at=datetime(2026, 3, 1, tzinfo=UTC),
    scenario="alert",
    subject="p",
    situation="Alert",
    actor="ann",
    reason="seen",
    state=State.READY,
    approver=None,
    settled=None,
    trouble="",
)


def requests_of(detection: Detecting, *, two_persons: bool = False) -> SituationRequests:
    return SituationRequests(
        detection.host,
        cast("Situations", None),  # only polling reads them
        detection.run_in_thread,
        two_persons=two_persons,
        history=3600,
    )


def put(detection: Detecting, request: Request) -> Request:
    """Have a request in the store, where the journal settles it."""
    values: dict[str, Any] = {name: getattr(request, name) for name in Request.__slots__}
    with detection.database.write("situations") as connection:
        connection.execute(sa.insert(requests_table).values(values))
    return request


def settled(detection: Detecting, request: str) -> tuple[str, str]:
    query = sa.select(requests_table).where(requests_table.c.request == request)
    with detection.database.read() as connection:
        row = connection.execute(query).one()
    return row.state, row.trouble


def test_a_request_takes_effect_and_is_settled_with_its_transition(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path) as detection:
            requests = requests_of(detection)
            requests.carry_out(put(detection, replace(ASKED, hold=60_000)))
            assert detection.host.board.current("alert", "p") == "Alert"
            assert detection.listener.transitions == [("alert", "p", None, "Alert", "manual")]
            assert settled(detection, "r1") == (State.READY, "")
            await detection.host.journal.finish()
            assert settled(detection, "r1") == (State.DONE, "")
            assert detection.history() == [("p", "Alert", "manual")]
            # Held by hand: no event ends it, time does.
            detection.offer("ward/p/off")
            assert detection.host.board.current("alert", "p") == "Alert"
            detection.time += 60
            detection.host.catch_up(detection.host.clock.now())
            assert detection.host.board.current("alert", "p") is None

    run(work)


@pytest.mark.parametrize(
    ("request_", "two_persons", "reason"),
    [
        (replace(ASKED, situation=None), False, "there is nothing to end"),
        (replace(ASKED, scenario="unknown"), False, "no scenario"),
        (ASKED, True, "a second person has not approved it"),
        (replace(ASKED, approver="ann"), True, "a second person has not approved it"),
    ],
)
def test_a_refused_request_is_settled_with_the_reason(
    tmp_path: Path,
    request_: Request,
    two_persons: bool,  # noqa: FBT001
    reason: str,
) -> None:
    async def work() -> None:
        async with detecting(tmp_path) as detection:
            requests = requests_of(detection, two_persons=two_persons)
            requests.carry_out(put(detection, request_))
            await detection.host.journal.finish()
            state, trouble = settled(detection, "r1")
            assert state == State.FAILED
            assert reason in trouble
            assert detection.listener.transitions == []

    run(work)


def test_an_approved_request_of_two_persons_takes_effect(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path) as detection:
            requests = requests_of(detection, two_persons=True)
            requests.carry_out(put(detection, replace(ASKED, approver="bob")))
            assert detection.host.board.current("alert", "p") == "Alert"

    run(work)


def test_requests_wait_for_the_end_of_a_reload(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path) as detection:
            requests = requests_of(detection)
            put(detection, ASKED)
            detection.host.follow(ward_program("1h"))
            requests.carry_out(ASKED)
            assert detection.listener.transitions == []
            await detection.host.reload.wait()
            requests.carry_out(ASKED)
            assert detection.host.board.current("alert", "p") == "Alert"

    run(work)


def test_people_are_forgotten_in_memory_snapshot_and_journal(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path, ward_program("1h")) as detection:
            host = detection.host
            situations = Situations(
                detection.database, AuditLog(detection.database, Signer.generate()), PEOPLE
            )
            requests = ErasureRequests(host, situations.erasures, detection.run_in_thread)
            detection.offer("ward/p/pulse", 120)
            detection.offer("ward/q/knock")
            detection.offer("ward/r/knock")
            for number, who in enumerate("pq"):
                situations.erasures.ask(f"r{number}", who, ["pid"])
            assert situations.erasures.has_state()
            assert await requests.carry_out() == 1
            # Somebody in a situation is forgotten when that has ended, and keeps it until then.
            assert detection.host.board.current("alert", "p") == "Alert"
            assert not situations.erasures.ask("r0", "p", []).is_settled
            assert situations.erasures.ask("r1", "q", []).is_settled
            data, _, batches = detection.store.load()
            assert data is not None
            kept = json.dumps(decode_snapshot(unpack_state(data, host.program).engine.save()))
            assert '"q"' not in kept + str(batches)
            assert '"r"' in kept
            assert host.engine is not None
            assert '"q"' not in json.dumps(decode_snapshot(host.engine.save()))
            detection.offer("ward/q/knock")
            detection.offer("ward/r/knock")
            assert host.board.current("knocking", "q") is None
            assert host.board.current("knocking", "r") == "Knocked"
            detection.offer("ward/p/off")
            assert await requests.carry_out() == 1
            assert situations.erasures.ask("r0", "p", []).is_settled
            assert await requests.carry_out() == 0

    run(work)


def test_of_whom_nothing_is_kept_only_the_journal_is_replaced(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path, ward_program("1h")) as detection:
            host, erasures = detection.host, DetectionErasures(detection.database)
            requests = ErasureRequests(host, erasures, detection.run_in_thread)
            detection.offer("ward/p/off")  # an event that nothing remembers
            detection.offer("ward/r/knock")
            await host.journal.finish()
            assert '"p"' in str(detection.store.load())
            engine = host.engine
            erasures.ask("r1", "p", ["pid"])
            assert await requests.carry_out() == 1
            assert erasures.ask("r1", "p", []).is_settled
            assert '"p"' not in str(detection.store.load())
            # Nobody waited for it: it is the same engine, which still knows what it knew.
            assert host.engine is engine
            detection.offer("ward/r/knock")
            assert host.board.current("knocking", "r") == "Knocked"

    run(work)

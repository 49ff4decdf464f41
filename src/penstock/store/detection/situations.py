"""Situations of emergency scenarios: what holds, how it came about, and requests by hand.

    request ──▶ open ──▶ approved by somebody else ──▶ ready ──▶ done, or failed with the trouble
       │          └──▶ withdrawn, expired                ▲          └── by who detects
       └── where one person suffices ────────────────────┘

Rules that hold here:
- History is written by who detects, together with the steps it follows from (`journal`);
  here it is read. A request changes nothing by itself.
- Every request, approval and withdrawal is in the audit log, in the same transaction. The
  log has no place for free text: the reason is kept here, the log holds its digest.
- Whoever made a request cannot approve it. What nobody carried out in time has expired.
- Until when somebody is held is told by the request that put them there.
- Where no gateway detects, no situation is known: questions get the answer that a gateway
  would give (`SituationsUnknownError`). Who detects and what it found are read in one
  transaction, behind the gateway by the few milliseconds that a batch of its journal waits.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from penstock.cep.scenario_instances import check_hold
from penstock.clock import utc_now
from penstock.errors import DeniedError, UsageError, quote
from penstock.policy.access.emergencies import SituationsUnknownError
from penstock.store.audit.entry import Detail, Entry, Outcome, allow_detail
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.database import Database
from penstock.store.detection.erasures import DetectionErasures
from penstock.store.detection.journal import LeaderRecord, read_leader
from penstock.store.detection.tables import (
    AREA,
    LED_HERE,
    REQUEST_BYTES,
    Cause,
    Request,
    Standing,
    State,
    Transition,
    as_stored,
    requests_table,
    situations_table,
    transitions_table,
)
from penstock.store.schema import ACTOR_LENGTH, NAME_LENGTH, REASON_LENGTH

REQUEST_LIFE: Final = timedelta(minutes=15)
MOST: Final = 1000
_NAME: Final = re.compile(r"\w[\w .:/+*#-]{0,199}")

allow_detail("scenario", Detail.NAME)
allow_detail("hold_seconds", Detail.COUNT)


class Situations:
    """Situations, history and requests in a database. Threads may share it."""

    def __init__(
        self,
        database: Database,
        log: AuditLog,
        people: Pseudonyms,
        *,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.erasures = DetectionErasures(database, clock=clock)
        """What detection is asked to forget, by the same way as requests."""
        self._database = database
        self._log = log
        self._people = people
        self._clock = clock

    # --- reading ---

    def current(self, scenario: str | None = None, subject: str | None = None) -> list[Standing]:
        """Return the situations that hold, of one scenario or subject or of all."""
        table, step, asked = situations_table, transitions_table, requests_table
        query = (
            sa.select(table, asked.c.hold)
            .outerjoin(step, LED_HERE)
            .outerjoin(asked, step.c.request == asked.c.request)
            .order_by(table.c.scenario, table.c.subject, step.c.number)
        )
        with self._database.read() as connection:
            rows = connection.execute(_narrow(query, table, scenario, subject)).all()
        # Of several steps of one moment the last one led to where the subject stands.
        return list({(row.scenario, row.subject): _standing(row) for row in rows}.values())

    def history(
        self,
        scenario: str | None = None,
        subject: str | None = None,
        *,
        before: int | None = None,
        limit: int = 100,
    ) -> list[Transition]:
        """Return transitions, the newest first; `before` is the number to go on from."""
        table, asked = transitions_table, requests_table
        query = (
            sa.select(table, asked.c.actor, asked.c.approver, asked.c.reason, asked.c.hold)
            .outerjoin(asked, table.c.request == asked.c.request)
            .order_by(table.c.number.desc())
            .limit(min(limit, MOST))
        )
        if before is not None:
            query = query.where(table.c.number < before)
        with self._database.read() as connection:
            rows = connection.execute(_narrow(query, table, scenario, subject)).all()
        return [_transition(row) for row in rows]

    def requests(self, *, settled: bool = False, limit: int = 100) -> list[Request]:
        """Return requests that wait, with `settled` all of them; the newest first."""
        table = requests_table
        query = sa.select(table).order_by(table.c.at.desc()).limit(min(limit, MOST))
        if not settled:
            query = query.where(table.c.state.in_([State.OPEN, State.READY]))
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [self._aged(_request(row)) for row in rows]

    def find(self, request: str) -> Request:
        """Return a request; raise `UsageError` where there is none of that number."""
        with self._database.read() as connection:
            return self._aged(_find(connection, request))

    def ready(self) -> list[Request]:
        """Return the requests that can be carried out, the oldest first."""
        table = requests_table
        query = sa.select(table).where(table.c.state == State.READY).order_by(table.c.at)
        with self._database.read() as connection:
            found = [self._aged(_request(row)) for row in connection.execute(query)]
        return [it for it in found if it.state is State.READY]

    # --- requests ---

    def request(
        self,
        scenario: str,
        subject: str,
        situation: str | None,
        *,
        actor: str,
        reason: str,
        two_persons: bool = False,
        hold: int = 0,
    ) -> Request:
        """Ask for a situation, or for its end (None); with `two_persons` it must be approved.

        With `hold`, in milliseconds, no event is to move the subject for that long.
        """
        check_hold(situation, hold)
        for what, text, most in (
            ("scenario", scenario, NAME_LENGTH),
            ("subject", subject, NAME_LENGTH),
            ("situation", situation or "none", NAME_LENGTH),
            ("actor", actor, ACTOR_LENGTH),
            ("reason", reason, REASON_LENGTH),
        ):
            if not 0 < len(text.strip()) <= len(text) <= most or not text.isprintable():
                raise UsageError(
                    f"the {what} {quote(text)} cannot be recorded",
                    fix=f"write 1 to {most} printable characters",
                )
        made = Request(
            secrets.token_hex(REQUEST_BYTES),
            self._clock(),
            scenario,
            subject,
            situation,
            actor,
            reason,
            State.OPEN if two_persons else State.READY,
            None,
            None,
            "",
            hold,
        )
        with self._database.write(AREA) as connection:
            connection.execute(sa.insert(requests_table).values(_values(made)))
            self._record(connection, "situation.requested", made, actor)
        return made

    def approve(self, request: str, *, actor: str) -> Request:
        """Approve what somebody else asked for; it can be carried out from now on."""
        return self._turn(request, State.READY, "situation.approved", actor)

    def withdraw(self, request: str, *, actor: str) -> Request:
        """Take back a request that was not carried out yet, one's own or another's."""
        return self._turn(request, State.WITHDRAWN, "situation.withdrawn", actor)

    def _turn(self, request: str, target: State, kind: str, actor: str) -> Request:
        denial: DeniedError | None = None
        with self._database.write(AREA) as connection:
            held = self._aged(_find(connection, request))
            waits = {State.OPEN} if target is State.READY else {State.OPEN, State.READY}
            if held.state not in waits:
                raise UsageError(
                    f"the request {quote(request)} is {held.state}", fix="make a new request"
                )
            approver = actor if target is State.READY else held.approver
            if target is State.READY and actor == held.actor:
                denial = DeniedError(
                    "whoever made a request cannot approve it", fix="ask a second person"
                )
                self._record(connection, kind, held, actor, Outcome.DENIED)
            else:
                connection.execute(
                    requests_table.update()
                    .where(requests_table.c.request == request)
                    .values(state=target, approver=approver)
                )
                self._record(connection, kind, held, actor)
        if denial is not None:
            raise denial
        return self.find(request)

    # --- keeping it small ---

    def forget(self, before: datetime) -> int:
        """Delete history and requests from before a moment; what holds now stays.

        So does what tells until when somebody is held.
        """
        step, asked = transitions_table, requests_table
        holds = (
            sa.select(step.c.request)
            .join(situations_table, LED_HERE)
            .join(asked, step.c.request == asked.c.request)
            .where(asked.c.hold > 0)
        )
        with self._database.write(AREA) as connection:
            kept = connection.scalars(holds).all()
            spent = sa.or_(step.c.request.is_(None), step.c.request.not_in(kept))
            gone = connection.execute(step.delete().where(step.c.at < before, spent)).rowcount
            connection.execute(
                asked.delete().where(asked.c.at < before, asked.c.request.not_in(kept))
            )
        return gone

    # --- inside ---

    def _aged(self, request: Request) -> Request:
        """Return a request as it stands now: one that waited for too long has expired."""
        waits = request.state in {State.OPEN, State.READY}
        if not waits or self._clock() - request.at <= REQUEST_LIFE:
            return request
        return replace(request, state=State.EXPIRED)

    def _record(
        self,
        connection: Connection,
        kind: str,
        request: Request,
        actor: str,
        outcome: Outcome = Outcome.DONE,
    ) -> None:
        details = name_details(scenario=request.scenario, situation=request.situation)
        if request.hold:
            details["hold_seconds"] = request.hold // 1000
        digest = hashlib.sha256(f"{request.request}\0{request.reason}".encode()).hexdigest()
        entry = Entry.make(
            kind,
            outcome,
            actor=self._people.person(actor),
            subject=self._people.person(request.subject),
            request=request.request,
            digest=digest,
            **details,
        )
        self._log.append_within(connection, [entry])


def name_details(**names: str | None) -> dict[str, Any]:
    """Return the names that the audit log has a place for; the history has all of them."""
    return {key: it for key, it in names.items() if it is not None and _NAME.fullmatch(it)}


def _narrow(
    query: sa.Select[Any], table: Table, scenario: str | None, subject: str | None
) -> sa.Select[Any]:
    if scenario is not None:
        query = query.where(table.c.scenario == scenario)
    if subject is not None:
        query = query.where(table.c.subject == as_stored(subject))
    return query


def _find(connection: Connection, request: str) -> Request:
    query = sa.select(requests_table).where(requests_table.c.request == request)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise UsageError(
            f"there is no request {quote(request)}", fix="`penstock situation requests` lists them"
        )
    return _request(row)


def _standing(row: sa.Row[Any]) -> Standing:
    until = row.since + timedelta(milliseconds=row.hold) if row.hold else None
    return Standing(row.scenario, row.subject, row.situation, row.since, until)


def _request(row: sa.Row[Any]) -> Request:
    return replace(Request(*tuple(row)), state=State(row.state))


def _transition(row: sa.Row[Any]) -> Transition:
    return replace(Transition(*tuple(row)), cause=Cause(row.cause))


def _values(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in Request.__slots__}


class LiveSituations:
    """Answers what decisions ask about emergencies."""

    def __init__(self, standing: Iterable[Standing], trouble: str = "") -> None:
        self.standing: Sequence[Standing] = tuple(standing)
        """What holds; of use only where there is no `trouble`."""
        self.trouble = trouble
        """Why situations are not known, if they are not."""
        self._held = {(it.scenario, it.subject): it for it in self.standing}

    def find(self, scenario: str, subject: str) -> Standing | None:
        """Return what holds for a scenario's subject, and since when."""
        if self.trouble:
            raise SituationsUnknownError(self.trouble)
        return self._held.get((scenario, as_stored(subject)))

    def current(self, scenario: str, subject: str) -> str | None:
        """Return the situation of a scenario's subject, None where it is inactive."""
        found = self.find(scenario, subject)
        return None if found is None else found.situation

    def occupied(self, scenario: str) -> AbstractSet[str]:
        """Return the situations that some subject of a scenario is in."""
        if self.trouble:
            raise SituationsUnknownError(self.trouble)
        return {it.situation for it in self.standing if it.scenario == scenario}

    def cases(self, scenario: str) -> Iterable[tuple[str, str]]:
        """Return the subjects of a scenario that are in some situation, with it."""
        if self.trouble:
            raise SituationsUnknownError(self.trouble)
        return [(it.subject, it.situation) for it in self.standing if it.scenario == scenario]

    @property
    def changes(self) -> int:
        """What holds never changes here."""
        return 0


def read_live(database: Database, now: datetime) -> LiveSituations:
    """Return what holds, with what a gateway says that has not lost sight of it."""
    table = situations_table
    with database.read() as connection:
        leader = read_leader(connection)
        rows = connection.execute(
            sa.select(table).order_by(table.c.scenario, table.c.subject)
        ).all()
    return LiveSituations((Standing(*row) for row in rows), find_trouble(leader, now))


def find_trouble(leader: LeaderRecord | None, now: datetime) -> str:
    """Say why situations are not known, or nothing where they are."""
    if leader is None:
        return "no gateway has detected anything yet"
    if not leader.is_alive(now):
        return f"no gateway detects since {leader.held_until:%Y-%m-%d %H:%M:%S}"
    return leader.trouble

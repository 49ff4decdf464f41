"""Detection of events at this gateway: the engine, its timers, and what it knows.

    idle ──▶ `LeaderElection` claims, loads ──▶ detects ──▶ crashed, stalled, another claims ──▶ …
                │                             │
                │                     offer ──▶ authorised? ──▶ commit ──▶ board, journal,
                │                     timers ──────────────────────┘       actions, neighbours
                └──▶ another has the claim ──▶ the board is what it tells (`ReplicationFollower`)

Rules that hold here:
- One process detects for all that share a store. The others ask it, and know the situations
  from it (`sharing`). Whoever does neither knows no situations: the board is lost, and a
  message that could be an event is refused, because an event that nobody detects might be the
  end of an emergency.
- A step and all that follows from it happens at once (of what actions publish, the first
  fifty); its record is in the journal before the loop turns. What was in the journal is there
  again after a restart.
- Timers that are due come before everything that is decided later.
- An engine that raised an error is not asked again: it is made anew from what is durable.
- Changed definitions are taken over beside (`EngineReload`); what could be an event waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from penstock.cep import step_log
from penstock.cep.engine import Engine, PreparedStep
from penstock.cep.program import Program
from penstock.cep.step_result import StepResult, TransitionCause
from penstock.clock import boot_clock
from penstock.errors import PenstockError, UnavailableError, UsageError, quote
from penstock.gateway.clock import Clock
from penstock.gateway.detection.engine_reload import EngineReload
from penstock.gateway.detection.ignored_events import IgnoredEvents
from penstock.gateway.detection.journal import Journal
from penstock.gateway.detection.journal_batches import Keeping
from penstock.gateway.detection.leader_lease import LeaderLease
from penstock.gateway.detection.outbox import Outbox
from penstock.gateway.detection.snapshots import RestoredState
from penstock.gateway.detection.watched_topics import WatchedTopics
from penstock.gateway.replication.deduplication import (
    AppliedSubmissions,
    Fingerprint,
    Qos2Duplicates,
    SubmissionId,
)
from penstock.gateway.replication.follower import ReplicationFollower
from penstock.gateway.replication.leader import ReplicationLeader
from penstock.gateway.replication.messages import SituationRow
from penstock.policy.access.emergencies import SituationBoard
from penstock.store.detection import DetectionStore, Step
from penstock.store.situations import Cause, Request, as_stored
from penstock.telemetry import get_logger, metrics

_NEVER: Final = 1 << 62
_LONGEST_TIMER: Final = 3600.0

_DETECTING = metrics.gauge(
    "penstock_gateway_detecting", "1 while this gateway detects events, 0 while it does not."
).plain
_FAILURES = metrics.counter(
    "penstock_gateway_detection_failures",
    "Times that detection ended or could not begin, by cause.",
    cause=("crash", "store", "claim", "stall", "state", "link"),
)
_TRANSITIONS = metrics.counter(
    "penstock_gateway_transitions",
    "Steps of emergency scenarios, by what brought them about.",
    cause=tuple(Cause),
)
_log = get_logger("gateway")

Tell = Callable[[Step, Request | None], None]


class EngineHost:
    """The detection of one gateway, on its loop."""

    def __init__(
        self,
        store: DetectionStore,
        clock: Clock,
        *,
        lease: float,
        snapshot_bytes: int,
        run_in_thread: Callable[..., Awaitable[Any]],
        tell: Tell,
    ) -> None:
        self.board = SituationBoard()
        self.clock = clock
        self.engine: Engine | None = None
        self.trouble = ""
        """Why events are not detected, if they are not and should be."""
        self.stopping = False
        self.ignored = IgnoredEvents()
        self.watched_topics = WatchedTopics(Program())
        self.claim = LeaderLease(store, lease, run_in_thread)
        self.keeping = Keeping(self, store, run_in_thread)
        self.journal = Journal(self.keeping, snapshot_bytes)
        self.outbox = Outbox()
        self.applied_submissions = AppliedSubmissions()
        self.duplicates = Qos2Duplicates()
        self.leader = ReplicationLeader(
            knows=self._knows,
            takes=self._takes,
            situations=self._rows,
            next_deadline=self._next_deadline,
            journal=self.journal,
        )
        self.reload = EngineReload(self)
        self.follower = ReplicationFollower(self.board, self._lose_sight)
        self.act: Callable[[], None] = _do_nothing
        """Carries out what is new in the outbox, in the step in which it came up."""
        self.resume: Callable[[], None] = _do_nothing
        """Carries on with what was in the outbox before a restart."""
        self.program = Program()
        self.news = asyncio.Event()
        """Set when something has changed for whoever sees to it that events are detected."""
        self.run_in_thread = run_in_thread
        self._tell = tell
        self._due = _NEVER
        self._rings_at = _NEVER
        self._bell: asyncio.TimerHandle | None = None

    # --- questions ---

    @property
    def wanted(self) -> bool:
        """Whether there is anything to detect."""
        return bool(self.watched_topics) or bool(self.program.scenarios)

    @property
    def beside(self) -> tuple[Outbox, AppliedSubmissions, Qos2Duplicates]:
        """What is kept with the state of the engine."""
        return self.outbox, self.applied_submissions, self.duplicates

    def is_alive(self) -> bool:
        """Say whether events are detected now; a claim that ran out is noticed here."""
        if self.engine is None:
            return False
        if self.claim.is_held:
            return True
        self.invalidate("stall", "the store has not confirmed the claim in time")
        return False

    def catch_up(self, now: int) -> None:
        """Let the timers take effect that are due; notice what is not known any more."""
        if self.engine is None:
            self.follower.check_deadline()
        elif self.is_alive() and now >= self._due:
            self._ring()

    def _knows(self) -> bool:
        """Say whether the situations are known, so that others can be told."""
        return self.is_alive() and not self.reload.blind

    def _takes(self) -> bool:
        """Say whether messages can be looked at."""
        return self.is_alive() and not self.reload.busy

    # --- steps ---

    def commit(
        self,
        prepared: PreparedStep,
        record: bytes,
        submission: SubmissionId | None = None,
        fingerprint: Fingerprint | None = None,
    ) -> int:
        """Let an authorised packet take effect; return its ticket in the journal."""
        try:
            outcome = prepared.commit()
        except Exception as error:
            self.crash(error)
            raise UnavailableError("an event could not be processed") from error
        if submission is not None:
            self.applied_submissions.put(submission)
            record += b"\n" + submission.line()
        if fingerprint is not None:
            self.duplicates.put(fingerprint)
            record += b"\n" + fingerprint.line()
        ticket = self._take(outcome, record)
        if outcome.publications:
            self.act()
        return ticket

    def set(self, request: Request, *, two_persons: bool) -> None:
        """Carry out what somebody asked for, or say why not."""
        engine = self.engine
        if engine is None or self.reload.busy:
            return
        now = self.clock.now()
        try:
            subject = _find_subject(engine, request, two_persons=two_persons)
            outcome = engine.set_situation(
                request.scenario, subject, request.situation, now, request.hold
            )
        except PenstockError as error:
            self.journal.add(settled=[(request.request, error.message)])
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine is not asked again
            self.crash(error)
            return
        record = step_log.write_set(request.scenario, subject, request.situation, now, request.hold)
        self._take(outcome, record, request)
        if outcome.publications:
            self.act()

    def _ring(self) -> None:
        """Fire the timers that are due."""
        engine, now = self.engine, self.clock.now()
        self._rings_at = _NEVER
        if engine is None:
            return
        if now < self._due:
            self._arm(now)
            return
        if self.reload.busy:
            self.reload.go_blind()
            return
        try:
            outcome = engine.advance(now)
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine is not asked again
            self.crash(error)
            return
        self._take(outcome, step_log.write_time(now))
        if outcome.publications:
            self.act()

    def _take(self, outcome: StepResult, record: bytes, request: Request | None = None) -> int:
        """Take over what a step came to."""
        steps = []
        for it in outcome.transitions:
            self.board.move(it.scenario, it.subject, it.target)
            by_hand = it.cause is TransitionCause.HAND
            cause = Cause(it.cause.value)
            step = Step(
                it.at,
                it.scenario,
                it.subject,
                it.source,
                it.target,
                it.event,
                cause,
                request.request if by_hand and request is not None else None,
            )
            steps.append(step)
            self._note(step, request if by_hand else None)
        rows = [(it.scenario, it.subject, it.target) for it in steps]
        self.leader.tell(rows, self.deadline)
        self.outbox.put(outcome.publications)
        self._arm(outcome.at)
        return self.journal.add(record, steps, [(request.request, "")] if request else ())

    def _note(self, step: Step, request: Request | None) -> None:
        _TRANSITIONS[step.cause].inc()
        self._tell(step, request)

    def _arm(self, now: int) -> None:
        """See to it that the loop wakes up when the next timer is due."""
        due = self.engine.next_timer() if self.engine is not None else None
        self._due = _NEVER if due is None else due
        if self._due >= self._rings_at:
            return
        if self._bell is not None:
            self._bell.cancel()
        self._rings_at = self._due
        seconds = min(max(self._due - now, 0) / 1000, _LONGEST_TIMER)
        self._bell = asyncio.get_running_loop().call_later(seconds, self._ring)

    # --- definitions ---

    def follow(self, program: Program) -> None:
        """Take over changed definitions; what they still know keeps its state."""
        self.program = program
        self.watched_topics = WatchedTopics(program)
        self.news.set()
        engine = self.engine
        if engine is None:
            if self.wanted and not self.trouble and not self.follower.joined:
                self.invalidate("", "detection has not begun yet")
            return
        self.reload.begin()
        if not self.reload.blind:
            held = [row for row in self._rows() if _has(program, row)]
            self.board.fill((name, who, it) for name, who, it in held if it)
            self.leader.tell(held, self.deadline, whole=True)

    def exchange(self, made: Engine) -> None:
        """Go on with an engine that has the same state under changed definitions."""
        before = self._rows()
        self.engine = made
        rows = self._rows()
        self.board.fill((name, who, it) for name, who, it in rows if it)
        self.leader.tell(rows, self.deadline, whole=True)
        now = self.clock.now()
        kept = {(name, who) for name, who, _ in rows}
        gone = [
            Step(now, name, who, it, None, None, Cause.DEFINITIONS)
            for name, who, it in before
            if (name, who) not in kept
        ]
        for step in gone:
            self._note(step, None)
        self.journal.add(b"", gone)
        self._arm(now)

    # --- beginning and ending ---

    def start(self, rebuilt: RestoredState) -> None:
        """Detect from a state on that was made from what is durable."""
        self.engine = rebuilt.engine
        self.outbox = rebuilt.outbox
        self.applied_submissions = rebuilt.applied_submissions
        self.duplicates = rebuilt.duplicates
        self.journal.number = rebuilt.last
        self.clock.go_on_from(self.engine.now)
        self.ignored.begin(self.engine.counts)
        self.board.fill((name, who, it) for name, who, it, _ in self.engine.situations())
        self.trouble = ""
        _DETECTING.set(1)
        _log.info("events are detected here", count=len(self._rows()))
        self._arm(self.clock.now())
        self.resume()
        self.leader.begin(self.deadline, self.claim.others_until)
        self.follower.submissions.decide_locally(
            self.leader.decide, self.leader.when_replicated, self.journal
        )

    def rest(self) -> None:
        """Detect no longer: there is nothing to detect."""
        self.engine = None
        self._due = _NEVER
        _DETECTING.set(0)

    def silence(self) -> None:
        """Fire no timer any more."""
        if self._bell is not None:
            self._bell.cancel()

    def look(self) -> None:
        """Tell of what the engine has ignored."""
        if self.engine is not None:
            self.ignored.tell(self.engine.counts)

    @property
    def deadline(self) -> int | None:
        """When time alone may change a situation, by `clock`."""
        return None if self.engine is None else self.engine.next_deadline()

    def _next_deadline(self) -> float | None:
        """Return when time alone may change a situation, by `boot_clock`."""
        at = self.deadline
        # Of the millisecond that it is now some part may be over.
        return None if at is None else boot_clock() + (at - self.clock.now() - 1) / 1000

    def _rows(self) -> list[SituationRow]:
        held = () if self.engine is None else self.engine.situations()
        return [(name, who, it) for name, who, it, _ in held]

    def _lose_sight(self, why: str) -> None:
        """Take note that the gateway that detects cannot be heard any more."""
        if self.engine is None and not self.stopping:
            self.invalidate("link", f"another gateway detects; {why}")
            self.news.set()

    def crash(self, error: Exception) -> None:
        """Begin anew from what is durable: something went wrong that cannot."""
        _log.exception("detection has failed and begins anew", error=error)
        self.invalidate("crash", "an event could not be processed")

    def invalidate(self, cause: str, trouble: str) -> None:
        """Stop detecting: from this step on no situation is known."""
        if self.engine is not None or trouble != self.trouble:
            if cause:
                _FAILURES[cause].inc()
                _log.error("events are not detected: emergencies grant nothing", reason=cause)
            self.board.invalidate(trouble)
        self.engine = None
        self.trouble = trouble
        self._due = _NEVER
        _DETECTING.set(0)
        self.leader.dismiss("events are not detected here")
        self.reload.end()


def _do_nothing() -> None:
    """Stand in until those are there who carry out actions."""


def _has(program: Program, row: SituationRow) -> bool:
    """Say whether definitions have a situation, and for whom it is."""
    scenario = program.scenarios.get(row[0])
    if scenario is None or (scenario.subjects is not None and row[1] not in scenario.subjects):
        return False
    return row[2] in program.plans[scenario.plan].situations


def _find_subject(engine: Engine, request: Request, *, two_persons: bool) -> str:
    """Return whom a request is about, or refuse it.

    An odd name may be given as the store's tables have it.
    """
    if two_persons and request.approver in {None, request.actor}:
        raise UsageError("a second person has not approved it")
    active = {who for name, who, _, _ in engine.situations() if name == request.scenario}
    if request.subject in active:
        return request.subject
    for who in active:
        if as_stored(who) == request.subject:
            return who
    if request.situation is None:
        # Who mistook a name must not believe that an emergency is over.
        raise UsageError(f"{quote(request.subject)} is in no situation: there is nothing to end")
    return request.subject

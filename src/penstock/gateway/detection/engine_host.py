"""The engine of this gateway, and what its steps lead to.

    idle ──▶ `LeaderElection` gets the lease, restores ──▶ detects ──▶ crashed, stalled, lost ──▶ …
                │                             │
                │                  prepared ──▶ authorised? ──▶ commit ──▶ board, journal,
                │                     timers ──────────────────────┘       actions, followers
                └──▶ another gateway leads ──▶ the board is replicated (`ReplicationFollower`)

Rules that hold here:
- One process detects for all that share a store: the leader. The others submit possible events
  to it, and replicate its situations. A gateway that does neither knows no situations: the board
  is invalid, and a possible event is refused, because it might be the end of an emergency.
- A step and all that follows from it happen at once (of what actions publish, the first
  fifty); its record is in the journal before the loop turns. What was in the journal is there
  again after a restart.
- Timers that are due come before everything that is decided later.
- An engine that raised an error is discarded, and restored from what is durable.
- Changed definitions are reloaded in the background (`EngineReload`); possible events wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from penstock.cep.engine import Engine, PreparedStep
from penstock.cep.event_binding import WatchedTopics
from penstock.cep.program import Program
from penstock.cep.steps import StepResult, TransitionCause, record_time
from penstock.clock import boot_clock
from penstock.errors import UnavailableError
from penstock.gateway.counters import IgnoredEvents
from penstock.gateway.detection.engine_reload import EngineReload
from penstock.gateway.detection.journal import Journal, Outbox
from penstock.gateway.detection.persistence import DetectionState, JournalWriter, LeaderLease
from penstock.gateway.event_loop import Clock, EngineTimer
from penstock.gateway.publications import (
    AppliedSubmissions,
    Fingerprint,
    Qos2Duplicates,
    SubmissionId,
)
from penstock.gateway.replication.follower import ReplicationFollower
from penstock.gateway.replication.leader import ReplicationLeader
from penstock.gateway.replication.link import ReplicationTerms
from penstock.gateway.replication.protocol import SituationRow
from penstock.gateway.replication.submissions import PublicationDecider
from penstock.policy.access.emergencies import SituationBoard
from penstock.store.detection.journal import DetectedTransition, DetectionStore
from penstock.store.detection.tables import Cause, Request
from penstock.telemetry import get_logger, metrics

_DETECTING = metrics.gauge(
    "penstock_gateway_detecting", "1 while this gateway detects events, 0 while it does not."
).plain
_FAILURES = metrics.counter(
    "penstock_gateway_detection_failures",
    "Times that detection ended or could not begin, by cause.",
    cause=("crash", "store", "lease", "stall", "state", "link"),
)
_TRANSITIONS = metrics.counter(
    "penstock_gateway_transitions",
    "Transitions of scenarios, by cause.",
    cause=tuple(Cause),
)
_LEASE_OVER = "the store has not confirmed the leader lease in time"
_log = get_logger("gateway")


class DetectionListener(Protocol):
    """What follows from detection elsewhere in the gateway, in the step in which it comes up."""

    def carry_out_actions(self) -> None:
        """Carry out what is new in the outbox."""

    def resume_actions(self) -> None:
        """Go on with what was in the outbox before a restart."""

    def record_transition(self, transition: DetectedTransition, request: Request | None) -> None:
        """Record a transition, and who requested it, if anybody, in the audit log."""

    def retry_deliveries(self) -> None:
        """Decide on the deliveries that waited for replicated state."""


class EngineHost:
    """The engine of one gateway, on its loop; it composes the parts of detection."""

    def __init__(
        self,
        store: DetectionStore,
        clock: Clock,
        *,
        lease: float,
        snapshot_bytes: int,
        replication: ReplicationTerms | None,
        decider: PublicationDecider,
        listener: DetectionListener,
        run_in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self.board = SituationBoard()
        self.clock = clock
        self.engine: Engine | None = None
        self.outbox = Outbox()
        self.applied_submissions = AppliedSubmissions()
        self.duplicates = Qos2Duplicates()
        self.program = Program()
        self.watched_topics = WatchedTopics(self.program)
        self.trouble = ""
        """Why events are not detected, if they are not and should be."""
        self.stopping = False
        self.changed = asyncio.Event()
        """Set when the leader election has something to do."""
        self._decider = decider
        self._listener = listener
        self._ignored = IgnoredEvents()
        self.timer = EngineTimer(self._fire_timers)
        self.lease = LeaderLease(store, lease, run_in_thread)
        self.leader = ReplicationLeader(
            self, decider, replication, lambda seconds: run_in_thread(store.announce, seconds)
        )
        self.follower = ReplicationFollower(
            self.board,
            decider,
            replication,
            on_lost=self._lose_leader,
            on_current=listener.retry_deliveries,
        )
        self.writer = JournalWriter(
            self,
            store,
            self.lease,
            wait_replicated=self.leader.wait_replicated,
            run_in_thread=run_in_thread,
        )
        self.journal = Journal(self.writer, snapshot_bytes)
        self.reload = EngineReload(self, self.journal, self.writer, run_in_thread)

    # --- state ---

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to detect."""
        return bool(self.watched_topics) or bool(self.program.scenarios)

    @property
    def epoch(self) -> int:
        """The definitions that decisions are taken under."""
        return self._decider.epoch

    @property
    def deadline(self) -> int | None:
        """When time alone may change a situation, by `clock`."""
        return None if self.engine is None else self.engine.next_deadline()

    def is_alive(self) -> bool:
        """Say whether events are detected now; notice a lease that is over."""
        if self.engine is None:
            return False
        if self.lease.is_held:
            return True
        self.invalidate("stall", _LEASE_OVER)
        return False

    def check(self) -> str | None:
        """Say why events are not detected, for other threads: nothing is noticed by asking."""
        if self.engine is not None and not self.lease.is_held:
            return _LEASE_OVER
        return self.trouble or None

    def is_known(self) -> bool:
        """Say whether the situations are known, so that followers can get them."""
        return self.is_alive() and not self.reload.blind

    def accepts_submissions(self) -> bool:
        """Say whether events can be detected now."""
        return self.is_alive() and not self.reload.busy

    def situations(self) -> list[SituationRow]:
        """Return all situations that hold."""
        held = () if self.engine is None else self.engine.situations()
        return [(name, who, it) for name, who, it, _ in held]

    def next_deadline(self) -> float | None:
        """Return when time alone may change a situation, by `boot_clock`."""
        at = self.deadline
        # Of the millisecond that it is now some part may be over.
        return None if at is None else boot_clock() + (at - self.clock.now() - 1) / 1000

    def state(self) -> DetectionState | None:
        """Return what a snapshot saves; None where events are not detected."""
        if self.engine is None:
            return None
        return DetectionState(self.engine, self.outbox, self.applied_submissions, self.duplicates)

    # --- steps ---

    def catch_up(self, now: int) -> None:
        """Fire the timers that are due; notice replicated state that is out of date."""
        if self.engine is None:
            self.follower.check_deadline()
        elif self.is_alive() and now >= self.timer.due:
            self.timer.ring()

    def commit(
        self,
        prepared: PreparedStep,
        record: bytes,
        submission: SubmissionId | None = None,
        fingerprint: Fingerprint | None = None,
    ) -> int:
        """Let an authorised packet take effect; return its ticket in the journal."""
        try:
            result = prepared.commit()
        except Exception as error:
            self.crash(error)
            raise UnavailableError("an event could not be processed") from error
        if submission is not None:
            self.applied_submissions.put(submission)
            record += b"\n" + submission.line()
        if fingerprint is not None:
            self.duplicates.put(fingerprint)
            record += b"\n" + fingerprint.line()
        return self.apply(result, record)

    def _fire_timers(self) -> None:
        engine, now = self.engine, self.clock.now()
        if engine is None:
            return
        if now < self.timer.due:
            self.timer.schedule(engine.next_timer(), now)
            return
        if self.reload.busy:
            self.reload.go_blind()
            return
        try:
            result = engine.advance(now)
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine is discarded
            self.crash(error)
            return
        self.apply(result, record_time(now))

    def apply(self, result: StepResult, record: bytes, request: Request | None = None) -> int:
        """Apply the result of a step: to the board, the followers, the outbox and the journal."""
        transitions = []
        for it in result.transitions:
            self.board.move(it.scenario, it.subject, it.target)
            by_hand = request if it.cause is TransitionCause.HAND else None
            made = DetectedTransition(
                it.at,
                it.scenario,
                it.subject,
                it.source,
                it.target,
                it.event,
                Cause(it.cause.value),
                by_hand.request if by_hand is not None else None,
            )
            transitions.append(made)
            self._record(made, by_hand)
        engine = self.engine
        if engine is not None:
            rows = [(it.scenario, it.subject, it.target) for it in transitions]
            self.leader.replicate(rows, engine.next_deadline())
            self.timer.schedule(engine.next_timer(), result.at)
        settled = [(request.request, "")] if request is not None else ()
        if not result.publications:
            return self.journal.add(record, transitions, settled)
        self.outbox.put(result.publications)
        ticket = self.journal.add(record, transitions, settled)
        self._listener.carry_out_actions()
        return ticket

    def _record(self, transition: DetectedTransition, request: Request | None) -> None:
        _TRANSITIONS[transition.cause].inc()
        self._listener.record_transition(transition, request)

    # --- definitions ---

    def follow(self, program: Program) -> None:
        """Take over changed definitions; what they still have keeps its state."""
        self.program = program
        self.watched_topics = WatchedTopics(program)
        self.changed.set()
        if self.engine is None:
            if self.is_needed and not self.trouble and not self.follower.joined:
                self.invalidate("", "detection has not begun yet")
            return
        self.reload.begin(program)
        if not self.reload.blind:
            self._publish_situations(
                [row for row in self.situations() if program.has_situation(*row)]
            )

    def replace_engine(self, engine: Engine) -> None:
        """Detect with an engine that has the same state under changed definitions."""
        before = self.situations()
        self.engine = engine
        rows = self.situations()
        self._publish_situations(rows)
        now = self.clock.now()
        kept = {(name, who) for name, who, _ in rows}
        ended = [
            DetectedTransition(now, name, who, it, None, None, Cause.DEFINITIONS)
            for name, who, it in before
            if (name, who) not in kept
        ]
        for step in ended:
            self._record(step, None)
        self.journal.add(b"", ended)
        self.timer.schedule(engine.next_timer(), now)

    def _publish_situations(self, rows: list[SituationRow]) -> None:
        self.board.fill((name, who, it) for name, who, it in rows if it)
        self.leader.replicate(rows, self.deadline, whole=True)

    def suspend(self, why: str) -> None:
        """Let no situation be known for a while."""
        self.board.invalidate(why)
        self.leader.step_down(why)

    def resume(self) -> None:
        """Let followers know the situations again."""
        self.leader.lead(self.deadline)

    # --- start and end ---

    def start(self, state: DetectionState, last_batch: int) -> None:
        """Detect from a restored state on."""
        engine = state.engine
        self.engine, self.outbox, self.applied_submissions, self.duplicates = state
        self.journal.number = last_batch
        self.clock.go_on_from(engine.now)
        self._ignored.reset(engine.counts)
        rows = self.situations()
        self.board.fill((name, who, it) for name, who, it in rows if it)
        self.trouble = ""
        _DETECTING.set(1)
        _log.info("events are detected here", count=len(rows))
        self.timer.schedule(engine.next_timer(), self.clock.now())
        self._listener.resume_actions()
        self.leader.lead(self.deadline, self.lease.others_until)
        self.follower.submissions.decide_locally(self.leader.when_replicated)

    def stop(self) -> None:
        """Detect no longer: there is nothing to detect."""
        self.engine = None
        self.timer.clear()
        _DETECTING.set(0)

    def report_ignored(self) -> None:
        """Count and log what the engine has ignored."""
        if self.engine is not None:
            self._ignored.report(self.engine.counts)

    def _lose_leader(self, why: str) -> None:
        if self.engine is None and not self.stopping:
            self.invalidate("link", f"another gateway detects; {why}")
            self.changed.set()

    def crash(self, error: Exception) -> None:
        """Discard the engine after an error; it is restored from what is durable."""
        _log.exception("detection has failed and begins anew", error=error)
        self.invalidate("crash", "an event could not be processed")

    def invalidate(self, cause: str, trouble: str) -> None:
        """Stop to detect: from this step on no situation is known."""
        if self.engine is not None or trouble != self.trouble:
            if cause:
                _FAILURES[cause].inc()
                _log.error("events are not detected: emergencies grant nothing", reason=cause)
            self.board.invalidate(trouble)
        self.trouble = trouble
        self.stop()
        self.leader.step_down("events are not detected here")
        self.reload.end()

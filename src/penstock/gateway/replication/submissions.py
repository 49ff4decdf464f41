"""Messages that a follower has submitted to the leader, until their events are durable.

    submit ──▶ Submit ──▶ PublishResponse ──▶ the message passes, or not ──▶ Durable ──▶ confirmed
                 ▲           └── the leader is lost first: resubmitted to the next one
                 └───────────────┘

Rules that hold here:
- Submissions have numbers and go out in order. One whose event is not known to be durable is
  resubmitted under its number to the next leader, be it this gateway: there it takes effect once
  (`AppliedSubmissions`). The publisher's acknowledgement waits for it.
- Nobody waits for longer than `patience`. A message that no leader has got is refused then. For
  one that a leader has got and not answered the publisher's connection ends, so that the client
  resends it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from penstock.clock import boot_clock
from penstock.gateway.publications import (
    NO_LEADER,
    PublishOutcome,
    PublishRequest,
    PublishResult,
    SubmissionId,
)
from penstock.gateway.replication.protocol import PublishResponse, Submit
from penstock.telemetry import get_logger, metrics

MAX_OPEN: Final = 100_000
"""The most messages that wait for the leader."""

_SUBMITTED = metrics.counter(
    "penstock_gateway_submissions",
    "Messages that this follower submitted to the leader, by what became of them.",
    outcome=("passed", "refused", "no_leader", "no_answer"),
)
_RESUBMITTED = metrics.counter(
    "penstock_gateway_resubmissions",
    "Messages that were resubmitted because the leader was gone.",
).plain
_log = get_logger("gateway")


class PublicationDecider(Protocol):
    """Decides on publications where events are detected: at the leader."""

    @property
    def epoch(self) -> int:
        """The definitions that are known here."""

    def decide(self, request: PublishRequest, submission: SubmissionId) -> PublishResult:
        """Decide on a message of another gateway's client, and let its event take effect."""


class Submission:
    """A submitted message; it is the journal that its acknowledgement waits for."""

    __slots__ = (
        "_settled",
        "deadline",
        "durable",
        "finished",
        "number",
        "passed",
        "request",
        "response",
        "sent",
    )

    def __init__(self, number: int, request: PublishRequest, deadline: float) -> None:
        self.number = number
        self.request = request
        self.deadline = deadline
        self.durable = 0
        self.sent = False
        self.passed = False
        loop = asyncio.get_running_loop()
        self.response: asyncio.Future[PublishResult] = loop.create_future()
        self.finished: asyncio.Future[None] = loop.create_future()
        """Done when nothing about it is open any more."""
        self._settled: list[Callable[[bool], None]] = []

    def wait(self, ticket: int, settled: Callable[[bool], None]) -> None:
        """Call back when its event is durable, or will not be."""
        if ticket <= self.durable:
            settled(True)  # noqa: FBT003
        else:
            self._settled.append(settled)

    def resolve(self, result: PublishResult) -> None:
        """Set the result, for whoever still waits for it."""
        self.passed = result.accepted
        if not self.response.done():
            self.response.set_result(result)
        if not result.accepted:
            self._finish()

    def settle(self, durable: bool) -> None:  # noqa: FBT001
        """Note whether its event is durable."""
        self.durable = int(durable)
        settled, self._settled = self._settled, []
        for call in settled:
            call(durable)
        self._finish()

    def _finish(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)


class Submissions:
    """The messages that wait for a response, or for their events to be durable."""

    def __init__(self, decider: PublicationDecider) -> None:
        self.name = secrets.token_hex(8)
        """Names this process to leaders."""
        self._decider = decider
        self._send: Callable[[Submit], None] | None = None
        """Sends to the leader, while there is a connection to it."""
        self._number = 0
        self._open: dict[int, Submission] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def connect(self, send: Callable[[Submit], None]) -> None:
        """Submit to a leader from now on, and resubmit everything that waits."""
        self._send = send
        for submission in list(self._open.values()):
            if submission.sent:
                _RESUBMITTED.inc()
            self._submit(submission)

    def disconnect(self) -> None:
        """Let submissions wait for the next leader."""
        self._send = None

    def submit(self, request: PublishRequest, patience: float) -> asyncio.Future[PublishResult]:
        """Submit a message, now or as soon as there is a leader."""
        self._number += 1
        submission = Submission(self._number, request, boot_clock() + patience)
        if len(self._open) >= MAX_OPEN:
            _SUBMITTED["no_leader"].inc()
            submission.resolve(NO_LEADER)
            return submission.response
        self._open[self._number] = submission
        self._submit(submission)
        return submission.response

    def decide_locally(self, when_replicated: Callable[[Callable[[bool], None]], None]) -> None:
        """Decide on everything that waits: this gateway is the leader now."""
        for submission in list(self._open.values()):
            own = SubmissionId(self.name, submission.number, self._oldest())
            result = self._decider.decide(submission.request, own)
            when_replicated(partial(self._take_own, submission, result))

    def take_response(self, response: PublishResponse) -> None:
        """Note the leader's decision on a message."""
        submission = self._open.get(response.number)
        if submission is not None:
            result = PublishResult(response.outcome, response.rule)
            self._take_result(submission, result, event=response.event)

    def take_durable(self, numbers: list[int]) -> None:
        """Note that events are durable."""
        for number in numbers:
            submission = self._open.pop(number, None)
            if submission is not None:
                submission.settle(True)  # noqa: FBT003

    def expire(self, *, patient: bool) -> None:
        """Fail what has waited too long; what has passed only where there is no patience left."""
        now = boot_clock()
        for submission in list(self._open.values()):
            # What has passed waits for the leader's store as it would for our own.
            if now > submission.deadline and not (submission.passed and patient):
                self._fail(submission)

    def fail_all(self) -> None:
        """Wait for no leader any more."""
        for submission in list(self._open.values()):
            self._fail(submission)

    async def finish(self) -> None:
        """Wait until nothing is open any more."""
        open_now = list(self._open.values())
        if open_now:
            await asyncio.wait([it.finished for it in open_now])

    def _take_own(self, submission: Submission, result: PublishResult, acked: bool) -> None:  # noqa: FBT001
        if not acked or submission.number not in self._open:
            return  # It waits for the next leader, or has failed.
        event = result.awaits_journal
        self._take_result(submission, result, event=event)
        if event:
            self._open.pop(submission.number, None)
            result.when_durable(submission.settle)

    def _oldest(self) -> int:
        return next(iter(self._open), self._number)

    def _submit(self, submission: Submission) -> None:
        if self._send is not None:
            submission.sent = True
            epoch = self._decider.epoch
            self._send(Submit(submission.number, self._oldest(), epoch, submission.request))

    def _take_result(self, submission: Submission, result: PublishResult, *, event: bool) -> None:
        """Take over a decision, the first one or that of a later leader."""
        if not submission.passed:
            _SUBMITTED["passed" if result.accepted else "refused"].inc()
        elif not result.accepted:
            # It was passed on, and now its event will never be: its publisher resends it.
            self._open.pop(submission.number, None)
            submission.settle(False)  # noqa: FBT003
            return
        if event:
            submission.resolve(result._replace(ticket=1, journal=submission))
        else:
            self._open.pop(submission.number, None)
            submission.resolve(result._replace(ticket=0, journal=None))
            submission.settle(True)  # noqa: FBT003

    def _fail(self, submission: Submission) -> None:
        self._open.pop(submission.number, None)
        if submission.passed:
            submission.settle(False)  # noqa: FBT003
            return
        why = "no_answer" if submission.sent else "no_leader"
        _SUBMITTED[why].inc()
        _log.error("a message was not looked at by the gateway that detects", reason=why)
        no_answer = PublishResult(PublishOutcome.NO_ANSWER)
        submission.resolve(no_answer if submission.sent else NO_LEADER)

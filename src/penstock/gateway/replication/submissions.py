"""What the gateway that detects is asked about messages, and what it answered.

    submit ──▶ Submit ──▶ PublishResponse ──▶ the message passes, or not ──▶ Durable ──▶ confirmed
                 ▲           └── the other is gone first: asked again, whoever detects then
                 └───────────────┘

Rules that hold here:
- Messages have numbers and are asked in their order. One whose event is not known to be
  durable is asked again under its number at the next gateway that detects, be it this one:
  there it takes effect once (`AppliedSubmissions`). Its publisher's acknowledgement waits for it.
- Nobody waits for longer than `patience`. A message that nobody was asked about is refused
  then; for one that was asked about and not answered the publisher's connection ends, so that
  it sends it again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.clock import boot_clock
from penstock.gateway.publish_result import NO_LEADER, Journal, PublishOutcome, PublishResult
from penstock.gateway.replication.deduplication import SubmissionId
from penstock.gateway.replication.messages import PublishRequest, PublishResponse, Submit
from penstock.telemetry import get_logger, metrics

OPEN: Final = 100_000
"""The most messages that wait for another gateway."""

_ASKED = metrics.counter(
    "penstock_gateway_asked",
    "Messages that another gateway was to look at, by what became of them.",
    outcome=("passed", "refused", "unreached", "untold"),
)
_AGAIN = metrics.counter(
    "penstock_gateway_asked_again",
    "Messages that were asked about once more, because the gateway that detected was gone.",
).plain
_log = get_logger("gateway")


class Submission:
    """A message that another gateway looks at; keeps its acknowledgement until it is durable."""

    __slots__ = (
        "_settled",
        "answer",
        "asked",
        "deadline",
        "durable",
        "finished",
        "number",
        "passed",
        "sent",
    )

    def __init__(self, number: int, asked: PublishRequest, deadline: float) -> None:
        self.number = number
        self.asked = asked
        self.deadline = deadline
        self.durable = 0
        self.sent = False
        self.passed = False
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[PublishResult] = loop.create_future()
        self.finished: asyncio.Future[None] = loop.create_future()
        """Done when nothing is left to hear about it."""
        self._settled: list[Callable[[bool], None]] = []

    def wait(self, ticket: int, settled: Callable[[bool], None]) -> None:
        """Call back when its event is durable, or will not be."""
        if ticket <= self.durable:
            settled(True)  # noqa: FBT003
        else:
            self._settled.append(settled)

    def resolve(self, result: PublishResult) -> None:
        """Say what became of it, to whoever still waits for that."""
        self.passed = result.accepted
        if not self.answer.done():
            self.answer.set_result(result)
        if not result.accepted:
            self._finish()

    def settle(self, durable: bool) -> None:  # noqa: FBT001
        """Take note whether its event is durable."""
        self.durable = int(durable)
        settled, self._settled = self._settled, []
        for call in settled:
            call(durable)
        self._finish()

    def _finish(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)


class Submissions:
    """The messages that wait for an answer, or for their events to be durable."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        """Names this process to the others."""
        self.epoch: Callable[[], int] = int
        """Tells which definitions are known here."""
        self.send: Callable[[Submit], None] | None = None
        """Asks the gateway that detects, while there is one."""
        self._number = 0
        self._open: dict[int, Submission] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def submit(self, asked: PublishRequest, patience: float) -> asyncio.Future[PublishResult]:
        """Ask about a message, now or as soon as somebody can be asked."""
        self._number += 1
        submission = Submission(self._number, asked, boot_clock() + patience)
        if len(self._open) >= OPEN:
            _ASKED["unreached"].inc()
            submission.resolve(NO_LEADER)
            return submission.answer
        self._open[self._number] = submission
        self._ask(submission)
        return submission.answer

    def ask_again(self) -> None:
        """Ask about everything that waits: there is somebody to ask."""
        for submission in list(self._open.values()):
            if submission.sent:
                _AGAIN.inc()
            self._ask(submission)

    def decide_locally(
        self,
        decide: Callable[[PublishRequest, SubmissionId], PublishResult],
        when_replicated: Callable[[Callable[[bool], None]], None],
        journal: Journal,
    ) -> None:
        """Decide on everything that waits: events are detected here now."""
        for submission in list(self._open.values()):
            receipt = SubmissionId(self.name, submission.number, self._oldest())
            result = decide(submission.asked, receipt)
            when_replicated(partial(self._take_own, submission, result, journal))

    def hear(self, answer: PublishResponse) -> None:
        """Take note of what became of a message."""
        submission = self._open.get(answer.number)
        if submission is not None:
            self._take_answer(
                submission, PublishResult(answer.outcome, answer.rule), event=answer.event
            )

    def hear_durable(self, numbers: list[int]) -> None:
        """Take note that events are durable."""
        for number in numbers:
            submission = self._open.pop(number, None)
            if submission is not None:
                submission.settle(True)  # noqa: FBT003

    def look(self, *, patient: bool) -> None:
        """Give up what has taken too long; what has passed only where nobody is patient."""
        now = boot_clock()
        for submission in list(self._open.values()):
            # What has passed waits for the other's store as it would for our own.
            if now > submission.deadline and not (submission.passed and patient):
                self._give_up(submission)

    def give_up(self) -> None:
        """Wait for nobody any more."""
        for submission in list(self._open.values()):
            self._give_up(submission)

    async def finish(self) -> None:
        """Wait until nothing is asked about any more."""
        open_now = list(self._open.values())
        if open_now:
            await asyncio.wait([it.finished for it in open_now])

    def _take_own(
        self,
        submission: Submission,
        result: PublishResult,
        journal: Journal,
        known: bool,  # noqa: FBT001
    ) -> None:
        if not known or submission.number not in self._open:
            return  # It waits for whoever detects next, or has been given up.
        event = result.ticket > journal.durable
        self._take_answer(submission, result, event=event)
        if event:
            self._open.pop(submission.number, None)
            journal.wait(result.ticket, submission.settle)

    def _oldest(self) -> int:
        return next(iter(self._open), self._number)

    def _ask(self, submission: Submission) -> None:
        if self.send is not None:
            submission.sent = True
            self.send(Submit(submission.number, self._oldest(), self.epoch(), submission.asked))

    def _take_answer(self, submission: Submission, result: PublishResult, *, event: bool) -> None:
        """Take note of what became of a message, for the first time or once more."""
        if not submission.passed:
            _ASKED["passed" if result.accepted else "refused"].inc()
        elif not result.accepted:
            # It was passed on, and now its event will never be: its publisher sends it again.
            self._open.pop(submission.number, None)
            submission.settle(False)  # noqa: FBT003
            return
        if event:
            submission.resolve(result._replace(ticket=1, journal=submission))
        else:
            self._open.pop(submission.number, None)
            submission.resolve(result._replace(ticket=0, journal=None))
            submission.settle(True)  # noqa: FBT003

    def _give_up(self, submission: Submission) -> None:
        self._open.pop(submission.number, None)
        if submission.passed:
            submission.settle(False)  # noqa: FBT003
            return
        why = "untold" if submission.sent else "unreached"
        _ASKED[why].inc()
        _log.error("a message was not looked at by the gateway that detects", reason=why)
        no_answer = PublishResult(PublishOutcome.NO_ANSWER)
        submission.resolve(no_answer if submission.sent else NO_LEADER)

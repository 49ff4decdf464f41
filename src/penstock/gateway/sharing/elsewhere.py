"""Detection that happens at another gateway: what is known from it, and what it is asked.

    lost ──▶ join ──▶ Ping ──▶ Pong with all situations ──▶ joined ──▶ Moves ──▶ board
      ▲                 every quarter of a lease ◀──────────────┤
      └── the connection broke, or no Pong for a lease ◀────────┘

    submit ──▶ Submit ──▶ Answer ──▶ the message passes, or is refused ──▶ Durable ──▶ confirmed
                 ▲           └── the other is gone first: asked again, whoever detects then
                 └───────────────┘

Rules that hold here:
- Situations hold here for a lease after a ping was sent that was answered, by a clock that
  goes on while the machine sleeps. After that nothing is known: emergencies grant nothing.
- Messages have numbers and are asked in their order. One whose event is not known to be
  durable is asked again under its number at the next gateway that detects, be it this one:
  there it takes effect once (`Receipts`), and its publisher's acknowledgement waits for it.
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

from penstock.gateway.sharing.channel import ChannelError
from penstock.gateway.sharing.link import Link, Terms
from penstock.gateway.sharing.messages import (
    Answer,
    Asked,
    Durable,
    Join,
    Known,
    Leave,
    Message,
    Moves,
    Ping,
    Pong,
    Submit,
)
from penstock.gateway.sharing.neighbours import LOOKS
from penstock.gateway.sharing.receipts import Receipt
from penstock.gateway.written import NO_DETECTOR, NOT_TOLD, Keeper, Written
from penstock.policy.emergencies import SituationBoard
from penstock.store.follower import boot_clock
from penstock.telemetry import get_logger, metrics

_FIRST_LEASE: Final = 1.0
OPEN: Final = 100_000
"""The most messages that wait for another gateway."""

_JOINED = metrics.gauge(
    "penstock_gateway_situations_shared",
    "1 while this gateway knows the situations from another that detects, 0 while it does not.",
).plain
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

    def __init__(self, number: int, asked: Asked, deadline: float) -> None:
        self.number = number
        self.asked = asked
        self.deadline = deadline
        self.durable = 0
        self.sent = False
        self.passed = False
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Written] = loop.create_future()
        self.finished: asyncio.Future[None] = loop.create_future()
        """Done when nothing is left to hear about it."""
        self._settled: list[Callable[[bool], None]] = []

    def wait(self, ticket: int, settled: Callable[[bool], None]) -> None:
        """Call back when its event is durable, or will not be."""
        if ticket <= self.durable:
            settled(True)  # noqa: FBT003
        else:
            self._settled.append(settled)

    def resolve(self, written: Written) -> None:
        """Say what became of it, to whoever still waits for that."""
        self.passed = not written.why
        if not self.answer.done():
            self.answer.set_result(written)
        if written.why:
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


class Elsewhere:
    """What this gateway knows from, and asks of, the one that detects."""

    def __init__(self, board: SituationBoard, lost: Callable[[str], None]) -> None:
        self.name = secrets.token_hex(8)
        """Names this process to the others."""
        self.joined = False
        self.terms: Terms | None = None
        self.epoch: Callable[[], int] = int
        """Tells which definitions are known here."""
        self._board = board
        self._tell_lost = lost
        self._link: Link | None = None
        self._joining: asyncio.Future[str] | None = None
        self._lease = 0.0
        """How long what was told holds; who detects says so."""
        self._valid_until = 0.0
        self._patient_until = 0.0
        self._pings: dict[int, float] = {}
        self._number = 0
        self._open: dict[int, Submission] = {}
        self._timer: asyncio.TimerHandle | None = None

    # --- knowing ---

    async def join(self, address: str, seconds: float) -> str:
        """Connect to the gateway that detects; return what keeps us from it, if anything."""
        terms = self.terms
        host, _, port = address.rpartition(":")
        if terms is None or not host or not port.isdecimal():
            return "it cannot be reached"
        loop = asyncio.get_running_loop()
        joining: asyncio.Future[str] = loop.create_future()
        self._joining = joining

        def make() -> Link:
            self._link = Link(
                terms, caller=True, opened=self._open_link, heard=self._hear, ended=self._end
            )
            return self._link

        try:
            async with asyncio.timeout(seconds):
                await loop.create_connection(make, host, int(port))
                return await joining
        except (OSError, TimeoutError) as error:
            self.leave("it does not answer")
            return f"it cannot be reached: {type(error).__name__}"
        finally:
            self._joining = None

    def keep_current(self) -> None:
        """Notice that what is known has run out."""
        if self.joined and boot_clock() > self._valid_until:
            self.leave("it has not answered in time")

    def leave(self, why: str) -> None:
        """Go by nothing any more, and say so."""
        link = self._link
        if link is not None:
            self._lose(why)
            link.send(Leave())
            link.close(why)

    def _open_link(self, link: Link) -> None:
        link.send(Join(self.name))
        self._pings.clear()
        self._valid_until = self._lease = 0.0
        self._ping(link)
        if self._timer is None:
            self._look()

    def _ping(self, link: Link) -> None:
        """Ask whether the other still detects."""
        number = max(self._pings, default=0) + 1
        self._pings[number] = boot_clock()
        link.send(Ping(number))

    def _end(self, link: Link, why: str) -> None:
        if self._link is link:
            self._lose(why)

    def _lose(self, why: str) -> None:
        self._link = None
        if self._joining is not None and not self._joining.done():
            self._joining.set_result(f"the connection to it ended: {why}")
        if self.joined:
            self.joined = False
            self._board.lose(why)
            _JOINED.set(0)
            if self.terms is not None:
                self._patient_until = boot_clock() + self.terms.patience
            self._tell_lost(why)

    def _hear(self, link: Link, message: Message) -> None:
        match message:
            case Pong():
                self._hear_pong(message)
            case Moves():
                if message.whole:
                    self._board.fill((name, who, it) for name, who, it in message.rows if it)
                else:
                    for name, who, it in message.rows:
                        self._board.move(name, who, it)
                link.send(Known(message.number))
            case Answer():
                self._hear_answer(message)
            case Durable():
                for number in message.numbers:
                    submission = self._open.pop(number, None)
                    if submission is not None:
                        submission.settle(True)  # noqa: FBT003
            case _:
                raise ChannelError("a gateway said what it has not to say")

    def _hear_pong(self, pong: Pong) -> None:
        sent = self._pings.get(pong.number)
        if sent is None or self.terms is None:
            raise ChannelError("a gateway answered what it was not asked")
        self._pings = {it: at for it, at in self._pings.items() if it >= pong.number}
        if pong.situations is not None:
            self._lease = pong.lease
        self._valid_until = max(self._valid_until, sent + self._lease)
        if pong.situations is None:
            return
        if boot_clock() > self._valid_until:
            # Asked long ago; what was told counts from the next answer on, told anew.
            self.leave("it has answered too late")
            return
        self._board.fill((name, who, it) for name, who, it in pong.situations if it)
        self.joined = True
        _JOINED.set(1)
        if self._joining is not None and not self._joining.done():
            self._joining.set_result("")
        for submission in list(self._open.values()):
            if submission.sent:
                _AGAIN.inc()
            self._send(submission)

    def _look(self) -> None:
        """Ping; notice what has taken too long."""
        self._timer = None
        self.keep_current()
        now = boot_clock()
        for submission in list(self._open.values()):
            # What has passed waits for the other's store as it would for our own.
            waits = submission.passed and (self.joined or now <= self._patient_until)
            if now > submission.deadline and not waits:
                self._give_up(submission)
        if self._link is not None and self._link.open:
            self._ping(self._link)
        if self._link is not None or self._open:
            pause = (self._lease or _FIRST_LEASE) / LOOKS
            self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    # --- asking ---

    @property
    def asks(self) -> bool:
        """Whether another gateway can be asked, or will be soon."""
        return self.joined or boot_clock() <= self._patient_until

    async def finish(self) -> None:
        """Wait until nothing is asked about any more."""
        open_now = list(self._open.values())
        if open_now:
            await asyncio.wait([it.finished for it in open_now])

    def give_up(self) -> None:
        """Wait for nobody any more."""
        self._patient_until = 0.0
        for submission in list(self._open.values()):
            self._give_up(submission)

    def submit(self, asked: Asked) -> asyncio.Future[Written]:
        """Ask the gateway that detects about a message."""
        self._number += 1
        patience = self.terms.patience if self.terms is not None else 0.0
        submission = Submission(self._number, asked, boot_clock() + patience)
        if len(self._open) >= OPEN:
            _ASKED["unreached"].inc()
            submission.resolve(NO_DETECTOR)
            return submission.answer
        self._open[self._number] = submission
        if self.joined:
            self._send(submission)
        if self._timer is None:
            self._look()
        return submission.answer

    def take_home(
        self,
        decide: Callable[[Asked, Receipt], Written],
        when_known: Callable[[Callable[[bool], None]], None],
        journal: Keeper,
    ) -> None:
        """Decide on everything that waits: events are detected here now."""
        for submission in list(self._open.values()):
            receipt = Receipt(self.name, submission.number, self._oldest())
            written = decide(submission.asked, receipt)
            when_known(partial(self._take_own, submission, written, journal))

    def _take_own(
        self,
        submission: Submission,
        written: Written,
        journal: Keeper,
        known: bool,  # noqa: FBT001
    ) -> None:
        if not known or submission.number not in self._open:
            return  # It waits for whoever detects next, or has been given up.
        event = written.ticket > journal.durable
        self._take_answer(submission, written, event=event)
        if event:
            self._open.pop(submission.number, None)
            journal.wait(written.ticket, submission.settle)

    def _oldest(self) -> int:
        return next(iter(self._open), self._number)

    def _send(self, submission: Submission) -> None:
        if self._link is not None:
            submission.sent = True
            self._link.send(
                Submit(submission.number, self._oldest(), self.epoch(), submission.asked)
            )

    def _hear_answer(self, answer: Answer) -> None:
        submission = self._open.get(answer.number)
        if submission is not None:
            self._take_answer(submission, Written(answer.why, answer.rule), event=answer.event)

    def _take_answer(self, submission: Submission, written: Written, *, event: bool) -> None:
        """Take note of what became of a message, for the first time or once more."""
        if not submission.passed:
            _ASKED["refused" if written.why else "passed"].inc()
        elif written.why:
            # It was passed on, and now its event will never be: its publisher sends it again.
            self._open.pop(submission.number, None)
            submission.settle(False)  # noqa: FBT003
            return
        if event:
            submission.resolve(written._replace(ticket=1, keeper=submission))
        else:
            self._open.pop(submission.number, None)
            submission.resolve(written._replace(ticket=0, keeper=None))
            submission.settle(True)  # noqa: FBT003

    def _give_up(self, submission: Submission) -> None:
        self._open.pop(submission.number, None)
        if submission.passed:
            submission.settle(False)  # noqa: FBT003
            return
        why = "untold" if submission.sent else "unreached"
        _ASKED[why].inc()
        _log.error("a message was not looked at by the gateway that detects", reason=why)
        submission.resolve(NOT_TOLD if submission.sent else NO_DETECTOR)

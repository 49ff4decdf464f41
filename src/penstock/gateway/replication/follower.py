"""Detection that happens at another gateway: what is known from it.

    lost ──▶ join ──▶ Ping ──▶ Pong with all situations ──▶ joined ──▶ StateUpdate ──▶ board
      ▲                 every quarter of a lease ◀──────────────┤ ▲
      │                                             time is due ▼ │ NextDeadline, StateUpdate, Pong
      └── the connection broke, or no Pong for a lease ◀───── doubtful

Rules that hold here:
- Situations hold here for a lease after a ping was sent that was answered, by a clock that
  goes on while the machine sleeps. After that nothing is known: emergencies grant nothing.
- They hold up to the moment at which time alone may change one (`ClockBound`). Beyond it they
  are in doubt until the other says what time has changed: what depends on them waits for that
  (`wait_current`), and is decided without them where the lease ends first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

from penstock.clock import boot_clock
from penstock.gateway.publish_result import PublishResult
from penstock.gateway.replication.channel import ChannelError
from penstock.gateway.replication.leader import LOOKS
from penstock.gateway.replication.link import Link, ReplicationTerms
from penstock.gateway.replication.messages import (
    Ack,
    Durable,
    Join,
    Leave,
    Message,
    NextDeadline,
    Ping,
    Pong,
    PublishRequest,
    PublishResponse,
    StateUpdate,
)
from penstock.gateway.replication.submissions import Submissions
from penstock.policy.access.emergencies import SituationBoard
from penstock.telemetry import metrics

_FIRST_LEASE: Final = 1.0
_DRIFT: Final = 0.001

_JOINED = metrics.gauge(
    "penstock_gateway_situations_shared",
    "1 while this gateway knows the situations from another that detects, 0 while it does not.",
).plain
_DOUBTS = metrics.counter(
    "penstock_gateway_situations_doubted",
    "Times that a decision had to wait for what another gateway's timers bring about.",
).plain


class ClockBound:
    """Translates deadlines by the leader's clock into moments of ours, never too late.

        here   ──── ping sent ─────────────────────▶ until: replicated state may be out of date
                         ╲                                 ▲
        leader ───────────▶ answered (`now`) ── deadline ──┘ not later than there

    A ping was sent before it was answered: counted from then, by two steady clocks, a deadline
    comes here before it does there. Such clocks are taken to differ by less than a thousandth.
    """

    def __init__(self) -> None:
        self.until = 0.0
        """Before this moment nothing changes but by what is told."""
        self._now = 0.0
        self._behind = -inf
        """What our clock shows more than the other's, at least, as of `_now` there."""

    def hear(self, sent: float, now: float) -> None:
        """Take note that what was sent at a moment here was answered at a moment there."""
        self._behind = max(sent - now, self._behind - _DRIFT * abs(now - self._now))
        self._now = now

    def see(self, due: float | None) -> None:
        """Take note when something is due there; None: never."""
        if due is None:
            self.until = inf
        else:
            self.until = due + self._behind - _DRIFT * max(0.0, due - self._now)


class ReplicationFollower:
    """What this gateway knows from, and asks of, the one that detects."""

    def __init__(self, board: SituationBoard, lost: Callable[[str], None]) -> None:
        self.joined = False
        self.awaiting_leader = False
        """Whether time may have changed what is known."""
        self.terms: ReplicationTerms | None = None
        self.certain: Callable[[], None] = _do_nothing
        """Called when nothing is in doubt any more: it is known, or lost."""
        self.submissions = Submissions()
        self._board = board
        self._tell_lost = lost
        self._link: Link | None = None
        self._joining: asyncio.Future[str] | None = None
        self._lease = 0.0
        """How long what was told holds; who detects says so."""
        self._valid_until = 0.0
        self._foresight = ClockBound()
        self._patient_until = 0.0
        self._pings: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._certain = asyncio.Event()

    # --- joining and leaving ---

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

    def leave(self, why: str) -> None:
        """Go by nothing any more, and say so."""
        link = self._link
        if link is not None:
            self._lose(why)
            link.send(Leave())
            link.close(why)

    def _open_link(self, link: Link) -> None:
        link.send(Join(self.submissions.name))
        self._pings.clear()
        self._valid_until = self._lease = 0.0
        self._foresight = ClockBound()
        self._ping(link)
        if self._timer is None:
            self._look()

    def _end(self, link: Link, why: str) -> None:
        if self._link is link:
            self._lose(why)

    def _lose(self, why: str) -> None:
        self._link = None
        if self._joining is not None and not self._joining.done():
            self._joining.set_result(f"the connection to it ended: {why}")
        if self.joined:
            self.joined = False
            self.submissions.send = None
            self._board.invalidate(why)
            _JOINED.set(0)
            if self.terms is not None:
                self._patient_until = boot_clock() + self.terms.patience
            self._tell_lost(why)
            self._end_doubt()

    # --- knowing ---

    def check_deadline(self) -> None:
        """Notice that what is known has run out, or that time may have changed it."""
        if not self.joined:
            return
        now = boot_clock()
        if now > self._valid_until:
            self.leave("it has not answered in time")
        elif now >= self._foresight.until and not self.awaiting_leader:
            self.awaiting_leader = True
            self._certain.clear()
            self._board.invalidate("time may have changed them")
            _DOUBTS.inc()
            if self._link is not None:
                # Its timer is about to fire; or its clock goes slower than ours, then it tells.
                self._ping(self._link)

    async def wait_current(self) -> None:
        """Wait until nothing is in doubt."""
        if self.awaiting_leader:
            await self._certain.wait()

    def _foresee(self, due: float | None) -> None:
        """Take note when time alone may change what is known."""
        self._foresight.see(due)
        if self.awaiting_leader and boot_clock() < self._foresight.until:
            self._board.revalidate()
            self._end_doubt()

    def _end_doubt(self) -> None:
        if self.awaiting_leader:
            self.awaiting_leader = False
            self._certain.set()
            asyncio.get_running_loop().call_soon(self.certain)

    def _ping(self, link: Link) -> None:
        """Ask whether the other still detects."""
        number = max(self._pings, default=0) + 1
        self._pings[number] = boot_clock()
        link.send(Ping(number))

    def _hear(self, link: Link, message: Message) -> None:
        match message:
            case Pong():
                self._hear_pong(link, message)
            case StateUpdate():
                if message.whole:
                    self._fill(message.rows)
                else:
                    for name, who, it in message.rows:
                        self._board.move(name, who, it)
                self._foresee(message.due)
                link.send(Ack(message.number))
            case NextDeadline():
                self._foresee(message.due)
            case PublishResponse():
                self.submissions.hear(message)
            case Durable():
                self.submissions.hear_durable(message.numbers)
            case _:
                raise ChannelError("a gateway said what it has not to say")

    def _fill(self, rows: list[tuple[str, str, str | None]]) -> None:
        self._board.fill((name, who, it) for name, who, it in rows if it)
        if self.awaiting_leader:
            self._board.invalidate("time may have changed them")

    def _hear_pong(self, link: Link, pong: Pong) -> None:
        sent = self._pings.get(pong.number)
        if sent is None or self.terms is None:
            raise ChannelError("a gateway answered what it was not asked")
        self._pings = {it: at for it, at in self._pings.items() if it >= pong.number}
        if pong.situations is not None:
            self._lease = pong.lease
        self._valid_until = max(self._valid_until, sent + self._lease)
        self._foresight.hear(sent, pong.now)
        self._foresee(pong.due)
        if pong.situations is None:
            return
        if boot_clock() > self._valid_until:
            # Sent long ago; what was told counts from the next answer on, told anew.
            self.leave("it has answered too late")
            return
        self._fill(pong.situations)
        self.joined = True
        _JOINED.set(1)
        if self._joining is not None and not self._joining.done():
            self._joining.set_result("")
        self.submissions.send = link.send
        self.submissions.ask_again()

    def _look(self) -> None:
        """Ping; notice what has taken too long."""
        self._timer = None
        self.check_deadline()
        self.submissions.look(patient=self.asks)
        if self._link is not None and self._link.open:
            self._ping(self._link)
        if self._link is not None or self.submissions:
            pause = (self._lease or _FIRST_LEASE) / LOOKS
            self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    # --- asking ---

    @property
    def asks(self) -> bool:
        """Whether another gateway can be asked, or will be soon."""
        return self.joined or boot_clock() <= self._patient_until

    def submit(self, asked: PublishRequest) -> asyncio.Future[PublishResult]:
        """Ask the gateway that detects about a message."""
        answer = self.submissions.submit(asked, self.terms.patience if self.terms else 0.0)
        if self._timer is None:
            self._look()
        return answer

    def give_up(self) -> None:
        """Wait for nobody any more."""
        self._patient_until = 0.0
        self.submissions.give_up()


def _do_nothing() -> None:
    """Stand in until there is who waits."""

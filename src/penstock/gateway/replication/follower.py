"""The follower's side of replication: the leader detects, this gateway has its state.

    lost ──▶ join ──▶ Ping ──▶ Pong with all situations ──▶ joined ──▶ StateUpdate ──▶ board
      ▲                 every quarter of a lease ◀──────────────┤ ▲
      │                                          deadline is due ▼ │ NextDeadline, StateUpdate, Pong
      └── the connection broke, or no Pong for a lease ◀── awaiting leader

Rules that hold here:
- Replicated situations are valid for a lease after a ping that was answered was sent, by a clock
  that goes on while the machine sleeps. After that nothing is known: emergencies grant nothing.
- They are valid up to the deadline at which time alone may change one (`ClockBound`). Beyond it
  they may be out of date until the leader sends an update: what depends on them waits for that
  (`wait_current`), and is decided without them where the lease ends first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

from penstock.clock import boot_clock
from penstock.gateway.publications import PublishRequest, PublishResult
from penstock.gateway.replication.link import CHECKS_PER_LEASE, Link, ReplicationTerms
from penstock.gateway.replication.protocol import (
    Ack,
    ChannelError,
    Durable,
    Join,
    Leave,
    Message,
    NextDeadline,
    Ping,
    Pong,
    PublishResponse,
    SituationRow,
    StateUpdate,
)
from penstock.gateway.replication.submissions import PublicationDecider, Submissions
from penstock.policy.access.emergencies import SituationBoard
from penstock.telemetry import metrics

_FIRST_LEASE: Final = 1.0
_DRIFT: Final = 0.001

_JOINED = metrics.gauge(
    "penstock_gateway_situations_replicated",
    "1 while this follower has situations from the leader, 0 while it does not.",
).plain
_OUTDATED = metrics.counter(
    "penstock_gateway_leader_waits",
    "Times that a decision had to wait for the leader at a deadline.",
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
        """Before this moment only updates change the state."""
        self._now = 0.0
        self._behind = -inf
        """What our clock shows more than the leader's, at least, as of `_now` there."""

    def note_answer(self, sent: float, now: float) -> None:
        """Note that a ping that was sent at a moment here was answered at a moment there."""
        self._behind = max(sent - now, self._behind - _DRIFT * abs(now - self._now))
        self._now = now

    def note_deadline(self, due: float | None) -> None:
        """Note the next deadline there; None: there is none."""
        if due is None:
            self.until = inf
        else:
            self.until = due + self._behind - _DRIFT * max(0.0, due - self._now)


class ReplicationFollower:
    """Follows the leader: has its situations, and submits messages to it."""

    def __init__(
        self,
        board: SituationBoard,
        decider: PublicationDecider,
        terms: ReplicationTerms | None,
        *,
        on_lost: Callable[[str], None],
        on_current: Callable[[], None],
    ) -> None:
        self.joined = False
        self.awaiting_leader = False
        """Whether replicated state may be out of date: a deadline is over."""
        self.submissions = Submissions(decider)
        self._board = board
        self._terms = terms
        self._on_lost = on_lost
        self._on_current = on_current
        """Called when nothing waits for the leader any more: there is an update, or it is lost."""
        self._link: Link | None = None
        self._joining: asyncio.Future[str] | None = None
        self._lease = 0.0
        """How long replicated state is valid after a ping; the leader says so."""
        self._valid_until = 0.0
        self._clock_bound = ClockBound()
        self._patient_until = 0.0
        self._pings: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._current = asyncio.Event()

    # --- the connection to the leader ---

    async def join(self, address: str, seconds: float) -> str:
        """Connect to the leader; return what keeps us from it, if anything."""
        terms = self._terms
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
        """Rely on replicated state no longer, and tell the leader."""
        link = self._link
        if link is not None:
            self._lose(why)
            link.send(Leave())
            link.close(why)

    def _open_link(self, link: Link) -> None:
        link.send(Join(self.submissions.name))
        self._pings.clear()
        self._valid_until = self._lease = 0.0
        self._clock_bound = ClockBound()
        self._ping(link)
        if self._timer is None:
            self._check()

    def _end(self, link: Link, why: str) -> None:
        if self._link is link:
            self._lose(why)

    def _lose(self, why: str) -> None:
        self._link = None
        if self._joining is not None and not self._joining.done():
            self._joining.set_result(f"the connection to it ended: {why}")
        if self.joined:
            self.joined = False
            self.submissions.disconnect()
            self._board.invalidate(why)
            _JOINED.set(0)
            if self._terms is not None:
                self._patient_until = boot_clock() + self._terms.patience
            self._on_lost(why)
            self._end_wait()

    # --- replicated state ---

    def check_deadline(self) -> None:
        """Notice that the lease is over, or that time may have changed a situation."""
        if not self.joined:
            return
        now = boot_clock()
        if now > self._valid_until:
            self.leave("it has not answered in time")
        elif now >= self._clock_bound.until and not self.awaiting_leader:
            self.awaiting_leader = True
            self._current.clear()
            self._board.invalidate("time may have changed them")
            _OUTDATED.inc()
            if self._link is not None:
                # Its timer is about to fire; or its clock is slower than ours, then the Pong says.
                self._ping(self._link)

    async def wait_current(self) -> None:
        """Wait until replicated state is up to date, or lost."""
        if self.awaiting_leader:
            await self._current.wait()

    def _note_deadline(self, due: float | None) -> None:
        """Note when time alone may change a situation."""
        self._clock_bound.note_deadline(due)
        if self.awaiting_leader and boot_clock() < self._clock_bound.until:
            self._board.revalidate()
            self._end_wait()

    def _end_wait(self) -> None:
        if self.awaiting_leader:
            self.awaiting_leader = False
            self._current.set()
            asyncio.get_running_loop().call_soon(self._on_current)

    def _ping(self, link: Link) -> None:
        """Ask whether the leader still is one."""
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
                self._note_deadline(message.due)
                link.send(Ack(message.number))
            case NextDeadline():
                self._note_deadline(message.due)
            case PublishResponse():
                self.submissions.take_response(message)
            case Durable():
                self.submissions.take_durable(message.numbers)
            case _:
                raise ChannelError("a gateway said what it has not to say")

    def _fill(self, rows: list[SituationRow]) -> None:
        self._board.fill((name, who, it) for name, who, it in rows if it)
        if self.awaiting_leader:
            self._board.invalidate("time may have changed them")

    def _hear_pong(self, link: Link, pong: Pong) -> None:
        sent = self._pings.get(pong.number)
        if sent is None:
            raise ChannelError("a gateway answered what it was not asked")
        self._pings = {it: at for it, at in self._pings.items() if it >= pong.number}
        if pong.situations is not None:
            self._lease = pong.lease
        self._valid_until = max(self._valid_until, sent + self._lease)
        self._clock_bound.note_answer(sent, pong.now)
        self._note_deadline(pong.due)
        if pong.situations is None:
            return
        if boot_clock() > self._valid_until:
            # The ping is older than the lease: the state comes anew with the next connection.
            self.leave("it has answered too late")
            return
        self._fill(pong.situations)
        self.joined = True
        _JOINED.set(1)
        if self._joining is not None and not self._joining.done():
            self._joining.set_result("")
        self.submissions.connect(link.send)

    def _check(self) -> None:
        """Ping; notice what has taken too long."""
        self._timer = None
        self.check_deadline()
        self.submissions.expire(patient=self.asks)
        if self._link is not None and self._link.open:
            self._ping(self._link)
        if self._link is not None or self.submissions:
            pause = (self._lease or _FIRST_LEASE) / CHECKS_PER_LEASE
            self._timer = asyncio.get_running_loop().call_later(pause, self._check)

    # --- submissions ---

    @property
    def asks(self) -> bool:
        """Whether there is a leader to submit to, or will be soon."""
        return self.joined or boot_clock() <= self._patient_until

    def submit(self, request: PublishRequest) -> asyncio.Future[PublishResult]:
        """Submit a message to the leader."""
        patience = self._terms.patience if self._terms is not None else 0.0
        response = self.submissions.submit(request, patience)
        if self._timer is None:
            self._check()
        return response

    def give_up(self) -> None:
        """Wait for no leader any more."""
        self._patient_until = 0.0
        self.submissions.fail_all()

"""The other gateways, at the one that detects: what they are told, and what they ask.

    transition ──▶ StateUpdate ──▶ each neighbour ──▶ Ack ──▶ what waited for it goes on
    a timer has fired ──▶ NextDeadline ──▶ each neighbour: until then nothing changes by itself
    Submit ──▶ decided, detected here ──▶ known to all ──▶ PublishResponse ──▶ on record ──▶ Durable

Rules that hold here:
- A neighbour goes by what it was told for `lease` seconds after it last asked (Ping) and was
  answered. One that is silent for longer goes by nothing any more and is dropped. Where a
  connection breaks before that, what was told last counts as unknown for as long.
- `pending` is the number of the last change that not every neighbour knows. Messages that
  were decided on after such a change are not passed on before all know it, and no step is
  written down before (`wait_replicated`): so nothing is acknowledged that another gateway could
  contradict, and nobody is delivered a message under a situation that it has ended.
- With all that they are told they are told when time alone may change a situation next; beyond
  that they know nothing until they are told more. A moment that comes sooner than they were
  told is a change that all must know.
- Who has just taken over does not know whom the one before has told: it waits for as long as
  these go by it. That is on record before the first one is told; where nobody was, it is not.
- Messages of one neighbour are decided in the order in which it sent them. They wait for the
  definitions that the neighbour knows.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from penstock.clock import boot_clock
from penstock.errors import PenstockError, UnavailableError
from penstock.gateway.publish_result import NO_LEADER, Journal, PublishResult
from penstock.gateway.replication.channel import ChannelError
from penstock.gateway.replication.deduplication import SubmissionId
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
    SituationRow,
    StateUpdate,
    Submit,
    check_version,
)
from penstock.telemetry import get_logger, metrics

LINKS: Final = 1_000
STRANGERS: Final = 100
BACKLOG: Final = 100_000
LOOKS: Final = 4
"""Pings, and looks at who is silent, per lease."""
_MARGIN: Final = 1.05
_EPOCH_SECONDS: Final = 0.01
_NAME: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)

_NEIGHBOURS = metrics.gauge(
    "penstock_gateway_neighbours", "Other gateways that know the situations from this one."
).plain
_SUBMITTED = metrics.counter(
    "penstock_gateway_submitted",
    "Messages of other gateways' clients that were looked at here.",
    outcome=("passed", "refused"),
)
_log = get_logger("gateway")

Told = Callable[[bool], None]
"""Called with whether all neighbours know."""


class Peer:
    """One of the other gateways."""

    __slots__ = ("asked", "backlog", "durable", "heard", "known", "left", "link", "name", "told")

    def __init__(self, link: Link, name: str) -> None:
        self.link = link
        self.name = name
        self.told = False
        """Whether it knows the situations."""
        self.known = 0
        self.heard = boot_clock()
        self.asked: int | None = None
        """The ping that was not answered: events are not detected yet."""
        self.left = False
        self.backlog: deque[Submit] = deque()
        self.durable: list[int] = []


class ReplicationLeader:
    """All other gateways that this one detects for."""

    def __init__(
        self,
        *,
        knows: Callable[[], bool],
        takes: Callable[[], bool],
        situations: Callable[[], list[SituationRow]],
        next_deadline: Callable[[], float | None],
        journal: Journal,
    ) -> None:
        self.pending = 0
        self.decide: Callable[[PublishRequest, SubmissionId], PublishResult] = _decide_nothing
        """Decides on a neighbour's message, and lets it take effect."""
        self.announce: Callable[[float], Awaitable[None]] | None = None
        """Puts on record for how long others go by what they are told, before the first one is."""
        self.epoch: Callable[[], int] = int
        """Tells which definitions are known here."""
        self._knows = knows
        self._takes = takes
        self._situations = situations
        self._next_deadline = next_deadline
        self._journal = journal
        self._lease = 0.0
        self._told = 0
        self._deadline: int | None = None
        """When time alone may change a situation, as the others were told."""
        self._quiet_until = 0.0
        self._neighbours: dict[Link, Peer] = {}
        self._strangers: dict[Link, None] = {}
        self._waiting: deque[tuple[int, Told]] = deque()
        self._earlier = deque([0], LOOKS + 1)
        """What had been told at the last looks; who does not know the first of it is too slow."""
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._term = 0
        """Counts the times that events were not detected here any more."""
        self._announced = False
        self._announcing: asyncio.Task[None] | None = None

    # --- its life ---

    async def listen(self, terms: ReplicationTerms, host: str, port: int) -> int:
        """Let other gateways come; return the port."""
        loop = asyncio.get_running_loop()
        self._lease = terms.lease

        def make() -> Link:
            link = Link(terms, caller=False, opened=_nothing, heard=self._hear, ended=self._forget)
            self._strangers[link] = None
            if len(self._strangers) > STRANGERS:
                next(iter(self._strangers)).close("there are too many strangers")
            return link

        try:
            self._server = await loop.create_server(make, host, port)
        except OSError as error:
            raise UnavailableError(
                f"other gateways cannot reach this one at {host}:{port}: {type(error).__name__}",
                fix="set gateway.emergencies.link_host and link_port to an address of this host",
            ) from error
        self._look()
        return int(self._server.sockets[0].getsockname()[1])

    def begin(self, deadline: int | None, others_until: float = 0.0) -> None:
        """Take note that events are detected here from now on; tell those who wait.

        Until then (of `boot_clock`) others may go by what the one before has told them. That
        one has told the same moment at which time alone may change a situation.
        """
        self._deadline = deadline
        self._wait_until(others_until)
        self._answer_all()

    def _answer_all(self) -> None:
        """Tell those who wait to be told, and decide on what waits."""
        for neighbour in list(self._neighbours.values()):
            if neighbour.asked is not None:
                self._answer_ping(neighbour, neighbour.asked)
            self._work_off(neighbour)

    def dismiss(self, why: str) -> None:
        """Take note that events are not detected here any more."""
        self._term += 1
        self._announced = False
        for neighbour in list(self._neighbours.values()):
            if neighbour.told:
                neighbour.link.close(why)
        waiting, self._waiting = self._waiting, deque()
        self.pending = 0
        for _, told in waiting:
            told(False)  # noqa: FBT003

    def close(self) -> None:
        """Let nobody come any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        self.dismiss("the gateway ends")
        for link in [*self._strangers, *self._neighbours]:
            link.close("the gateway ends")

    # --- what they are told ---

    def tell(self, rows: list[SituationRow], deadline: int | None, *, whole: bool = False) -> None:
        """Let all of them know of changed situations, and when time alone may change one."""
        before, self._deadline = self._deadline, deadline
        news = whole or bool(rows)
        if not news and before == deadline:
            return
        if not self._neighbours and not self._is_quiet():
            return
        sooner = deadline is not None and (before is None or deadline < before)
        if not news and not sooner:
            self._send(NextDeadline(self._next_deadline()))
            return
        self._told += 1
        self.pending = self._told
        self._send(StateUpdate(self._told, rows, self._next_deadline(), whole))
        self._settle()

    def _send(self, message: StateUpdate | NextDeadline) -> None:
        for neighbour in self._neighbours.values():
            if neighbour.told:
                neighbour.link.send(message)

    def when_replicated(self, told: Told) -> None:
        """Call back when all know what was told up to now, or never will from here."""
        if self.pending:
            self._waiting.append((self.pending, told))
        else:
            told(True)  # noqa: FBT003

    async def wait_replicated(self) -> bool:
        """Wait until all know what was told up to now; False: it is not ours to tell any more."""
        if not self.pending:
            return True
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settle(known: bool) -> None:  # noqa: FBT001
            if not reached.done():
                reached.set_result(known)

        self.when_replicated(settle)
        return await reached

    def _is_quiet(self) -> bool:
        return boot_clock() < self._quiet_until

    def _wait_until(self, moment: float) -> None:
        """Take nothing for known before a moment: somebody may go by what was told before."""
        if moment > self._quiet_until:
            self._quiet_until = moment
            seconds = max(0.0, moment - boot_clock())
            asyncio.get_running_loop().call_later(seconds + 0.001, self._settle)

    def _settle(self) -> None:
        """Let those go on who wait for what all know now."""
        if not self.pending or self._is_quiet():
            return
        known = min((it.known for it in self._neighbours.values() if it.told), default=self._told)
        if known >= self._told:
            self.pending = 0
        while self._waiting and self._waiting[0][0] <= known:
            self._waiting.popleft()[1](True)  # noqa: FBT003

    # --- what they say ---

    def _hear(self, link: Link, message: Message) -> None:
        neighbour = self._neighbours.get(link)
        if neighbour is None:
            if not isinstance(message, Join) or not _NAME.fullmatch(str(message.neighbour)):
                raise ChannelError("a gateway did not say who it is")
            check_version(message)
            if len(self._neighbours) >= LINKS:
                raise ChannelError("there are too many gateways")
            self._strangers.pop(link, None)
            self._neighbours[link] = Peer(link, message.neighbour)
            return
        match message:
            case Ack():
                neighbour.known = max(neighbour.known, message.number)
                self._settle()
            case Submit():
                self._take(neighbour, message)
            case Ping():
                self._answer_ping(neighbour, message.number)
            case Leave():
                neighbour.left = True
                link.close("it left")
            case _:
                raise ChannelError("a gateway said what it has not to say")

    def _answer_ping(self, neighbour: Peer, number: int) -> None:
        neighbour.heard = boot_clock()
        if not self._knows():
            neighbour.asked = number
            return
        neighbour.asked = None
        if neighbour.told:
            neighbour.link.send(Pong(number, neighbour.heard, self._next_deadline()))
            return
        if not self._announced and self.announce is not None:
            neighbour.asked = number
            if self._announcing is None:
                work = self._announce(self.announce)
                self._announcing = asyncio.get_running_loop().create_task(work)
            return
        # It knew nothing until now, so that it cannot go by anything older.
        neighbour.told = True
        neighbour.known = self._told
        neighbour.link.send(
            Pong(number, neighbour.heard, self._next_deadline(), self._situations(), self._lease)
        )
        _NEIGHBOURS.set(sum(it.told for it in self._neighbours.values()))

    async def _announce(self, announce: Callable[[float], Awaitable[None]]) -> None:
        term = self._term
        try:
            await announce(_MARGIN * self._lease)
        except PenstockError as error:
            # The next ping asks again, if there is anything to tell by then.
            _log.warning("other gateways cannot be told yet", error=error)
            return
        finally:
            self._announcing = None
        if term == self._term:
            self._announced = True
        self._answer_all()

    def _forget(self, link: Link, why: str) -> None:
        self._strangers.pop(link, None)
        neighbour = self._neighbours.pop(link, None)
        if neighbour is None:
            if why:
                _log.warning("a connection from another gateway was refused", reason="link")
            return
        _NEIGHBOURS.set(sum(it.told for it in self._neighbours.values()))
        neighbour.backlog.clear()
        if neighbour.told and not neighbour.left:
            self._wait_until(neighbour.heard + _MARGIN * self._lease)
        self._settle()

    def _look(self) -> None:
        """Drop those who are silent, and go by nothing any more; and those who do not follow."""
        latest = boot_clock() - _MARGIN * self._lease
        self._earlier.append(self._told)
        for neighbour in list(self._neighbours.values()):
            if neighbour.heard < latest:
                _log.warning("another gateway is silent and is no longer told")
                neighbour.link.close("it is silent")
            elif neighbour.told and neighbour.known < self._earlier[0]:
                _log.warning("another gateway does not take in what it is told")
                neighbour.link.close("it does not follow")
        pause = self._lease / LOOKS
        self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    # --- what they ask ---

    def _take(self, neighbour: Peer, message: Submit) -> None:
        if len(neighbour.backlog) >= BACKLOG:
            raise ChannelError("a gateway asks too much")
        neighbour.backlog.append(message)
        if len(neighbour.backlog) == 1:
            self._work_off(neighbour)

    def _work_off(self, neighbour: Peer) -> None:
        """Decide on what waits, as far as the definitions are known and events detected."""
        backlog = neighbour.backlog
        while backlog and self._takes():
            if backlog[0].epoch > self.epoch():
                asyncio.get_running_loop().call_later(_EPOCH_SECONDS, self._work_off, neighbour)
                return
            message = backlog.popleft()
            receipt = SubmissionId(neighbour.name, message.number, message.oldest)
            result = self.decide(message.asked, receipt)
            _SUBMITTED["passed" if result.accepted else "refused"].inc()
            self.when_replicated(partial(self._answer, neighbour, message.number, result))

    def _answer(self, neighbour: Peer, number: int, result: PublishResult, known: bool) -> None:  # noqa: FBT001
        if not known:
            return  # The connection is closed: whoever asked asks the next one.
        event = result.ticket > self._journal.durable
        neighbour.link.send(PublishResponse(number, result.outcome, result.rule, event))
        if event:
            self._journal.wait(result.ticket, partial(self._confirm, neighbour, number))

    def _confirm(self, neighbour: Peer, number: int, durable: bool) -> None:  # noqa: FBT001
        if not durable:
            neighbour.link.close("events are not detected here")
            return
        if not neighbour.durable:
            asyncio.get_running_loop().call_soon(self._tell_durable, neighbour)
        neighbour.durable.append(number)

    @staticmethod
    def _tell_durable(neighbour: Peer) -> None:
        numbers, neighbour.durable = neighbour.durable, []
        neighbour.link.send(Durable(numbers))


def _decide_nothing(asked: PublishRequest, receipt: SubmissionId) -> PublishResult:
    """Stand in until there is who decides."""
    del asked, receipt
    return NO_LEADER


def _nothing(link: Link) -> None:
    """Wait until the other says who it is."""

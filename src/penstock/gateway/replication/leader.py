"""The leader's side of replication: it updates its followers and decides on what they submit.

    transition ──▶ StateUpdate ──▶ each follower ──▶ Ack ──▶ what waited for the acks goes on
    a timer has fired ──▶ NextDeadline ──▶ each follower: no change by time alone before then
    Submit ──▶ decided, detected ──▶ acked by all ──▶ PublishResponse ──▶ journaled ──▶ Durable

Rules that hold here:
- A follower relies on replicated state for `lease` seconds after a ping that was answered. The
  leader drops a follower that is silent for longer. Where a connection breaks before that, the
  follower may rely on its last state for as long (`_doubt_until`).
- `pending` is the number of the last update that some follower has not acknowledged. Messages
  that were decided on after it are not passed on, and no step is journaled, before all have
  (`wait_replicated`). So nothing is acknowledged to a publisher that another gateway could
  contradict, and nobody receives a message under a situation that the message has ended.
- Each update carries the next deadline at which time alone may change a situation; beyond it
  followers know nothing until the next update. A deadline that comes sooner than the last one is
  an update that all must acknowledge.
- A new leader does not know the followers of the last one: it waits until their leases are over.
  The store has that lease on record before the first follower gets any state.
- Submissions of one follower are decided in order. They wait for the definitions that the
  follower knows.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from penstock.clock import boot_clock
from penstock.errors import PenstockError, UnavailableError
from penstock.gateway.publications import PublishResult, SubmissionId
from penstock.gateway.replication.link import (
    CHECKS_PER_LEASE,
    IncomingLink,
    Link,
    ReplicationTerms,
    Strangers,
)
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
    Submit,
    check_version,
)
from penstock.gateway.replication.submissions import PublicationDecider
from penstock.telemetry import get_logger, metrics

MAX_FOLLOWERS: Final = 1_000
MAX_BACKLOG: Final = 100_000
_MARGIN: Final = 1.05
_EPOCH_SECONDS: Final = 0.01
_NAME: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)

_FOLLOWERS = metrics.gauge(
    "penstock_gateway_followers", "Followers that have their situations from this leader."
).plain
_SUBMITTED = metrics.counter(
    "penstock_gateway_submissions_received",
    "Messages that followers submitted to this leader, by what became of them.",
    outcome=("passed", "refused"),
)
_log = get_logger("gateway")

Replicated = Callable[[bool], None]
"""Called with whether all followers have acknowledged."""


class ReplicatedState(Protocol):
    """The state of detection that a leader replicates."""

    def is_known(self) -> bool:
        """Say whether the situations are known, so that followers can get them."""

    def accepts_submissions(self) -> bool:
        """Say whether events can be detected now."""

    def situations(self) -> list[SituationRow]:
        """Return all situations that hold."""

    def next_deadline(self) -> float | None:
        """Return when time alone may change a situation, by `boot_clock`; None: never."""


class Peer:
    """One follower, as the leader knows it."""

    __slots__ = ("acked", "backlog", "durable", "heard", "left", "link", "name", "ping", "synced")

    def __init__(self, link: Link, name: str) -> None:
        self.link = link
        self.name = name
        self.synced = False
        """Whether it has got the situations."""
        self.acked = 0
        """The last update that it acknowledged."""
        self.heard = boot_clock()
        self.ping: int | None = None
        """The ping that is not answered yet: the situations are not known."""
        self.left = False
        self.backlog: deque[Submit] = deque()
        self.durable: list[int] = []


class ReplicationLeader:
    """The followers of this gateway, while it detects."""

    def __init__(
        self,
        state: ReplicatedState,
        decider: PublicationDecider,
        terms: ReplicationTerms | None,
        announce: Callable[[float], Awaitable[None]],
    ) -> None:
        self.pending = 0
        self._state = state
        self._decider = decider
        self._terms = terms
        self._lease = terms.lease if terms is not None else 0.0
        self._announce = announce
        """Puts the followers' lease on record in the store, before the first gets any state."""
        self._updates = 0
        self._deadline: int | None = None
        """The next deadline, as the followers know it."""
        self._doubt_until = 0.0
        self._peers: dict[Link, Peer] = {}
        self._strangers = Strangers()
        self._waiting: deque[tuple[int, Replicated]] = deque()
        self._sent_before = deque([0], CHECKS_PER_LEASE + 1)
        """The updates sent at the last checks; who has not acked the first of them is too slow."""
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._term = 0
        """Counts the times that this gateway stepped down."""
        self._announced = False
        self._announcing: asyncio.Task[None] | None = None

    # --- life cycle ---

    async def listen(self, host: str, port: int) -> int:
        """Accept followers; return the port."""
        loop = asyncio.get_running_loop()
        terms = self._terms
        if terms is None:
            raise UnavailableError("this gateway does not share detection with others")

        def make() -> Link:
            return IncomingLink(terms, self._strangers, heard=self._hear, ended=self._forget)

        try:
            self._server = await loop.create_server(make, host, port)
        except OSError as error:
            raise UnavailableError(
                f"other gateways cannot reach this one at {host}:{port}: {type(error).__name__}",
                fix="set gateway.emergencies.link_host and link_port to an address of this host",
            ) from error
        self._check_peers()
        return int(self._server.sockets[0].getsockname()[1])

    def lead(self, deadline: int | None, others_until: float = 0.0) -> None:
        """Start to replicate: the situations are known here from now on.

        Until `others_until` (of `boot_clock`) the followers of the last leader may rely on its
        state. They have the same deadline from it.
        """
        self._deadline = deadline
        self._doubt(others_until)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        """Answer the pings that wait, and decide on the backlogs."""
        for peer in list(self._peers.values()):
            if peer.ping is not None:
                self._answer_ping(peer, peer.ping)
            self._decide_backlog(peer)

    def step_down(self, why: str) -> None:
        """Stop to replicate: the situations are not known here any more."""
        self._term += 1
        self._announced = False
        for peer in list(self._peers.values()):
            if peer.synced:
                peer.link.close(why)
        waiting, self._waiting = self._waiting, deque()
        self.pending = 0
        for _, replicated in waiting:
            replicated(False)  # noqa: FBT003

    def close(self) -> None:
        """Accept nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        self.step_down("the gateway ends")
        for link in [*self._strangers, *self._peers]:
            link.close("the gateway ends")

    # --- updates ---

    def replicate(
        self, rows: list[SituationRow], deadline: int | None, *, whole: bool = False
    ) -> None:
        """Send changed situations, and the next deadline, to all followers."""
        before, self._deadline = self._deadline, deadline
        changed = whole or bool(rows)
        if not changed and before == deadline:
            return
        if not self._peers and not self._in_doubt():
            return
        sooner = deadline is not None and (before is None or deadline < before)
        if not changed and not sooner:
            self._send(NextDeadline(self._state.next_deadline()))
            return
        self._updates += 1
        self.pending = self._updates
        self._send(StateUpdate(self._updates, rows, self._state.next_deadline(), whole))
        self._settle()

    def _send(self, message: StateUpdate | NextDeadline) -> None:
        for peer in self._peers.values():
            if peer.synced:
                peer.link.send(message)

    def when_replicated(self, replicated: Replicated) -> None:
        """Call back when all have acknowledged what was sent up to now, or never will."""
        if self.pending:
            self._waiting.append((self.pending, replicated))
        else:
            replicated(True)  # noqa: FBT003

    async def wait_replicated(self) -> bool:
        """Wait until all have acknowledged what was sent up to now; False: we stepped down."""
        if not self.pending:
            return True
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settle(acked: bool) -> None:  # noqa: FBT001
            if not reached.done():
                reached.set_result(acked)

        self.when_replicated(settle)
        return await reached

    def _in_doubt(self) -> bool:
        return boot_clock() < self._doubt_until

    def _doubt(self, until: float) -> None:
        """Count nothing as acknowledged before a moment: some gateway may rely on older state."""
        if until > self._doubt_until:
            self._doubt_until = until
            seconds = max(0.0, until - boot_clock())
            asyncio.get_running_loop().call_later(seconds + 0.001, self._settle)

    def _settle(self) -> None:
        """Call back those who wait for what all have acknowledged by now."""
        if not self.pending or self._in_doubt():
            return
        acked = min((it.acked for it in self._peers.values() if it.synced), default=self._updates)
        if acked >= self._updates:
            self.pending = 0
        while self._waiting and self._waiting[0][0] <= acked:
            self._waiting.popleft()[1](True)  # noqa: FBT003

    # --- messages of followers ---

    def _hear(self, link: Link, message: Message) -> None:
        peer = self._peers.get(link)
        if peer is None:
            if not isinstance(message, Join) or not _NAME.fullmatch(str(message.follower)):
                raise ChannelError("a gateway did not say who it is")
            check_version(message)
            if len(self._peers) >= MAX_FOLLOWERS:
                raise ChannelError("there are too many gateways")
            self._strangers.leave(link)
            self._peers[link] = Peer(link, message.follower)
            return
        match message:
            case Ack():
                peer.acked = max(peer.acked, message.number)
                self._settle()
            case Submit():
                self._enqueue(peer, message)
            case Ping():
                self._answer_ping(peer, message.number)
            case Leave():
                peer.left = True
                link.close("it left")
            case _:
                raise ChannelError("a gateway said what it has not to say")

    def _answer_ping(self, peer: Peer, number: int) -> None:
        peer.heard = boot_clock()
        if not self._state.is_known():
            peer.ping = number
            return
        peer.ping = None
        if peer.synced:
            peer.link.send(Pong(number, peer.heard, self._state.next_deadline()))
            return
        if not self._announced:
            peer.ping = number
            if self._announcing is None:
                self._announcing = asyncio.get_running_loop().create_task(self._announce_lease())
            return
        # It had no state until now, so that it cannot rely on anything older.
        peer.synced = True
        peer.acked = self._updates
        state = self._state
        peer.link.send(
            Pong(number, peer.heard, state.next_deadline(), state.situations(), self._lease)
        )
        self._count_followers()

    async def _announce_lease(self) -> None:
        term = self._term
        try:
            await self._announce(_MARGIN * self._lease)
        except PenstockError as error:
            # The next ping retries, if the situations are still known by then.
            _log.warning("the lease of followers is not on record yet", error=error)
            return
        finally:
            self._announcing = None
        if term == self._term:
            self._announced = True
        self._serve_waiting()

    def _forget(self, link: Link, why: str) -> None:
        self._strangers.leave(link)
        peer = self._peers.pop(link, None)
        if peer is None:
            if why:
                self._strangers.note_refusal()
            return
        self._count_followers()
        peer.backlog.clear()
        if peer.synced and not peer.left:
            self._doubt(peer.heard + _MARGIN * self._lease)
        self._settle()

    def _count_followers(self) -> None:
        _FOLLOWERS.set(sum(it.synced for it in self._peers.values()))

    def _check_peers(self) -> None:
        """Drop followers whose lease is over, and those that do not acknowledge in time."""
        latest = boot_clock() - _MARGIN * self._lease
        self._sent_before.append(self._updates)
        for peer in list(self._peers.values()):
            if peer.heard < latest:
                _log.warning("a follower is silent and is dropped")
                peer.link.close("it is silent")
            elif peer.synced and peer.acked < self._sent_before[0]:
                _log.warning("a follower does not acknowledge updates and is dropped")
                peer.link.close("it does not follow")
        pause = self._lease / CHECKS_PER_LEASE
        self._timer = asyncio.get_running_loop().call_later(pause, self._check_peers)

    # --- submissions ---

    def _enqueue(self, peer: Peer, message: Submit) -> None:
        if len(peer.backlog) >= MAX_BACKLOG:
            raise ChannelError("a gateway asks too much")
        peer.backlog.append(message)
        if len(peer.backlog) == 1:
            self._decide_backlog(peer)

    def _decide_backlog(self, peer: Peer) -> None:
        """Decide on what waits, as far as the definitions are known and events detected."""
        backlog = peer.backlog
        while backlog and self._state.accepts_submissions():
            if backlog[0].epoch > self._decider.epoch:
                asyncio.get_running_loop().call_later(_EPOCH_SECONDS, self._decide_backlog, peer)
                return
            message = backlog.popleft()
            submission = SubmissionId(peer.name, message.number, message.oldest)
            result = self._decider.decide(message.request, submission)
            _SUBMITTED["passed" if result.accepted else "refused"].inc()
            self.when_replicated(partial(self._respond, peer, message.number, result))

    @staticmethod
    def _respond(peer: Peer, number: int, result: PublishResult, acked: bool) -> None:  # noqa: FBT001
        if not acked:
            return  # The connection is closed: the follower submits to the next leader.
        event = result.awaits_journal
        peer.link.send(PublishResponse(number, result.outcome, result.rule, event))
        if event:
            result.when_durable(partial(_confirm, peer, number))


def _confirm(peer: Peer, number: int, durable: bool) -> None:  # noqa: FBT001
    if not durable:
        peer.link.close("events are not detected here")
        return
    if not peer.durable:
        asyncio.get_running_loop().call_soon(_send_durable, peer)
    peer.durable.append(number)


def _send_durable(peer: Peer) -> None:
    numbers, peer.durable = peer.durable, []
    peer.link.send(Durable(numbers))

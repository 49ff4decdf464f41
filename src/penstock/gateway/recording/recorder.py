"""Writes accepted messages to the event log, asynchronously to their delivery.

    forward ──▶ record ──▶ buffer ──▶ one batch at a time ──▶ event log ──▶ durable
                   │                        └── fails: retried with backoff
                   └── full ──▶ wait: backpressure on the publisher │ shed: left out, counted

Rules that hold here:
- Only what was authorised comes here, as it goes to the broker. Commands and `$` topics
  never do. A message that carries purposes of its own is left out and counted: the log
  could not keep to them.
- A message on its way to the broker never waits for the log: it is appended to the buffer.
  The buffer is bounded, but for one message of each publisher that waits for room.
- Nothing in the buffer is dropped while the gateway runs, however long the log is out of
  reach. Records of a stream keep the order in which messages were accepted here.
- With `acknowledge: recorded` the acknowledgement of a message of QoS 1 or 2 is deferred
  until the log has it; after the time-out the connection ends instead. So what is
  acknowledged is in the log, and the client resends what a crash took: at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from penstock.config.gateway import RecordingSettings
from penstock.gateway.publications import Journal
from penstock.gateway.recording.log_writer import Batch, Entry, LogWriter, OpenTopic
from penstock.gateway.recording.topic_mapping import MAX_VALUE, TopicMapping, TopicMappings
from penstock.mqtt import Publish
from penstock.mqtt.properties import UserProperties
from penstock.policy.access.principals import ANONYMOUS
from penstock.telemetry import get_logger, metrics

BATCH_RECORDS: Final = 1_000
BATCH_BYTES: Final = 2 << 20
BATCH_MILLISECONDS: Final = 100
"""Records of a batch have one time: that of its first."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
_ENTRY_BYTES: Final = 512
"""About what a message that waits takes, however empty it is."""
_PROPERTY_BYTES: Final = 160
_QOS: Final = 0x06

_log = get_logger("gateway")

Settled = Callable[[bool], None]
"""Called with whether what was waited for is in the log."""

_WRITTEN = metrics.counter(
    "penstock_recording_written", "Messages that the event log has got from the gateway."
).plain
_LEFT_OUT = metrics.counter(
    "penstock_recording_left_out",
    "Messages that feed a stream and were not recorded: no room in the buffer (shed), purposes "
    "of their own (restricted), wills and messages of actions that are too long (long), the log "
    "out of reach when the gateway ended (ended).",
    reason=("shed", "restricted", "long", "ended"),
)
_FAILED = metrics.counter(
    "penstock_recording_failures", "Batches that the event log did not take at the first try."
).plain
_BUFFERED = metrics.gauge(
    "penstock_recording_buffered_bytes", "What waits for the event log, in bytes."
).plain
_LAG = metrics.gauge(
    "penstock_recording_lag_seconds", "How long the oldest message waits for the event log."
).plain


class AckDeferral(Protocol):
    """Defers a publisher's acknowledgements."""

    def expect(self, journal: Journal, packet_id: int, ticket: int) -> None:
        """Defer the acknowledgement of a packet until its ticket is durable."""


class Recorder:
    """Records the messages of one gateway in the event log."""

    def __init__(self, settings: RecordingSettings, open_topic: OpenTopic) -> None:
        self.mappings = TopicMappings()
        self.added = 0
        self.durable = 0
        self.buffered = 0
        """What waits, in bytes."""
        self._settings = settings
        self._defers_acks = settings.acknowledge == "recorded"
        self._writer = LogWriter(open_topic)
        self._waiting: deque[Entry] = deque()
        self._writing: Batch | None = None
        self._awaited: deque[tuple[int, float, Settled]] = deque()
        self._room = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""
        self._ended = False

    # --- messages in ---

    def record(
        self, packet: Publish, principal: str, acks: AckDeferral, *, restricted: bool
    ) -> Coroutine[Any, Any, None] | None:
        """Record a message where it feeds a stream; return what its publisher must wait for."""
        mappings = self.mappings.of(packet.topic)
        if not mappings:
            return None
        if restricted:
            _LEFT_OUT["restricted"].inc()
            return None
        qos = packet.first & _QOS
        overflow = self._settings.overflow
        sheds = overflow == "shed-all" or (overflow == "shed" and not qos)
        if sheds and self._is_full():
            _LEFT_OUT["shed"].inc()
            return None
        publisher = None if principal == ANONYMOUS else principal
        self._put(mappings, packet.topic, packet.payload, publisher, packet.properties.user)
        if qos and self._defers_acks:
            acks.expect(self, packet.packet_id, self.added)
        return self._wait_for_room() if self._is_full() and not sheds else None

    def note(
        self,
        topic: str,
        payload: bytes,
        restricted: bool,  # noqa: FBT001
        properties: UserProperties = (),
    ) -> None:
        """Record a message without backpressure: a message of an action, or a will."""
        mappings = self.mappings.of(topic)
        if not mappings:
            return
        if restricted:
            _LEFT_OUT["restricted"].inc()
        elif len(payload) > MAX_VALUE:
            _LEFT_OUT["long"].inc()
        elif self._settings.overflow != "wait" and self._is_full():
            _LEFT_OUT["shed"].inc()
        else:
            self._put(mappings, topic, payload, properties=properties)

    def feeds(self, topic: str) -> bool:
        """Say whether messages on a topic are recorded."""
        return bool(self.mappings.of(topic))

    def wait(self, ticket: int, settled: Settled) -> None:
        """Call back when the log has a message, or when that has taken too long."""
        if ticket <= self.durable:
            settled(True)  # noqa: FBT003
        else:
            deadline = time.monotonic() + self._settings.timeout
            self._awaited.append((ticket, deadline, settled))

    def _put(
        self,
        mappings: tuple[TopicMapping, ...],
        topic: str,
        payload: bytes,
        publisher: str | None = None,
        properties: UserProperties = (),
    ) -> None:
        self.added += 1
        if self._ended:
            # Its ticket will never be durable, so that nobody is told that it was recorded.
            _LEFT_OUT["ended"].inc()
            return
        size = _ENTRY_BYTES + len(topic) + len(payload)
        if properties:
            size += sum(_PROPERTY_BYTES + len(name) + len(value) for name, value in properties)
        now = time.time_ns() // 1_000_000
        self._waiting.append(Entry(mappings, topic, payload, now, size, publisher, properties))
        self.buffered += size
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _is_full(self) -> bool:
        return self.buffered >= self._settings.buffer

    async def _wait_for_room(self) -> None:
        while self._is_full():
            self._room.clear()
            await self._room.wait()

    # --- batches out ---

    async def _run(self) -> None:
        delay = self._settings.delay
        try:
            while self._waiting:
                fresh = self._waiting[0].milliseconds / 1000 + delay - time.time()
                if fresh > 0:
                    # The clock may have been set back: never longer than the delay.
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._hurry.wait(), min(fresh, delay))
                batch = self._writing = self._gather()
                await self._write(batch)
                self._writing = None
                self._settle(batch)
        finally:
            self._task = None

    def _gather(self) -> Batch:
        """Take messages out of the buffer that are written together."""
        waiting = self._waiting
        taken = [waiting.popleft()]
        size = taken[0].size
        latest = taken[0].milliseconds + BATCH_MILLISECONDS
        while (
            waiting
            and len(taken) < BATCH_RECORDS
            and size + waiting[0].size <= BATCH_BYTES
            and waiting[0].milliseconds <= latest
        ):
            size += waiting[0].size
            taken.append(waiting.popleft())
        return Batch(taken, self.added - len(waiting))

    async def _write(self, batch: Batch) -> None:
        """Write a batch, however often it takes."""
        pause = FIRST_PAUSE
        while True:
            try:
                await self._writer.write(batch)
            except Exception as error:  # noqa: BLE001 - whatever a log raises, it may work later
                if not self._trouble:
                    _FAILED.inc()
                    _log.warning("the event log takes no records; they wait", error=error)
                self._trouble = type(error).__name__
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                if self._trouble:
                    _log.info("the event log takes records again")
                self._trouble = ""
                return

    def _settle(self, batch: Batch) -> None:
        self.durable = batch.ticket
        self.buffered -= sum(entry.size for entry in batch.entries)
        _WRITTEN.inc(len(batch.entries))
        if not self._is_full():
            self._room.set()
        awaited = self._awaited
        while awaited and awaited[0][0] <= self.durable:
            _tell(awaited.popleft()[2], durable=True)

    # --- metrics and health ---

    @property
    def lag(self) -> float:
        """How long the oldest message that the log has not got waits, in seconds."""
        batch = self._writing
        try:
            oldest = batch.entries[0] if batch is not None else self._waiting[0]
        except IndexError:
            return 0.0
        return max(0.0, time.time() - oldest.milliseconds / 1000)

    def tick(self) -> None:
        """Tell the metrics; end the wait of those who wait too long. Once a second."""
        _BUFFERED.set(self.buffered)
        _LAG.set(self.lag)
        now = time.monotonic()
        while self._awaited and self._awaited[0][1] <= now:
            _tell(self._awaited.popleft()[2], durable=False)

    def check(self) -> str | None:
        """Say that the log keeps publishers waiting, if it does. Any thread may ask."""
        if self._settings.overflow != "wait" and not self._defers_acks:
            return None
        if self._trouble:
            return f"the event log takes no records: {self._trouble}"
        lag = self.lag
        return f"the event log is {lag:.0f} s behind" if lag > self._settings.timeout else None

    async def finish(self, seconds: float) -> None:
        """Write what waits; give it up where that takes too long."""
        self._hurry.set()
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=seconds)
            if not task.done():
                task.cancel()
        self._ended = True
        left = self.added - self.durable
        if left:
            _LEFT_OUT["ended"].inc(left)
            _log.error("messages were not recorded: the event log took none", count=left)
        self._writer.close()


def _tell(settled: Settled, *, durable: bool) -> None:
    """Call back; what goes wrong there concerns one client, and no other message."""
    try:
        settled(durable)
    except Exception as error:  # noqa: BLE001 - see above
        _log.exception("an acknowledgement could not be passed on", error=error)

"""What the gateway counts: plain integers on the way, metrics once a second.

Rules that hold here:
- Counting a message costs one addition. The metrics of `penstock.telemetry` take over the
  difference in `publish`, which the gateway's clock calls once a second.
- What was turned away, and connections that the gateway or the broker ended, are logged by the
  cause, at most once a second each, with a count, and with what the first of them did wrong.
- No label carries a client, a topic or a purpose: who was denied what is in the audit log.
- All that detection ignores or drops is counted. What may hide an emergency, or its end, is logged
  as well: each reason at most once a minute, with its count since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from penstock.mqtt import MqttError
from penstock.telemetry import get_logger, metrics, safe_text

# Texts of these errors name packets, fields and places, never what they hold.
for _kind in MqttError.__subclasses__():
    safe_text(_kind)

DENIALS = (
    "purpose",
    "consent",
    "content",
    "interaction",
    "sealed",
    "signed",
    "replayed",
    "unknown_subscription",
    "stale",
    "right",
    "malformed",
    "rate",
    "topic",
    "size",
    "slow",
    "anonymous",
    "certificate",
    "client_id",
    "method",
    "name",
    "password",
    "busy",
    "origin",
    "capability",
    "sessions",
    "blocked",
    "role",
    "will",
    "policy",
    "no_leader",
    "event",
    "own",
)

_MESSAGES = metrics.counter(
    "penstock_gateway_messages",
    "Messages that passed: in from clients, out to clients.",
    direction=("in", "out"),
)
_BYTES = metrics.counter(
    "penstock_gateway_bytes",
    "Bytes read from clients (in) and from the broker (out).",
    direction=("in", "out"),
)
_DENIED = metrics.counter(
    "penstock_gateway_denied",
    "Messages, subscriptions and commands that did not pass, by what stopped them.",
    what=("publish", "delivery", "subscription", "command", "connection"),
    reason=DENIALS,
)
TURNED_AWAY = (
    "address",
    "connections",
    "handshakes",
    "bytes",
    "tls",
    "websocket",
    "descriptors",
    "origin",
    "capability",
    "anonymous",
    "certificate",
    "client_id",
    "method",
    "name",
    "password",
    "busy",
    "sessions",
    "blocked",
    "role",
    "will",
    "store",
    "broker",
)
_TURNED_AWAY = metrics.counter(
    "penstock_gateway_turned_away",
    "Connections that were closed before they were established, by the cause: a limit on "
    "unauthenticated peers, or a refused log-in.",
    cause=TURNED_AWAY,
)
_UNAUTHENTICATED = metrics.gauge(
    "penstock_gateway_unauthenticated", "Connections that have not sent their CONNECT yet."
).plain
_LOGINS = metrics.gauge(
    "penstock_gateway_logins", "Log-ins that wait to be checked, are, or wait for their refusal."
).plain
_CONNECTIONS = metrics.gauge(
    "penstock_gateway_connections", "Clients that are connected now."
).plain
_OPENED = metrics.counter(
    "penstock_gateway_opened",
    "Connections by how their opening ended.",
    outcome=("accepted", "refused", "timeout", "limit", "malformed", "broker"),
)
_ENDED = metrics.counter(
    "penstock_gateway_ended",
    "Established connections by what ended them.",
    cause=(
        "client",
        "lost",
        "broker",
        "takeover",
        "protocol",
        "keep_alive",
        "slow",
        "drain",
        "denied",
        "revoked",
    ),
)
_ENDED_BY_CLIENT: Final = frozenset({"client", "lost"})
_COMMANDS = metrics.counter(
    "penstock_gateway_commands", "Purpose commands by how they ended.", outcome=("done", "refused")
)
_BROKER_LOST = metrics.counter(
    "penstock_gateway_broker_lost", "Connections to the broker that failed or broke."
).plain
DECISION = metrics.histogram(
    "penstock_gateway_decision_seconds",
    "Time of a delivery decision that was not cached, one in sixty-four.",
    buckets=(1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3, 1e-2),
).plain


_log = get_logger("gateway")


class Counters:
    """The counts of one gateway since its start."""

    __slots__ = (
        "_away",
        "_ends",
        "_published",
        "bytes_in",
        "bytes_out",
        "connections",
        "messages_in",
        "messages_out",
    )

    def __init__(self) -> None:
        self._away: dict[str, int] = {}
        self._ends: dict[str, tuple[MqttError | None, int]] = {}
        self.messages_in = 0
        self.messages_out = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections = 0
        self._published = (0, 0, 0, 0)

    @staticmethod
    def denied(what: str, reason: str) -> None:
        """Count something that did not pass."""
        _DENIED[what, reason].inc()

    @staticmethod
    def opened(outcome: str) -> None:
        """Count how the opening of a connection ended."""
        _OPENED[outcome].inc()

    def turned_away(self, cause: str) -> bool:
        """Count a connection that was not established; say whether it is this second's first."""
        _TURNED_AWAY[cause].inc()
        count = self._away[cause] = self._away.get(cause, 0) + 1
        return count == 1

    @staticmethod
    def waiting(unauthenticated: int, logins: int) -> None:
        """Show how many peers are not let in yet."""
        _UNAUTHENTICATED.set(unauthenticated)
        _LOGINS.set(logins)

    def ended(self, cause: str, error: MqttError | None, *, established: bool) -> None:
        """Count the end of a connection, and log it where its client did not end it."""
        if established:
            _ENDED[cause].inc()
        # Who was refused is among those that were turned away.
        if cause not in _ENDED_BY_CLIENT and (established or cause != "denied"):
            first, count = self._ends.get(cause, (error, 0))
            self._ends[cause] = (first, count + 1)

    @staticmethod
    def command(outcome: str) -> None:
        """Count a command."""
        _COMMANDS[outcome].inc()

    @staticmethod
    def broker_lost() -> None:
        """Count a connection to the broker that failed or broke."""
        _BROKER_LOST.inc()

    def publish(self) -> None:
        """Hand what was counted since the last call to the metrics."""
        now = (self.messages_in, self.messages_out, self.bytes_in, self.bytes_out)
        series = (_MESSAGES["in"], _MESSAGES["out"], _BYTES["in"], _BYTES["out"])
        for metric, count, before in zip(series, now, self._published, strict=True):
            if count > before:
                metric.inc(count - before)
        self._published = now
        _CONNECTIONS.set(self.connections)
        away, self._away = self._away, {}
        for cause, times in away.items():
            _log.warning("connections were turned away", reason=cause, count=times)
        ends, self._ends = self._ends, {}
        for cause, (error, times) in ends.items():
            _log.warning("connections were ended", reason=cause, count=times, error=error)


_LOSSES: Final = (
    *("incomplete", "late", "far_ahead", "rounds", "refused_topics"),
    *("dropped_groups", "dropped_rows", "dropped_matches", "dropped_samples"),
    *("dropped_subjects", "dropped_days"),
)
_QUIET: Final = ("duplicates", "ahead", "clock_back")
_LOG_PAUSE: Final = 60.0

_IGNORED = metrics.counter(
    "penstock_gateway_events_ignored",
    "What detection has ignored or dropped, by reason.",
    reason=(*_LOSSES, *_QUIET),
)


class IgnoredEvents:
    """Compares the counts of an engine with those that were reported."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counted: dict[str, int] = {}
        self._logged: dict[str, tuple[int, float]] = {}

    def reset(self, counts: Mapping[str, int]) -> None:
        """Take counts as reported: they are those of an earlier time."""
        self._counted = dict(counts)
        self._logged = {}

    def report(self, counts: Mapping[str, int]) -> None:
        """Count what is new, and log it where it is due."""
        now = self._clock()
        for reason, count in counts.items():
            new = count - self._counted.get(reason, 0)
            if not new:
                continue
            self._counted[reason] = count
            _IGNORED[reason].inc(new)
            if reason in _LOSSES:
                waiting, last = self._logged.get(reason, (0, -_LOG_PAUSE))
                self._logged[reason] = (waiting + new, last)
        for reason, (waiting, last) in self._logged.items():
            if waiting and now >= last + _LOG_PAUSE:
                self._logged[reason] = (0, now)
                _log.warning("detection ignored or dropped something", kind=reason, count=waiting)

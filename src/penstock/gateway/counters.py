"""What the gateway counts: plain integers on the way, metrics once a second.

Rules that hold here:
- Counting a message costs one addition. The metrics of `penstock.telemetry` take over the
  difference in `publish`, which the gateway's clock calls once a second.
- No label carries a client, a topic or a purpose: who was denied what is in the audit log.
"""

from __future__ import annotations

from penstock.telemetry import metrics

DENIALS = (
    "purpose",
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
    "sessions",
    "blocked",
    "will",
    "policy",
    "detector",
    "event",
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


class Counters:
    """The counts of one gateway since its start."""

    __slots__ = (
        "_published",
        "bytes_in",
        "bytes_out",
        "connections",
        "messages_in",
        "messages_out",
    )

    def __init__(self) -> None:
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

    @staticmethod
    def ended(cause: str) -> None:
        """Count the end of an established connection."""
        _ENDED[cause].inc()

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

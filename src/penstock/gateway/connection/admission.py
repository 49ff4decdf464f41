"""Whether a client's message goes to the broker: what is not known yet about a topic.

Rules that hold here:
- The answer is the stamp to send the message with, None where it was dealt with here, or
  what must be awaited: a command, or what other gateways have to say about an event.
- Everything that begins with the prefix of commands is a command or malformed; it never
  reaches the broker.
- What may be an event is detected, decided and forwarded in one step; a message that is
  denied has left no trace in detection.
- Purposes that a message carries travel in the gateway's own properties.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from penstock.clock import boot_clock
from penstock.errors import PenstockError, UsageError
from penstock.gateway.authorization.message_purposes import as_properties, narrow, read_purposes
from penstock.gateway.commands import purpose_commands
from penstock.gateway.connection.disconnect import Cause, end
from penstock.gateway.connection.replies import deny
from penstock.gateway.publish_result import PendingResult, PublishOutcome, PublishResult
from penstock.model.purposes import PurposeSet
from penstock.mqtt import Publish, ReasonCode, encode_user_properties
from penstock.policy.purposes.commands import SendFor, parse_publish

if TYPE_CHECKING:
    from penstock.gateway.connection.downstream import Downstream

_KNOWN_LIMIT = 2_048
_LATER = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
_NO_TOPIC = ReasonCode.TOPIC_NAME_INVALID
_NOT_ALLOWED = ReasonCode.NOT_AUTHORIZED
_QOS = 0x06
_EXACTLY_ONCE = 0x04
_REFUSALS = {
    PublishOutcome.DENIED: ("not allowed to write here", _NOT_ALLOWED),
    PublishOutcome.NO_LEADER: ("events are not detected now", _LATER),
    PublishOutcome.INVALID_EVENT: (
        "the payload cannot be an event",
        ReasonCode.PAYLOAD_FORMAT_INVALID,
    ),
}

Outcome = bytes | None | Coroutine[Any, Any, None]


def admit(client: Downstream, packet: Publish) -> Outcome:  # noqa: PLR0911 (one per answer)
    """Decide on a message to a new topic, or one with purposes or a response topic."""
    gateway = client.gateway
    rules = gateway.rules
    if boot_clock() > rules.fresh_until:
        deny(client, packet, "stale", "the definitions are stale", _LATER)
        return None
    limits = gateway.limits
    if (
        len(packet.topic_field) - 2 > limits.topic_bytes
        or packet.topic.count("/") >= limits.topic_levels
    ):
        deny(client, packet, "topic", "the topic is too long", _NO_TOPIC)
        return None
    try:
        purposes = read_purposes(packet.properties.reserved)
        if gateway.notation.is_command(packet.properties.response_topic or ""):
            # Who answers would give the command in the asker's place.
            raise UsageError("a response topic cannot be a command", fix="name an ordinary topic")
        if gateway.notation.is_command(packet.topic):
            command = parse_publish(packet.topic, packet.payload, gateway.notation)
            if not isinstance(command, SendFor):
                return purpose_commands.run(client, packet, command)
            packet.rename(command.topic)
            purposes = narrow(purposes, command.purposes)
    except PenstockError as error:
        gateway.denials.refused(client.session, "malformed")
        deny(client, packet, "malformed", str(error), _NO_TOPIC)
        return None
    if not rules.enforceable:
        gateway.denials.publication(client.session, "right")
        deny(client, packet, "right", "not allowed to write here", _NOT_ALLOWED)
        return None
    result = gateway.guard.publish(client.session, packet)
    if isinstance(result, PublishResult):
        return _settle(client, packet, result, purposes)
    return _admit_later(client, packet, result, purposes)


def _settle(
    client: Downstream, packet: Publish, result: PublishResult, purposes: PurposeSet | None
) -> bytes | None:
    """Return the stamp of a message that may pass, or refuse it."""
    if not _authorise(client, packet, result):
        return None
    if purposes is not None:
        return client.stamp + encode_user_properties(as_properties(purposes))
    if result.lasting:
        if len(client.writes) >= _KNOWN_LIMIT:
            client.writes.clear()
        client.writes.add(packet.topic)
    return client.stamp


async def _admit_later(
    client: Downstream,
    packet: Publish,
    pending: PendingResult,
    purposes: PurposeSet | None,
) -> None:
    """Pass a message on when other gateways have said what they have to say."""
    result = await pending
    if client.ended:
        return
    gateway = client.gateway
    if client.generation != gateway.rules.generation:
        client.renew()
    stamp = _settle(client, packet, result, purposes)
    if stamp is None:
        client.unacked.discard(packet.packet_id)
        return
    client.broker().write([packet.to_v5(packet.properties.kept + stamp)])
    gateway.counters.messages_in += 1
    recorded = gateway.recorder.record(
        packet, client.session.principal, client.deferred_acks, restricted=purposes is not None
    )
    if recorded is not None:
        await recorded


def refuse_long(client: Downstream, packet: Publish) -> None:
    """Refuse a message that is to be recorded and that no event log would take."""
    text = "the payload is too long for the event log"
    deny(client, packet, "size", text, ReasonCode.QUOTA_EXCEEDED)


def _authorise(client: Downstream, packet: Publish, result: PublishResult) -> bool:
    """Carry out what was decided on a message; False where it is denied."""
    gateway = client.gateway
    if result.outcome is PublishOutcome.NO_ANSWER:
        # It may have taken effect: who sends it again will know.
        end(client, Cause.BROKER)
        return False
    if not result.accepted:
        gateway.denials.publication(client.session, result.outcome, result.rule)
        text, reason = _REFUSALS[result.outcome]
        deny(client, packet, result.outcome, text, reason)
        return False
    if result.journal is not None and packet.first & _QOS:
        client.deferred_acks.expect(result.journal, packet.packet_id, result.ticket)
    return True

"""Whether a client's message or will goes to the broker: what is not known yet about a topic.

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

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.clock import boot_clock
from penstock.errors import PenstockError, UsageError
from penstock.gateway.authorization.publication_check import PublicationCheck
from penstock.gateway.authorization.request_context import (
    as_properties,
    narrow,
    read_purposes,
    trim,
)
from penstock.gateway.broker import EPOCH, PUBLISHER, strip
from penstock.gateway.commands.purpose_commands import PurposeCommands
from penstock.gateway.connection.authentication import RefusedError
from penstock.gateway.connection.client_connection import ClientConnection
from penstock.gateway.connection.context import Cause, ConnectionContext
from penstock.gateway.publications import PendingResult, PublishOutcome, PublishResult
from penstock.gateway.publishing.publisher import Publisher
from penstock.gateway.session import Session
from penstock.model.purposes import PurposeSet
from penstock.mqtt import (
    NO_PUBLISH_PROPERTIES,
    Connect,
    Publish,
    ReasonCode,
    Will,
    are_acceptable,
    encode_user_properties,
)
from penstock.policy.decision import Reshaped
from penstock.policy.parts import ADVERTISEMENT, OTHER_TYPE
from penstock.policy.purposes.commands import Command, SendFor, parse_publish
from penstock.policy.purposes.settings import Notation

_LATER = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
_NO_TOPIC = ReasonCode.TOPIC_NAME_INVALID
_NOT_ALLOWED = ReasonCode.NOT_AUTHORIZED
_QOS = 0x06
_REFUSALS = {
    PublishOutcome.DENIED: ("not allowed to write here", _NOT_ALLOWED),
    PublishOutcome.NO_LEADER: ("events are not detected now", _LATER),
    PublishOutcome.INVALID_EVENT: (
        "the payload cannot be an event",
        ReasonCode.PAYLOAD_FORMAT_INVALID,
    ),
}

Outcome = bytes | None | Coroutine[Any, Any, None]


class Admission:
    """Decides on what clients publish, and answers what does not go to the broker."""

    def __init__(
        self,
        context: ConnectionContext,
        check: PublicationCheck,
        notation: Notation,
        commands: PurposeCommands,
        publisher: Publisher,
    ) -> None:
        self._context = context
        self._check = check
        self._notation = notation
        self._commands = commands
        self._publisher = publisher

    def admit(  # noqa: PLR0911 (one per answer)
        self, client: ClientConnection, packet: Publish
    ) -> Outcome:
        """Decide on a message to a new topic, or one with purposes or a response topic."""
        context = self._context
        rules = context.rules
        if boot_clock() > rules.fresh_until:
            client.deny(packet, "stale", "the definitions are stale", _LATER)
            return None
        limits = context.limits
        if (
            len(packet.topic_field) - 2 > limits.topic_bytes
            or packet.topic.count("/") >= limits.topic_levels
        ):
            client.deny(packet, "topic", "the topic is too long", _NO_TOPIC)
            return None
        try:
            purposes = read_purposes(packet.properties.reserved)
            if self._notation.is_command(packet.properties.response_topic or ""):
                # Who answers would give the command in the asker's place.
                text = "a response topic cannot be a command"
                raise UsageError(text, fix="name an ordinary topic")
            if self._notation.is_command(packet.topic):
                command = parse_publish(packet.topic, packet.payload, self._notation)
                if not isinstance(command, SendFor):
                    return self._command(client, packet, command)
                packet.rename(command.topic)
                purposes = narrow(purposes, command.purposes)
        except PenstockError as error:
            context.denials.refused(client.session, "malformed")
            client.deny(packet, "malformed", str(error), _NO_TOPIC)
            return None
        if not rules.enforceable:
            context.denials.publication(client.session, "right")
            client.deny(packet, "right", "not allowed to write here", _NOT_ALLOWED)
            return None
        result = self._check.publish(client.session, packet)
        if isinstance(result, PublishResult):
            if result.reshaped is not None and result.accepted:
                pending = _known(result)
                return self._admit_later(client, packet, pending, purposes, rules.generation)
            return self._settle(client, packet, result, purposes)
        return self._admit_later(client, packet, result, purposes, rules.generation)

    def prepare(
        self, client: ClientConnection, packet: Publish, listed: bytes
    ) -> tuple[Publish, bytes] | None:
        """Return a message and its properties as they go to the broker, or refuse it."""
        credentials = self._context.rules.credentials
        if not credentials.in_use:
            return packet, listed
        try:
            return credentials.prepare_packet(packet, listed)
        except PenstockError as error:
            self._context.denials.publication(client.session, "sealed")
            client.deny(packet, "sealed", error.message, ReasonCode.PAYLOAD_FORMAT_INVALID)
            return None

    def _settle(
        self,
        client: ClientConnection,
        packet: Publish,
        result: PublishResult,
        purposes: PurposeSet | None,
    ) -> bytes | None:
        """Return the stamp of a message that may pass, or refuse it."""
        if result.outcome is not PublishOutcome.ACCEPTED:
            self._refuse(client, packet, result)
            return None
        if result.journal is not None and packet.first & _QOS:
            client.deferred_acks.expect(result.journal, packet.packet_id, result.ticket)
        if purposes is not None:
            return client.stamp + encode_user_properties(as_properties(purposes))
        # What is remembered passes as it came: nothing that must be sealed or signed may.
        credentials = self._context.rules.credentials
        if result.lasting and not (credentials.in_use and credentials.concerns(packet.topic)):
            client.remember_write(packet.topic)
        return client.stamp

    async def _command(self, client: ClientConnection, packet: Publish, command: Command) -> None:
        try:
            await self._commands.run(client, packet, command)
        finally:
            client.abandon(packet)

    async def _admit_later(
        self,
        client: ClientConnection,
        packet: Publish,
        pending: PendingResult,
        purposes: PurposeSet | None,
        generation: int,
    ) -> None:
        """Pass a message on when other gateways have said what they have to say."""
        result = await pending
        if client.ended:
            return
        context = self._context
        if generation != context.rules.generation:
            # What held for every message of the topic held under the rules of before.
            result = result._replace(lasting=False)
        if client.generation != context.rules.generation:
            client.renew()
        stamp = self._settle(client, packet, result, purposes)
        if stamp is None:
            client.abandon(packet)
            return
        kept = packet.properties.kept
        if result.reshaped is not None:
            made = await self._publish_copies(client, packet, result, stamp)
            if made is None or client.ended:
                client.abandon(packet)
                return
            packet, kept = made, made.properties.kept
        # Meanwhile its lane may be lost, and what the message became may not fit it.
        if not await client.choose_way(packet):
            return
        listed = kept + stamp + client.origin(packet)
        prepared = self.prepare(client, packet, listed)
        if prepared is None:
            client.abandon(packet)
            return
        client.pass_on(*prepared)
        context.counters.messages_in += 1
        recorded = context.recorder.record(
            packet, client.session.principal, client.deferred_acks, restricted=purposes is not None
        )
        if recorded is not None:
            await recorded

    async def _publish_copies(
        self, client: ClientConnection, packet: Publish, result: PublishResult, stamp: bytes
    ) -> Publish | None:
        """Publish what a message was turned into; return the message as it goes on, if it does.

        Its publisher hears of it when the broker has all of them.
        """
        reshaped = result.reshaped or Reshaped(None)
        loop, publisher = self._context.loop, self._publisher
        restricted = stamp != client.stamp
        told = stamp + client.origin(packet)
        done: list[asyncio.Future[None]] = []
        for topic, payload in reshaped.copies:
            taken = loop.create_future()
            if not publisher.send(
                topic,
                payload,
                told,
                partial(_settle_once, taken),
                retain=packet.retain,
                restricted=restricted,
            ):
                client.deny(packet, "busy", "too many messages wait", _LATER)
                return None
            done.append(taken)
        if done:
            await asyncio.wait(done)
        if reshaped.payload is not None:
            said = packet.properties
            if not reshaped.keeps_properties:
                said = replace(NO_PUBLISH_PROPERTIES, kept=trim(said))
            return replace(packet, payload=reshaped.payload, properties=said)
        durable = loop.create_future()
        result.when_durable(lambda _: _settle_once(durable))
        await durable
        if not client.ended:
            client.confirm(packet)
        return None

    def _refuse(self, client: ClientConnection, packet: Publish, result: PublishResult) -> None:
        if result.outcome is PublishOutcome.NO_ANSWER:
            # It may have taken effect: who sends it again will know.
            client.end(Cause.BROKER)
            return
        self._context.denials.publication(client.session, result.outcome, result.rule)
        text, reason = _REFUSALS[result.outcome]
        if result.rule == ADVERTISEMENT:
            text = "it is not advertised: advertise it first, with the right to"
        elif result.rule.startswith(OTHER_TYPE):
            text = f"it is not of its {result.rule}"
            reason = ReasonCode.PAYLOAD_FORMAT_INVALID
        client.deny(packet, result.outcome, text, reason)

    def admit_will(self, connect: Connect, session: Session) -> Will | None:
        """Return the will that the broker is to publish, if it is, or refuse it."""
        will = connect.will
        if will is None:
            return None
        rules, limits = self._context.rules, self._context.limits
        topic = will.topic
        answer = will.properties.response_topic
        own: list[tuple[str, str]] = [(PUBLISHER, session.principal), (EPOCH, str(rules.epoch))]
        try:
            purposes = read_purposes(will.properties.user)
            if self._notation.is_command(topic):
                meant = parse_publish(topic, will.payload, self._notation)
                topic = ""
                if isinstance(meant, SendFor):
                    topic, purposes = meant.topic, narrow(purposes, meant.purposes)
        except PenstockError as error:
            raise RefusedError(error.message, _NO_TOPIC, "will") from None
        if len(topic.encode()) > limits.topic_bytes or topic.count("/") >= limits.topic_levels:
            raise RefusedError("the will's topic is too long", _NO_TOPIC, "will")
        if topic.startswith("$"):  # MQTT5 4.7.2; some brokers end the connection it came on
            raise RefusedError("a will's topic cannot begin with $", _NO_TOPIC, "will")
        if not topic or (answer is not None and self._notation.is_command(answer)):
            raise RefusedError("a will cannot be a command", _NOT_ALLOWED, "will")
        if not are_acceptable(_texts(topic, will)):
            # It may go out on the connection that all wills have in common.
            text = "the will has control characters in its topic or properties"
            raise RefusedError(text, _NO_TOPIC, "will")
        if boot_clock() > rules.fresh_until or not rules.enforceable:
            raise RefusedError("not allowed to write the will", _NOT_ALLOWED, "will")
        own += rules.origin_properties(session)  # whenever it is sent, and kept
        if purposes is not None:
            own += as_properties(purposes)
        properties = replace(will.properties, user=(*strip(will.properties.user), *own))
        kept = replace(will, topic=topic, properties=properties)
        return self._context.wills.keep(session, kept)


async def _known(result: PublishResult) -> PublishResult:
    return result


def _settle_once(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _texts(topic: str, will: Will) -> list[str]:
    """Return all texts of a will but its payload."""
    properties = will.properties
    named = [topic, properties.content_type or "", properties.response_topic or ""]
    return [*named, *(text for pair in properties.user for text in pair)]

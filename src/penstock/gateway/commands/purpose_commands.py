"""Purpose commands: who gave one, whether they may, and what it changes.

    PUBLISH !RESERVE/… ──▶ right? ──▶ rate? ──▶ store: a new epoch ──▶ rules ──▶ acknowledged
                             └── no ──▶ 0x87, audited

Rules that hold here:
- A change is a change of definitions, checked as a whole and stored with its history and
  its audit entry, as if it had been applied from a file. What it changes is worked out from
  what the store holds then, as what this gateway knows may be old; what was tried out here goes
  before it. With `auto_persist` off it holds at this gateway alone until PERSIST stores it or
  RELOAD takes it back.
- The acknowledgement goes out when the change is stored and holds here: from then on this
  gateway delivers nothing that it forbids.
- What cannot be done changes nothing. Questions are answered to the asker, with a message of
  QoS 0 on the response topic it named, else on the topic of the command; where answers are
  published, to those who listen and may ask the same, too. No answer is larger than a packet.
- Each command leaves an audit entry: with the change where it is stored, else by itself.
- `CLEAR`, `RESET`, `PERSIST` and `RELOAD` are in `state_commands`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from penstock.errors import InvalidError, PenstockError, UnavailableError, UsageError
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.rules import PRESUBSCRIPTION, RESERVATION, SETTINGS, Rules
from penstock.gateway.commands.state_commands import (
    CommandBudget,
    CommandSender,
    DefinitionChanges,
    StateCommands,
    TooManyError,
    Wanted,
)
from penstock.gateway.counters import Counters
from penstock.model.document import Document, Key
from penstock.model.kinds import Stream
from penstock.model.purposes import PurposeSet
from penstock.mqtt import Publish, ReasonCode
from penstock.policy.purposes.commands import (
    Advertise,
    Clear,
    Command,
    DefineType,
    Presubscribe,
    Reload,
    Reserve,
    Reset,
    SetSetting,
    ShowAffected,
    ShowCombined,
    ShowTree,
)
from penstock.policy.purposes.rights import (
    check_extension,
    check_room,
    check_topics,
    explain_faults,
)
from penstock.store.audit.signatures import TamperedError
from penstock.store.definitions.documents import Snapshot
from penstock.telemetry import get_logger

_SETTINGS = Key(SETTINGS, "default")
_NAME_LIMIT = 256

_TYPE = Stream.kind

Edit = Reserve | Presubscribe | SetSetting | DefineType
"""The commands that change single definitions."""


def list_wanted(command: Edit, stored: Mapping[Key, Document], tried: Wanted) -> Wanted:
    """Say which documents a command wants to see; None where one is to go.

    What was tried out at this gateway goes before what is stored.
    """
    match command:
        case Reserve(filter=reserved, purposes=purposes):
            body = _reservation(purposes)
            return {Key(RESERVATION, reserved): _document(RESERVATION, reserved, body)}
        case DefineType(stream=stream, body=said):
            key = Key(_TYPE, stream)
            check_extension(stored.get(key), said)
            return {key: _document(_TYPE, stream, said)}
        case Presubscribe(client=whom, filter=text, ap=ap):
            return _presubscription(_held(PRESUBSCRIPTION, stored, tried), whom, text, ap)
        case SetSetting(name=name, value=value):
            held = _held(SETTINGS, stored, tried).get(_SETTINGS)
            named = dict(held.body) if held is not None else {}
            # Nothing else is named: another gateway may be configured more strictly than this one.
            return {_SETTINGS: _document(SETTINGS, _SETTINGS.name, {**named, name: value})}
    raise AssertionError(command)


def _held(kind: str, stored: Mapping[Key, Document], tried: Wanted) -> dict[Key, Document]:
    held = {key: it for key, it in stored.items() if key.kind == kind and key not in tried}
    return held | {key: it for key, it in tried.items() if key.kind == kind and it is not None}


def describe(command: Edit) -> str:
    """Say for the history what a command did; who did it stands beside it."""
    match command:
        case Reserve(filter=reserved, purposes=purposes):
            return f"{'released' if purposes is None else 'reserved'} {reserved[:_NAME_LIMIT]}"
        case DefineType(stream=stream):
            return f"defined the event type {stream[:_NAME_LIMIT]}"
        case Presubscribe(ap=ap):
            return "ended a presubscription" if ap is None else "presubscribed a client"
        case SetSetting(name=name, value=value):
            return f"setting {name} {'on' if value else 'off'}"
    raise AssertionError(command)


def _presubscription(held: dict[Key, Document], whom: str, text: str, ap: str | None) -> Wanted:
    # Another definition may say the same already; of several the last by name counts.
    known = [
        key.name
        for key, it in held.items()
        if (it.body["client"], it.body["filter"]) == (whom, text)
    ]
    digest = hashlib.sha256(f"{whom}\0{text}".encode()).hexdigest()[:16]
    name = max(known, default=f"command-{digest}")
    body = None if ap is None else {"client": whom, "filter": text, "purpose": ap}
    return {Key(PRESUBSCRIPTION, name): _document(PRESUBSCRIPTION, name, body)}


def _reservation(purposes: PurposeSet | None) -> Mapping[str, Any] | None:
    if purposes is None:
        return None
    return {"allow": sorted(purposes.aip), "prohibit": sorted(purposes.pip)}


def _document(kind: str, name: str, body: Mapping[str, Any] | None) -> Document | None:
    return None if body is None else Document(kind, name, body)


_AFFECTED_LIMIT = 1_000
STATE_COMMANDS_PER_MINUTE = 30
ANSWER_BYTES = 1 << 20
_WORDS = {
    Reserve: "reserve",
    Advertise: "advertise",
    DefineType: "define",
    Presubscribe: "presubscribe",
    SetSetting: "set",
    Clear: "clear",
    Reset: "reset",
    Reload: "reload",
    ShowTree: "tree",
    ShowCombined: "cres",
    ShowAffected: "ares",
}
_log = get_logger("gateway")

PublishAnswer = Callable[[str, bytes], None]
"""Publishes the answer to a question on the topic of the question."""


class PurposeCommands:
    """Carries out the commands of clients."""

    def __init__(
        self,
        rules: Rules,
        denials: Denials,
        counters: Counters,
        definitions: DefinitionChanges,
        *,
        state_commands: int = STATE_COMMANDS_PER_MINUTE,
        answer_bytes: int = ANSWER_BYTES,
        publish_answer: PublishAnswer | None = None,
    ) -> None:
        self._rules = rules
        self._denials = denials
        self._counters = counters
        self._definitions = definitions
        self._state = StateCommands(rules, definitions, CommandBudget(state_commands))
        self._answer_bytes = answer_bytes
        self._publish_answer = publish_answer

    async def run(self, sender: CommandSender, packet: Publish, command: Command) -> None:
        """Carry out a command and answer it."""
        decision = self._rules.rights(sender.session).may(command)
        if not decision.allowed:
            self._denials.command(sender.session, decision.rule)
            self._refuse(sender, packet, "right", decision.reason, ReasonCode.NOT_AUTHORIZED)
            return
        if not sender.may_command():
            self._refuse(sender, packet, "rate", "too many commands", ReasonCode.QUOTA_EXCEEDED)
            return
        try:
            if not await self._carry_out(sender, packet, command):
                self._denials.command_given(sender.session, _WORDS[type(command)])
        except UnavailableError as error:
            self._refuse(sender, packet, "stale", error.message, ReasonCode.UNSPECIFIED_ERROR)
        except TamperedError as error:
            _log.exception("a change cannot be recorded, so it is refused", error=error)
            text = "the change cannot be recorded"
            self._refuse(sender, packet, "stale", text, ReasonCode.UNSPECIFIED_ERROR)
        except TooManyError as error:
            self._refuse(sender, packet, "rate", error.message, ReasonCode.QUOTA_EXCEEDED)
        except PenstockError as error:
            self._refuse(sender, packet, "malformed", str(error), ReasonCode.TOPIC_NAME_INVALID)
        else:
            self._counters.command("done")
            sender.confirm(packet)

    def _refuse(
        self, sender: CommandSender, packet: Publish, why: str, text: str, reason: ReasonCode
    ) -> None:
        self._counters.command("refused")
        sender.deny(packet, why, text, reason)

    async def _carry_out(self, sender: CommandSender, packet: Publish, command: Command) -> bool:
        """Carry out a command; say whether the store has it, with its audit entry."""
        engine = self._rules.engine
        match command:
            case Advertise():
                self._advertise(sender, command)
            case ShowTree():
                tree = engine.tree(most_bytes=self._answer_bytes)
                sender.answer(packet, tree.encode())
            case ShowCombined(topic=topic):
                shown = self._show([(topic, engine.effective(topic))])
                self._answer(sender, packet, _as_json(topic=topic, purposes=shown[topic]))
            case ShowAffected(filter=asked):
                listed = self._show(islice(engine.affected(asked), _AFFECTED_LIMIT))
                self._answer(sender, packet, _as_json(filter=asked, reservations=listed))
            case DefineType():
                return await self._define(sender, command)
            case Reserve() | Presubscribe() | SetSetting():
                return await self._change(sender, command)
            case _:
                return await self._state.carry_out(sender, command)
        return False

    def _advertise(self, sender: CommandSender, command: Advertise) -> None:
        client, held = sender.session.client_id, self._rules.advertisements
        if command.ends:
            held.withdraw(client, command.filter)
            return
        until = None
        if command.seconds is not None:
            until = self._rules.clock() + command.seconds * 1_000
        if not held.put(client, command.filter, until):
            raise TooManyError("too many advertisements", fix="withdraw some, or name wider ones")

    async def _define(self, sender: CommandSender, command: DefineType) -> bool:
        """Store a type: for all gateways at once, as a definition that is applied."""
        grants = self._rules.rights(sender.session).define

        def want(stored: Mapping[Key, Document]) -> Wanted:
            if grants:  # none are asked for in the open mode
                there = {key.name: it.body for key, it in stored.items() if key.kind == _TYPE}
                check_room(grants, command.stream, there)
                check_topics(command.stream, command.filters, there)
            return list_wanted(command, stored, {})

        try:
            await self._store(sender, want, command)
        except InvalidError as error:
            raise explain_faults(command.stream, error) from None
        return True

    def _show(
        self, found: Iterable[tuple[str, PurposeSet | None]]
    ) -> dict[str, dict[str, list[str]] | None]:
        """Return sets of purposes as answers tell them, unless that cannot fit into a packet."""
        shown: dict[str, dict[str, list[str]] | None] = {}
        left = self._answer_bytes
        for name, purposes in found:
            left -= len(name)
            if purposes is not None:
                left -= sum(map(len, purposes.aip)) + sum(map(len, purposes.pip))
            if left < 0:
                raise UsageError(
                    f"the answer has more than the {self._answer_bytes} bytes of a packet",
                    fix="ask for less, or raise the largest packet",
                )
            shown[name] = _shown(purposes)
        return shown

    def _answer(self, sender: CommandSender, packet: Publish, payload: bytes) -> None:
        """Answer a question: to the asker, and to those who listen where they may ask, too."""
        listens = self._rules.answers.listens(sender.session, packet.topic)
        if packet.properties.response_topic is not None or not listens:
            sender.answer(packet, payload)
        if self._publish_answer is not None:
            self._publish_answer(packet.topic, payload)

    async def _change(self, sender: CommandSender, command: Edit) -> bool:
        rules = self._rules
        tried = rules.unsaved()

        def want(stored: Mapping[Key, Document]) -> Wanted:
            return list_wanted(command, stored, tried)

        persists = rules.engine.settings.auto_persist
        if isinstance(command, SetSetting) and command.name == "auto_persist":
            persists = persists or command.value
        if persists:
            await self._store(sender, want, command)
        else:
            wanted = want(rules.snapshot.documents if rules.snapshot else {})
            await self._definitions.check(wanted)
            self._definitions.pass_on(rules.try_out(wanted))
        return persists

    async def _store(
        self,
        sender: CommandSender,
        want: Callable[[Mapping[Key, Document]], Wanted],
        command: Edit,
    ) -> None:
        """Change what is stored, and let it hold here."""
        tried = self._rules.unsaved()
        wanted: Wanted = {}

        def work_out(now: Snapshot) -> Wanted:
            wanted.update(want(now.documents))
            return wanted

        await self._definitions.edit(
            work_out,
            actor=sender.session.principal,
            reason=f"{describe(command)} by MQTT command",
            operation=_WORDS[type(command)],
        )
        self._definitions.pass_on(self._rules.settle(wanted, tried))


def _as_json(**data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, sort_keys=True).encode()


def _shown(purposes: PurposeSet | None) -> dict[str, list[str]] | None:
    if purposes is None:
        return None
    return {"allow": sorted(purposes.aip), "prohibit": sorted(purposes.pip)}

"""Purpose commands: who gave one, whether they may, and what it changes.

    PUBLISH !RESERVE/… ──▶ right? ──▶ rate? ──▶ store: a new epoch ──▶ rules ──▶ acknowledged
                             └── no ──▶ 0x87, audited

Rules that hold here:
- A change is a change of definitions, checked as a whole and stored with its history and
  its audit entry, as if it had been applied from a file. What it changes is worked out from
  what the store holds then: what this gateway knows may be old. With `auto_persist` off it
  holds at this gateway alone until PERSIST stores it or RELOAD takes it back.
- The acknowledgement goes out when the change is stored and holds here: from then on this
  gateway delivers nothing that it forbids.
- What cannot be done changes nothing. Questions are answered to the asker alone, with a
  message of QoS 0 on the response topic it named, else on the topic of the command.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from penstock.definitions.authorizer import settings_in_force
from penstock.errors import PenstockError, UnavailableError
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.rules import (
    PRESUBSCRIPTION,
    RESERVATION,
    SETTINGS,
    Rules,
)
from penstock.gateway.counters import Counters
from penstock.gateway.session import Session
from penstock.model.document import Document, Key
from penstock.model.purposes import PurposeSet
from penstock.mqtt import Publish, ReasonCode
from penstock.policy.purposes.commands import (
    Clear,
    Command,
    Persist,
    Presubscribe,
    Reload,
    Reserve,
    Reset,
    SetSetting,
    ShowAffected,
    ShowCombined,
    ShowTree,
)
from penstock.policy.purposes.engine import SubscriptionChanges
from penstock.policy.purposes.settings import PurposeSettings
from penstock.store.audit.errors import TamperedError
from penstock.store.definitions.snapshots import Snapshot
from penstock.telemetry import get_logger

_SETTINGS = Key(SETTINGS, "default")
_AFFECTED_LIMIT = 1_000
_NAME_LIMIT = 256

_log = get_logger("gateway")

Wanted = dict[Key, Document | None]


class CommandSender(Protocol):
    """The client that gave a command."""

    session: Session

    def may_command(self) -> bool:
        """Say whether it has not given too many commands."""
        ...

    def answer(self, packet: Publish, payload: bytes) -> None:
        """Answer a question, to the asker alone."""

    def confirm(self, packet: Publish) -> None:
        """Acknowledge a command that was carried out."""

    def deny(self, packet: Publish, why: str, text: str, reason: ReasonCode) -> None:
        """Tell why a command was not carried out."""


class DefinitionChanges(Protocol):
    """Where commands change the rules."""

    async def edit(
        self, work_out: Callable[[Snapshot], Wanted], *, actor: str, reason: str
    ) -> None:
        """Change what is stored, and take it over here."""

    async def check(self, wanted: Wanted) -> None:
        """Raise what is wrong with the definitions that would result."""

    def pass_on(self, changes: SubscriptionChanges) -> None:
        """Let clients and broker know what a change of the rules means."""


class PurposeCommands:
    """Carries out the commands of clients."""

    def __init__(
        self, rules: Rules, denials: Denials, counters: Counters, definitions: DefinitionChanges
    ) -> None:
        self._rules = rules
        self._denials = denials
        self._counters = counters
        self._definitions = definitions

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
            await self._carry_out(sender, packet, command)
        except UnavailableError as error:
            self._refuse(sender, packet, "stale", error.message, ReasonCode.UNSPECIFIED_ERROR)
        except TamperedError as error:
            _log.exception("a change cannot be recorded, so it is refused", error=error)
            text = "the change cannot be recorded"
            self._refuse(sender, packet, "stale", text, ReasonCode.UNSPECIFIED_ERROR)
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

    async def _carry_out(self, sender: CommandSender, packet: Publish, command: Command) -> None:
        rules = self._rules
        match command:
            case ShowTree():
                sender.answer(packet, rules.engine.tree().encode())
            case ShowCombined(topic=topic):
                purposes = rules.engine.effective(topic)
                sender.answer(packet, _as_json(topic=topic, purposes=_shown(purposes)))
            case ShowAffected(filter=asked):
                found = rules.engine.affected(asked)
                listed = {there: _shown(it) for there, it in _first(found, _AFFECTED_LIMIT)}
                sender.answer(packet, _as_json(filter=asked, reservations=listed))
            case Persist():
                unsaved = rules.unsaved()
                await self._store(sender, lambda _: unsaved, "stored what was tried out")
            case Reload():
                self._definitions.pass_on(rules.reload())
                self._denials.tried_out(sender.session, "reload", rules.epoch)
            case _:
                await self._change(sender, command)

    async def _change(self, sender: CommandSender, command: Command) -> None:
        rules = self._rules
        tried = rules.unsaved()

        def want(stored: Mapping[Key, Document]) -> Wanted:
            return _wanted(command, stored, tried, rules.initial)

        persists = rules.engine.settings.auto_persist
        if isinstance(command, SetSetting) and command.name == "auto_persist":
            persists = persists or command.value
        if persists:
            await self._store(sender, want, _history(command))
        else:
            wanted = want(rules.snapshot.documents if rules.snapshot else {})
            await self._definitions.check(wanted)
            self._definitions.pass_on(rules.try_out(wanted))
            operation = type(command).__name__.lower()
            self._denials.tried_out(sender.session, operation, rules.epoch)

    async def _store(
        self,
        sender: CommandSender,
        want: Callable[[Mapping[Key, Document]], Wanted],
        done: str,
    ) -> None:
        """Change what is stored, and let it hold here."""
        tried = self._rules.unsaved()
        wanted: Wanted = {}

        def work_out(now: Snapshot) -> Wanted:
            wanted.update(want(now.documents))
            return wanted

        actor = sender.session.principal
        await self._definitions.edit(work_out, actor=actor, reason=f"{done} by MQTT command")
        self._definitions.pass_on(self._rules.settle(wanted, tried))


def _wanted(
    command: Command, stored: Mapping[Key, Document], tried: Wanted, initial: PurposeSettings
) -> Wanted:
    """Say which documents a command wants to see; None where one is to go.

    What was tried out at this gateway goes before what is stored.
    """
    match command:
        case Reserve(filter=reserved, purposes=purposes):
            body = _reservation(purposes)
            return {Key(RESERVATION, reserved): _document(RESERVATION, reserved, body)}
        case Presubscribe(client=whom, filter=text, ap=ap):
            return _presubscription(_held(PRESUBSCRIPTION, stored, tried), whom, text, ap)
        case SetSetting(name=name, value=value):
            held = _held(SETTINGS, stored, tried).get(_SETTINGS)
            settings = settings_in_force(initial, held.body if held is not None else None)
            changed = settings.change(name, value=value).as_dict()
            return {_SETTINGS: _document(SETTINGS, _SETTINGS.name, changed)}
        case Reset():
            return {_SETTINGS: None}
        case Clear():
            return dict.fromkeys(
                key for kind in (RESERVATION, PRESUBSCRIPTION) for key in _held(kind, stored, tried)
            )
    raise AssertionError(command)


def _held(kind: str, stored: Mapping[Key, Document], tried: Wanted) -> dict[Key, Document]:
    held = {key: it for key, it in stored.items() if key.kind == kind and key not in tried}
    return held | {key: it for key, it in tried.items() if key.kind == kind and it is not None}


def _history(command: Command) -> str:
    """Say for the history what a command did; who did it stands beside it."""
    match command:
        case Reserve(filter=reserved, purposes=purposes):
            return f"{'released' if purposes is None else 'reserved'} {reserved[:_NAME_LIMIT]}"
        case Presubscribe(ap=ap):
            return "ended a presubscription" if ap is None else "presubscribed a client"
        case SetSetting(name=name, value=value):
            return f"setting {name} {'on' if value else 'off'}"
        case Reset():
            return "settings reset"
        case Clear():
            return "cleared all reservations and presubscriptions"
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


def _as_json(**data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, sort_keys=True).encode()


def _shown(purposes: PurposeSet | None) -> dict[str, list[str]] | None:
    if purposes is None:
        return None
    return {"allow": sorted(purposes.aip), "prohibit": sorted(purposes.pip)}


def _first(items: Any, count: int) -> list[Any]:
    return [item for item, _ in zip(items, range(count), strict=False)]

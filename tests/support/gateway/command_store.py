"""Commands without sockets: a client that takes note, and a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import MappingProxyType

from sqlalchemy import Connection

from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.commands.purpose_commands import PurposeCommands
from penstock.gateway.commands.state_commands import Wanted
from penstock.gateway.counters import Counters
from penstock.gateway.session import Session
from penstock.model.document import Document, Key
from penstock.model.purposes import PurposeSet
from penstock.mqtt import Publish, ReasonCode
from penstock.policy.purposes.commands import Command, Reserve
from penstock.policy.purposes.engine import SubscriptionChanges
from penstock.policy.purposes.settings import PurposeSettings
from penstock.store.definitions.documents import Snapshot
from penstock.store.session_state import STATE

CARE = Reserve("a/#", PurposeSet.of(["care"], ()))
KEY = Key("reservation", "a/#")
STORED = Document("reservation", "a/#", {"allow": ["care"], "prohibit": []})
ASKED = Publish.of("!PBAC/X", qos=1, packet_id=1)


class Sender:
    """A client that takes note of its answers."""

    def __init__(self, *, within_rate: bool = True) -> None:
        self.session = Session("me", "alice", 0)
        self.answers: list[bytes] = []
        self.confirmed = 0
        self.denied: list[tuple[str, ReasonCode]] = []
        self._within_rate = within_rate

    def may_command(self) -> bool:
        return self._within_rate

    def answer(self, packet: Publish, payload: bytes) -> None:
        assert packet is ASKED
        self.answers.append(payload)

    def confirm(self, packet: Publish) -> None:
        assert packet is ASKED
        self.confirmed += 1

    def deny(self, packet: Publish, why: str, text: str, reason: ReasonCode) -> None:
        assert packet is ASKED
        assert text
        self.denied.append((why, reason))


class Store:
    """Holds definitions as the store does; what changes holds at once."""

    def __init__(self, rules: Rules, error: Exception | None = None) -> None:
        self.rules = rules
        self.error = error
        self.reasons: list[str] = []
        self.operations: list[tuple[str, Callable[[Connection], None] | None, bool]] = []
        self.passed_on = 0
        self.cleared_here = 0
        self._documents: dict[Key, Document] = {}
        self._history: list[Snapshot] = []
        self._take([])

    async def edit(
        self,
        work_out: Callable[[Snapshot], Wanted],
        *,
        actor: str,
        reason: str,
        operation: str,
        then: Callable[[Connection], None] | None = None,
        whole: bool = False,
    ) -> None:
        if self.error is not None:
            raise self.error
        assert actor == "alice"
        self.reasons.append(reason)
        self.operations.append((operation, then, whole))
        held = self.rules.snapshot
        assert held is not None
        wanted = work_out(held)
        for key, document in wanted.items():
            self._documents.pop(key, None)
            if document is not None:
                self._documents[key] = document
        self._take(list(wanted))

    async def check(self, wanted: Wanted) -> None:
        assert wanted
        if self.error is not None:
            raise self.error

    def pass_on(self, changes: SubscriptionChanges) -> None:
        del changes
        self.passed_on += 1

    def clear_here(self) -> None:
        self.cleared_here += 1

    def snapshot_at(self, epoch: int) -> Snapshot:
        return self._history[epoch - 1]

    def stored(self) -> dict[Key, Document]:
        """Return what is stored, but for the log of commands on the state."""
        return {key: it for key, it in self._documents.items() if key != STATE}

    def put(self, document: Document) -> None:
        """Store a definition that no command has made."""
        self._documents[document.key] = document
        self._take([document.key])

    def _take(self, keys: list[Key]) -> None:
        epoch = self.rules.epoch + 1
        documents = MappingProxyType(dict(self._documents))
        self._history.append(Snapshot(epoch, f"mark-{epoch}", documents))
        self.rules.take(self._history[-1], keys)


def give(
    *commands: Command,
    sender: Sender | None = None,
    error: Exception | None = None,
    auto_persist: bool = True,
    open_mode: bool = True,
    store: Store | None = None,
) -> tuple[Sender, Store]:
    """Give commands; return who gave them, and the store."""
    if store is None:
        rules = Rules(PurposeSettings(auto_persist=auto_persist), open_mode=open_mode)
        store = Store(rules, error)
    rules = store.rules
    carries_out = PurposeCommands(rules, Denials(None, None), Counters(), store)
    who = sender or Sender()
    for command in commands:
        asyncio.run(carries_out.run(who, ASKED, command))
    return who, store

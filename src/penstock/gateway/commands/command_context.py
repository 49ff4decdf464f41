"""What commands ask of others: of the client that gave one, and of the definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sqlalchemy import Connection

from penstock.gateway.session import Session
from penstock.model.document import Document, Key
from penstock.mqtt import Publish, ReasonCode
from penstock.policy.purposes.engine import SubscriptionChanges
from penstock.store.definitions.snapshots import Snapshot

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
        self,
        work_out: Callable[[Snapshot], Wanted],
        *,
        actor: str,
        reason: str,
        operation: str,
        then: Callable[[Connection], None] | None = None,
        whole: bool = False,
    ) -> None:
        """Change what is stored, and take it over here.

        `then` is done in the same transaction; `whole` allows to edit as many as there are.
        """

    def snapshot_at(self, epoch: int) -> Snapshot:
        """Return what was stored at an epoch; for threads that may wait for the store."""
        ...

    async def check(self, wanted: Wanted) -> None:
        """Raise what is wrong with the definitions that would result."""

    def pass_on(self, changes: SubscriptionChanges) -> None:
        """Let clients and broker know what a change of the rules means."""

    def clear_here(self) -> None:
        """End the subscriptions for purposes of the clients of this gateway."""

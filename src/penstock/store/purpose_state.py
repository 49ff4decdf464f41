"""The purpose state of kept sessions: what PERSIST keeps, what CLEAR and RELOAD make of it.

    definition `purpose-state`   the last commands, each with its epoch ──▶ feed ──▶ gateways
    `persisted_subscriptions`    subscriptions of kept sessions as PERSIST found them

Rules that hold here:
- A command changes definitions and kept sessions in one transaction: before or after, never
  in between. Each function here is a part of it, and keeps other writers of sessions out.
- What was persisted belongs to a session and goes with it: nobody inherits by the name of a
  client what somebody else subscribed for. What a client ends itself is persisted no longer.
- A subscription that a command ended, and that the broker still has, stays with a negative
  number until whoever takes the session up has told the broker.
- The log of commands is in the order of their epochs, the last `STATE_LOG` of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from penstock.errors import UsageError
from penstock.model.document import Document, Key
from penstock.model.kinds.purposes import STATE_LOG, PurposeState
from penstock.policy.access.principals import ANONYMOUS
from penstock.store.database import lock_area
from penstock.store.schema import metadata, revisions
from penstock.store.session_tables import (
    AREA,
    PAUSED,
    digest,
    sessions_table,
    subscription_columns,
    subscriptions_table,
)

STATE: Final = Key(PurposeState.kind, "default")
EXCEPTED_LIMIT: Final = 10_000
Did = Literal["persist", "clear", "reload"]

persisted_table = Table("persisted_subscriptions", metadata, *subscription_columns())

_CURRENT = sa.select(revisions.c.body).where(
    revisions.c.kind == STATE.kind,
    revisions.c.name == STATE.name,
    revisions.c.superseded.is_(None),
)
_COLUMNS = ("client", "number", "filter", "purpose", "options", "identifier", "content")


class StateCommand(NamedTuple):
    """A command on the purpose state, and the epoch in which it was stored."""

    epoch: int
    did: Did


@dataclass(frozen=True, slots=True)
class StateLog:
    """What commands did last, as the definition tells it."""

    persisted: int | None = None
    commands: tuple[StateCommand, ...] = ()

    @classmethod
    def read(cls, body: Mapping[str, Any] | None) -> StateLog:
        """Read the body of the definition; None where there is none."""
        if body is None:
            return cls()
        listed = (StateCommand(it["epoch"], it["did"]) for it in body.get("commands", ()))
        return cls(body.get("persisted"), tuple(listed))

    @property
    def last(self) -> int:
        """The epoch of the last command."""
        return self.commands[-1].epoch if self.commands else 0

    @property
    def last_ending(self) -> int:
        """The epoch of the last command that ends subscriptions."""
        return max((it.epoch for it in self.commands if it.did != "persist"), default=0)

    def since(self, epoch: int) -> tuple[StateCommand, ...]:
        """Return the commands after an epoch, in their order.

        Where some of them may have left the log, all subscriptions for purposes end first:
        nobody can tell any more which of them were to stay.
        """
        later = tuple(it for it in self.commands if it.epoch > epoch)
        if len(later) == STATE_LOG:
            return (StateCommand(later[0].epoch, "clear"), *later)
        return later

    def add(self, did: Did, epoch: int) -> StateLog:
        """Return the log with one more command."""
        commands = (*self.commands, StateCommand(epoch, did))[-STATE_LOG:]
        return StateLog(epoch if did == "persist" else self.persisted, commands)

    def document(self) -> Document:
        """Return the definition that tells this."""
        body: dict[str, Any] = {"commands": [it._asdict() for it in self.commands]}
        if self.persisted is not None:
            body["persisted"] = self.persisted
        return Document(STATE.kind, STATE.name, body)


@dataclass(frozen=True, slots=True)
class Excepted:
    """Whose subscriptions CLEAR does not end: users, and clients of users."""

    users: Collection[str] = ()
    clients: Collection[str] = ()


def read_log(connection: Connection) -> StateLog:
    """Return what commands did last, as the current definitions tell it."""
    body = connection.scalar(_CURRENT)
    return StateLog.read(json.loads(body) if body is not None else None)


def persist(connection: Connection) -> None:
    """Keep the subscriptions of all kept sessions as they are now."""
    held = subscriptions_table.c
    lock_area(connection, AREA)
    connection.execute(sa.delete(persisted_table))
    connection.execute(
        sa.insert(persisted_table).from_select(
            _COLUMNS, sa.select(*(held[name] for name in _COLUMNS)).where(held.number > 0)
        )
    )


def clear(connection: Connection, excepted: Excepted) -> None:
    """End the subscriptions for purposes of all kept sessions but those of some."""
    held, owned = subscriptions_table.c, sessions_table.c
    if len(excepted.users) + len(excepted.clients) > EXCEPTED_LIMIT:
        raise UsageError(
            f"more than {EXCEPTED_LIMIT} users and clients are excepted from CLEAR",
            fix="name fewer in gateway.filtering.clear_excepts",
        )
    lock_area(connection, AREA)
    ending = sa.and_(held.number > 0, held.purpose.is_not(None))
    if excepted.users or excepted.clients:
        # Anybody can choose a client identifier: it counts beside a user only.
        stays = sa.select(owned.client).where(
            owned.principal != ANONYMOUS,
            sa.or_(
                owned.principal.in_(excepted.users),
                owned.client.in_([digest(it) for it in excepted.clients]),
            ),
        )
        ending = sa.and_(ending, held.client.not_in(stays))
    _end(connection, ending)


def reload(connection: Connection) -> None:
    """Give the subscriptions of all kept sessions the purposes that were persisted.

    Those for purposes that are not among them end, and those that a command ended come back;
    the broker is to be told of both. A filter keeps its number and its options all along.
    """
    held, kept = subscriptions_table.c, persisted_table.c
    lock_area(connection, AREA)
    same = sa.and_(kept.client == held.client, kept.filter == held.filter)
    paused = held.options.bitwise_and(PAUSED) != 0
    then = sa.select(kept.purpose).where(same)
    content = sa.select(kept.content).where(same)
    other = kept.purpose.is_distinct_from(held.purpose)
    connection.execute(
        sa.update(subscriptions_table)
        .where(held.number > 0, paused, then.where(other).exists())
        .values(purpose=then.scalar_subquery(), content=content.scalar_subquery())
    )
    changed = (
        sa.select(held.client, held.number)
        .select_from(subscriptions_table.outerjoin(persisted_table, same))
        .where(
            held.number > 0,
            sa.or_(
                sa.and_(kept.client.is_(None), held.purpose.is_not(None)),
                sa.and_(kept.client.is_not(None), held.purpose.is_distinct_from(kept.purpose)),
            ),
        )
    )
    _end(connection, sa.tuple_(held.client, held.number).in_(changed))
    _bring_back(connection)


def _bring_back(connection: Connection) -> None:
    """Put back what was persisted and is not there, to be made at the broker."""
    live, ended = subscriptions_table.alias("live"), subscriptions_table.alias("ended")
    kept = persisted_table.c

    def of(table: sa.FromClause) -> sa.ColumnElement[bool]:
        return sa.and_(table.c.client == kept.client, table.c.filter == kept.filter)

    missing = (
        sa.select(
            kept.client,
            sa.func.coalesce(-ended.c.number, kept.number),
            kept.filter,
            kept.purpose,
            sa.func.coalesce(ended.c.options, kept.options).bitwise_or(PAUSED),
            sa.func.coalesce(ended.c.identifier, kept.identifier),
            kept.content,
        )
        .select_from(
            persisted_table.outerjoin(live, sa.and_(of(live), live.c.number > 0)).outerjoin(
                ended, sa.and_(of(ended), ended.c.number < 0)
            )
        )
        .where(live.c.client.is_(None))
    )
    connection.execute(sa.insert(subscriptions_table).from_select(_COLUMNS, missing))


def _end(connection: Connection, ending: sa.ColumnElement[bool]) -> None:
    """End subscriptions: those that the broker does not have are gone at once."""
    held = subscriptions_table.c
    paused = held.options.bitwise_and(PAUSED) != 0
    connection.execute(sa.delete(subscriptions_table).where(ending, paused))
    connection.execute(sa.update(subscriptions_table).where(ending).values(number=-held.number))

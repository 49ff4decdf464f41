"""Key groups in the store: what their manager gives out, and what a member takes.

    request ──▶ admit ─┐                       ┌─▶ take ──▶ keys
    time ────▶ refresh ┼─▶ state, what was sent ┼─▶ take ──▶ keys
    officer ─▶ expel ──┘     (one transaction)  └─▶ …

Rules that hold here:
- The owner of a type decides by the capability that is shown, at that time, and by nothing else.
- The state of a group changes in one transaction, with what is to be sent because of it: whoever
  manages on another host goes on from there, and may send it again. Members take it once.
- What was sent is kept for those who were away: the last `KEPT` messages of a group. Who was away
  for longer asks again.
- A member never takes a key that is older than one that it has: what was destroyed stays so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.definitions.trust_checks import collect_revocations
from penstock.errors import DeniedError, UsageError
from penstock.model.document import Document, Key
from penstock.model.kinds import EventType
from penstock.store.keys import GroupKeys, StoredKey
from penstock.trust import capabilities
from penstock.trust.event_types import Resource, TypeRegistry, find_resources
from penstock.trust.key_groups import (
    GroupMember,
    KeyGroup,
    KeyGroupError,
    Refresh,
    Welcome,
    member_key,
)
from penstock.trust.key_messages import KeyRequest, read_messages, sign_shapes, to_shape
from penstock.trust.key_tree import KeyTreeError
from penstock.trust.keys import DomainKey

MANAGER: Final = "manager"
MEMBER: Final = "member"
KEPT: Final = 32
SIZE_LIMIT: Final = 1 << 18
"""About how many bytes of messages of a group are kept."""
FOR_EVER: Final = 1 << 53

Message = Welcome | Refresh
Documents = Mapping[Key, Document]


class Taken(NamedTuple):
    """What became of the messages of a manager."""

    taken: int
    passed: int
    """For others, or known."""
    missed: int
    """Groups that cannot be followed: something is missing, or this domain was expelled."""


class KnownTypes:
    """The event types of an installation, and what of them has a key."""

    def __init__(self, documents: Documents) -> None:
        self.types = [
            EventType.model_validate({"name": it.name, **it.body})
            for key, it in documents.items()
            if key.kind == EventType.kind
        ]
        self.registry = TypeRegistry(self.types)
        self.resources = {
            it.id: it for found in self.types for it in find_resources(found, self.registry)
        }


class KeyOffice:
    """Both sides of the key groups of one domain. Used by one thread."""

    def __init__(self, keys: GroupKeys, own: DomainKey, *, refresh_every: int, lead: int) -> None:
        """Take how old a key may be, and how long it is given out before it counts; in ms."""
        self.keys = keys
        self.own = own
        self._refresh_every = refresh_every
        self._lead = lead

    # --- the manager's side ---

    def judge(
        self, asked: KeyRequest, documents: Documents, now: int
    ) -> tuple[list[Resource], list[Resource], capabilities.Capability]:
        """Return what of a type is ours, what of it the capability gives keys of, and this."""
        types = KnownTypes(documents)
        event_type = types.registry.get(asked.event_type)
        if event_type is None:
            raise UsageError("the request is for an event type that is not known here")
        held = capabilities.read(asked.token)
        if held.owner != self.own.key:
            raise DeniedError(
                "the capability is not of this domain", fix="ask the owner of the type"
            )
        if held.links[-1].holder_key != asked.member:
            raise DeniedError("the capability is for somebody else than who asks")
        reason = held.object_to(now / 1000, collect_revocations(documents))
        if reason is not None:
            raise DeniedError(f"the capability does not hold: {reason}")
        # The owner's own gateways seal and open all of it.
        ours = [it for it in find_resources(event_type, types.registry) if it.owner == self.own.key]
        granted = [it for it in ours if it.is_granted(held.grants)]
        if not granted:
            raise DeniedError(
                "the capability gives no right to a key of the type",
                fix="a value that is fixed for readers, or no attribute: seal what they may read "
                "apart",
            )
        return ours, granted, held

    def admit(
        self, asked: KeyRequest, documents: Documents, now: int, *, apart: int | None = None
    ) -> tuple[list[Resource], list[Message]]:
        """Let a domain into the groups that its capability gives a right to.

        With `apart` nobody let it in by hand: who was expelled stays out, and who asked less than
        so many milliseconds before has its answer already.
        """
        ours, granted, held = self.judge(asked, documents, now)
        since, until = 1000 * int(held.valid_from), 1000 * int(held.valid_until)
        messages: list[Message] = []

        def join(group: KeyGroup) -> Iterable[Message | None]:
            known = group.members.get(asked.member)
            if apart is not None:
                if asked.member in group.barred:
                    return
                if known is not None and asked.asked < known.asked + apart:
                    return
            yield group.join(
                asked.member, asked.public_key, since, until, now, os.urandom,
                token=asked.token, asked=asked.asked,
            )  # fmt: skip

        for resource in ours:
            messages += self._change(resource.id, join if resource in granted else _leave, now)
        return granted, messages

    def refresh(
        self, documents: Documents, now: int, *, at_once: bool = False
    ) -> tuple[list[Message], int]:
        """Change the keys that are due, without those whose capability ended or was revoked.

        Returns when the next ones are due, too.
        """
        revocations = collect_revocations(documents)
        due: list[int] = []

        def renew(group: KeyGroup) -> Iterable[Message | None]:
            for member in group.members.values():
                held = capabilities.read(member.token) if member.token else None
                if held is not None and held.object_to(now / 1000, revocations) is not None:
                    group.end(member.name, now)
            yield group.refresh(now, os.urandom, at_once=at_once)
            due.append(group.due)

        messages = [it for id_ in self.keys.groups(MANAGER) for it in self._change(id_, renew, now)]
        return messages, min(due, default=FOR_EVER)

    def expel(self, name: str, now: int) -> list[Message]:
        """Put a domain out of all groups, at once."""

        def put_out(group: KeyGroup) -> Iterable[Message | None]:
            yield group.expel(name, now, os.urandom)

        return [it for id_ in self.keys.groups(MANAGER) for it in self._change(id_, put_out, now)]

    def group(self, id_: UUID) -> KeyGroup:
        """Return a group that this domain manages."""
        return KeyGroup.from_state(json.loads(self.keys.group(id_, MANAGER) or b""))

    def sent(self) -> dict[UUID, bytes]:
        """Return what is to be sent to the members of each group: the last messages, signed."""
        found = {}
        for id_ in self.keys.groups(MANAGER):
            shapes = json.loads(self.keys.group(id_, MANAGER) or b"{}").get("sent")
            if shapes:
                found[id_] = sign_shapes(shapes, self.own)
        return found

    def _change(
        self, id_: UUID, act: Callable[[KeyGroup], Iterable[Message | None]], now: int
    ) -> list[Message]:
        """Change a group that this domain manages; its own gateways get the key of now, too."""
        made: list[Message] = []
        key: list[StoredKey] = []

        def change(before: bytes | None) -> bytes:
            state: dict[str, Any] = json.loads(before) if before is not None else {}
            if state:
                group = KeyGroup.from_state(state)
            else:
                group = KeyGroup(id_, self._refresh_every)
                # The owner is in it for ever: its own gateways seal and open, too.
                public = member_key(self.own.seed()).public_key().public_bytes_raw()
                group.join(self.own.key, public, 0, FOR_EVER, now, os.urandom)
            group.lead, group.refresh_every = self._lead, self._refresh_every
            made[:] = [it for it in act(group) if it is not None]
            current = group.current_key()
            key[:] = [StoredKey(id_, current.generation, current.start, current.secret)]
            sent = _limit([*state.get("sent", ()), *map(to_shape, made)])
            return json.dumps(group.to_state() | {"sent": sent}).encode()

        self.keys.change_group(id_, MANAGER, change)
        if made or not self.keys.holds(id_, key[0].generation):
            self.keys.add(key)
        return made

    # --- the member's side ---

    def request(self, event_type: str, token: str, now: int) -> KeyRequest:
        """Return what asks for the keys of a type."""
        public = member_key(self.own.seed()).public_key().public_bytes_raw()
        return KeyRequest(self.own.key, event_type, token, public, now)

    def take(self, document: bytes, signer: str, resources: Mapping[UUID, Resource]) -> Taken:
        """Take what the owner of types signed."""
        newest: dict[UUID, int] = {}
        taken = passed = 0
        for message in read_messages(document, signer):
            owned = resources.get(message.group)
            if owned is None or owned.owner != signer:
                passed += 1
                continue
            if isinstance(message, Refresh):
                newest[message.group] = message.generation
            key = self._follow(message)
            if key is None or self.keys.holds(key.resource, key.generation):
                passed += 1
            else:
                taken += 1
                self.keys.add([key])
        missed = sum(self.is_behind(id_, generation) for id_, generation in newest.items())
        return Taken(taken, passed, missed)

    def is_behind(self, id_: UUID, generation: int) -> bool:
        """Tell whether this domain has had the key of a group, and not that of a generation."""
        return self.keys.holds(id_, 0) and not self.keys.holds(id_, generation)

    def _follow(self, message: Message) -> StoredKey | None:
        """Take one message of a manager; return the key that it brings to this domain."""
        found: list[StoredKey] = []

        def change(before: bytes | None) -> bytes | None:
            member = GroupMember(message.group, self.own.key, member_key(self.own.seed()))
            if before is not None:
                member.take_state(json.loads(before))
            try:
                if isinstance(message, Welcome):
                    mine = message.member == self.own.key
                    key = member.take_welcome(message) if mine else None
                else:
                    key = member.take_refresh(message)
            except (KeyGroupError, KeyTreeError):
                return before  # not for this domain, taken before, or not in order
            if key is not None:
                found[:] = [StoredKey(key.resource, key.generation, key.start, key.secret)]
            state = member.to_state()
            return json.dumps(state).encode() if state is not None else before

        self.keys.change_group(message.group, MEMBER, change)
        return found[0] if found else None


def _leave(group: KeyGroup) -> Iterable[Message | None]:
    del group
    return ()


def _limit(shapes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last messages: not too many, and not too long in all."""
    kept, size = shapes[-KEPT:], 0
    for at in range(len(kept) - 1, -1, -1):
        size += len(json.dumps(kept[at]))
        if size > SIZE_LIMIT and at < len(kept) - 1:
            return kept[at + 1 :]
    return kept

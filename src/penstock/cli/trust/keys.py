"""`penstock keys`: who has the keys of sealed streams, across domains.

    member: request ──▶ owner: admit ──▶ member: take
                        owner: refresh, expel ──▶ all members: take

Rules that hold here:
- What leaves an installation is a signed file: any way will do to bring it there, and the broker
  may read it.
- The owner of a type decides by the capability in the request, at the time of the request.
- The state of a group changes in one transaction of the store, so that several hosts may do this.
- Nothing changes before it is sure that the file for the others can be written.
- Keys are never shown.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from penstock.cli.output import counted, json_option, show, table
from penstock.cli.session import (
    actor,
    configuration,
    open_audited,
    open_database,
    refuse_missing_store,
)
from penstock.cli.trust.certificates import find_capability, held_documents, open_own_key, read_file
from penstock.errors import DeniedError, UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from uuid import UUID

    from penstock.model.kinds import EventType
    from penstock.store.keys import GroupKeys
    from penstock.trust.event_types import Resource, TypeRegistry
    from penstock.trust.key_groups import KeyGroup, Refresh, Welcome
    from penstock.trust.keys import DomainKey

MANAGER = "manager"
MEMBER = "member"

out_option = click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write for the other side.",
)


@click.group("keys")
def command() -> None:
    """Issue, install and rotate the keys of sealed streams.

    TYPE is the name of an event type that is applied here.
    """


@command.command("request")
@click.argument("event_type", metavar="TYPE")
@click.option("--capability", required=True, help="A file, or the name of one applied here.")
@out_option
@json_option
def request(event_type: str, capability: str, out: Path, as_json: bool) -> None:
    """Ask the owner of TYPE for the keys that a capability gives a right to."""
    from penstock.trust.event_types import type_id
    from penstock.trust.key_messages import KeyRequest, sign_request

    own = open_own_key()
    found, _ = _find_type(event_type)
    held = find_capability(capability, held_documents())
    public_key = _member_key(own).public_key().public_bytes_raw()
    asked = KeyRequest(own.key, type_id(found), held.text, public_key)
    _write(out, sign_request(asked, own))
    data = {"type": event_type, "owner": found.issuer, "file": str(out)}
    show(as_json, data, lambda to: to.print(f"wrote {out}; send it to the owner of {event_type}"))


@command.command("admit")
@click.argument("request_file", type=click.Path(path_type=Path), metavar="REQUEST")
@out_option
@json_option
def admit(request_file: Path, out: Path, as_json: bool) -> None:
    """Admit a domain to the key groups that its capability gives a right to.

    The output is for all members: it may rotate keys.
    """
    from penstock.trust.event_types import find_resources
    from penstock.trust.key_messages import read_request, sign_messages

    own = open_own_key()
    asked = read_request(read_file(request_file))
    event_type, registry = _find_type_by_id(asked.event_type)
    granted, since, until = _judge(own, asked.member, asked.token, event_type, registry)
    now = _now()
    messages: list[Welcome | Refresh] = []

    def join(group: KeyGroup) -> Iterable[Welcome | Refresh | None]:
        yield group.join(
            asked.member, asked.public_key, since, until, now, os.urandom, token=asked.token
        )

    _probe(out)
    for resource in find_resources(event_type, registry):
        # The owner's own gateways seal and open all of it.
        if resource.owner == own.key:
            messages += _change(own, resource.id, join if resource in granted else _leave_alone)
    _record("admitted", len(granted), domain=asked.member)
    _write(out, sign_messages(messages, own))
    _show_messages(messages, out, as_json, keys=[it.attribute or "whole" for it in granted])


@command.command("refresh")
@out_option
@click.option("--now", "at_once", is_flag=True, help="Also rotate keys that are not due yet.")
@json_option
def refresh(out: Path, at_once: bool, as_json: bool) -> None:
    """Rotate the keys that are due, without members whose capability has ended or was revoked."""
    from penstock.definitions.trust_checks import collect_revocations
    from penstock.trust import capabilities
    from penstock.trust.key_messages import sign_messages

    own, now = open_own_key(), _now()
    revocations = collect_revocations(held_documents())

    def renew(group: KeyGroup) -> Iterable[Welcome | Refresh | None]:
        for member in group.members.values():
            held = capabilities.read(member.token) if member.token else None
            if held is not None and held.object_to(now / 1000, revocations) is not None:
                group.end(member.name, now)
        yield group.refresh(now, os.urandom, at_once=at_once)

    _probe(out)
    messages = [it for id_ in _groups(MANAGER) for it in _change(own, id_, renew)]
    _record("refreshed", len(messages))
    _write(out, sign_messages(messages, own))
    _show_messages(messages, out, as_json)


@command.command("expel")
@click.argument("key")
@out_option
@json_option
def expel(key: str, out: Path, as_json: bool) -> None:
    """Expel the domain of KEY from all key groups, at once.

    It can still read what was sealed before, and nothing that is sealed later.
    """
    from penstock.trust.key_messages import sign_messages

    own, now = open_own_key(), _now()

    def put_out(group: KeyGroup) -> Iterable[Welcome | Refresh | None]:
        yield group.expel(key, now, os.urandom)

    _probe(out)
    messages = [it for id_ in _groups(MANAGER) for it in _change(own, id_, put_out)]
    if not messages:
        raise UsageError(
            f"{quote(key)} is in no key group of this domain",
            fix="`penstock keys list` shows who is",
        )
    _record("expelled", len(messages), domain=key)
    _write(out, sign_messages(messages, own))
    _show_messages(messages, out, as_json)


@command.command("take")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def take(file: Path, as_json: bool) -> int:
    """Install the keys that the owner of a type wrote to FILE: gateways have them a second later.

    The exit code is 1 if a file that comes before this one was missed.
    """
    from penstock.store.keys import StoredKey
    from penstock.trust.key_messages import read_messages, signer_of
    from penstock.trust.key_tree import KeyTreeError

    own, document = open_own_key(), read_file(file)
    signer = signer_of(document)
    ours = {it.id: it for it in _all_resources() if it.owner == signer}
    taken: list[StoredKey] = []
    passed = missed = 0
    with _open_keys() as store:
        for message in read_messages(document, signer):
            if message.group not in ours:
                passed += 1
                continue
            try:
                key = _follow(store, own, message)
            except KeyTreeError:
                missed += 1
                continue
            if key is None:
                passed += 1
            else:
                taken.append(StoredKey(*key))
        store.add(taken)
    _record("taken", len(taken))
    data = {"signer": signer, "taken": len(taken), "passed_over": passed, "missed": missed}

    def render(target: Console) -> None:
        skipped = f"passed over {passed}, for others or known already"
        target.print(f"installed {counted(len(taken), 'key')}; {skipped}")
        if missed:
            what = counted(missed, "key")
            target.print(
                f"{what} cannot be followed: a file is missing, or this domain was expelled"
            )
            target.print("take the files in their order, or ask with `penstock keys request` again")

    show(as_json, data, render)
    return 1 if missed else 0


@command.command("list")
@json_option
def list_keys(as_json: bool) -> None:
    """Show which keys are held, never the keys themselves, and who is in this domain's groups."""
    named = {it.id: it for it in _all_resources()}
    with _open_keys() as store:
        held = store.keys()
        groups = {it: _read_group(store, it) for it in store.groups(MANAGER)}
    rows: list[dict[str, Any]] = []
    for key in held:
        resource, group = named.get(key.resource), groups.get(key.resource)
        rows.append(
            {
                "type": resource.label if resource else str(key.resource),
                "attribute": (resource.attribute or "whole") if resource else "",
                "generation": key.generation,
                "since": _time(key.start),
                "managed": group is not None,
                "members": sorted(group.members) if group is not None else [],
            }
        )

    def render(target: Console) -> None:
        from penstock.trust.keys import fingerprint

        shown = table("type", "attribute", "generation", "since", "members")
        for row in rows:
            members = ", ".join(map(fingerprint, row["members"]))
            shown.add_row(
                row["type"],
                row["attribute"],
                str(row["generation"]),
                row["since"],
                members if row["managed"] else "another domain's",
            )
        target.print(shown)

    show(as_json, rows, render)


# --- who may have what ---


def _judge(
    own: DomainKey, member: str, token: str, event_type: EventType, registry: TypeRegistry
) -> tuple[list[Resource], int, int]:
    """Return what a capability gives its holder keys of, and from when to when, in milliseconds."""
    from penstock.definitions.trust_checks import collect_revocations
    from penstock.trust import capabilities
    from penstock.trust.event_types import find_resources

    held = capabilities.read(token)
    now = time.time()
    if held.owner != own.key:
        raise DeniedError("the capability is not of this domain", fix="ask the owner of the type")
    if held.links[-1].holder_key != member:
        raise DeniedError("the capability is for somebody else than who asks")
    reason = held.object_to(now, collect_revocations(held_documents()))
    if reason is not None:
        raise DeniedError(f"the capability does not hold: {reason}")
    granted = [
        it
        for it in find_resources(event_type, registry)
        if it.owner == own.key and it.is_granted(held.grants)
    ]
    if not granted:
        raise DeniedError(
            "the capability gives no right to a key of the type",
            fix="a value that is fixed for readers, or no attribute: seal what they may read apart",
        )
    return granted, 1000 * int(held.valid_from), 1000 * int(held.valid_until)


def _find_type(name: str) -> tuple[EventType, TypeRegistry]:
    types = _types()
    found = next((it for it in types if it.name == name), None)
    if found is None:
        known = ", ".join(sorted(it.name for it in types)) or "none"
        raise UsageError(f"there is no event type {quote(name)}", fix=f"name one of these: {known}")
    return found, _registry(types)


def _find_type_by_id(id_: str) -> tuple[EventType, TypeRegistry]:
    types = _types()
    registry = _registry(types)
    found = registry.get(id_)
    if found is None:
        raise UsageError("the request is for an event type that is not known here")
    return found, registry


def _types() -> list[EventType]:
    from penstock.model.kinds import EventType

    return [
        EventType.model_validate({"name": it.name, **it.body})
        for it in held_documents().values()
        if it.kind == EventType.kind
    ]


def _registry(types: Iterable[EventType]) -> TypeRegistry:
    from penstock.trust.event_types import TypeRegistry

    return TypeRegistry(types)


def _all_resources() -> Iterator[Resource]:
    from penstock.trust.event_types import find_resources

    types = _types()
    registry = _registry(types)
    for event_type in types:
        yield from find_resources(event_type, registry)


# --- the store ---


@contextmanager
def _open_keys() -> Iterator[GroupKeys]:
    from penstock.store.keys import open_group_keys

    settings = configuration()
    refuse_missing_store(settings)
    with open_database(settings) as database:
        yield open_group_keys(database, settings.trust.key)


def _record(what: str, count: int, domain: str | None = None) -> None:
    """Put on record that somebody changed who has keys."""
    from penstock.store.audit.entry import Entry, Outcome

    with open_audited() as it:
        who = it.people.person(actor())
        named: Any = {"key": domain} if domain is not None else {}
        made = Entry.make(
            f"keys.{what}", Outcome.DONE, actor=who, epoch=it.epoch, count=count, **named
        )
        it.log.append([made])


def _groups(side: str) -> list[UUID]:
    with _open_keys() as store:
        return store.groups(side)


def _read_group(store: GroupKeys, id_: UUID) -> KeyGroup:
    from penstock.trust.key_groups import KeyGroup

    return KeyGroup.from_state(json.loads(store.group(id_, MANAGER) or b""))


def _change(
    own: DomainKey,
    id_: UUID,
    act: Callable[[KeyGroup], Iterable[Welcome | Refresh | None]],
) -> list[Welcome | Refresh]:
    """Change a group that this domain manages; its own gateways get the key of now, too."""
    from penstock.store.keys import StoredKey
    from penstock.trust.key_groups import KeyGroup

    sent: list[Welcome | Refresh] = []
    key: list[StoredKey] = []

    def change(before: bytes | None) -> bytes:
        if before is not None:
            group = KeyGroup.from_state(json.loads(before))
        else:
            group = KeyGroup(id_, int(1000 * configuration().trust.key_refresh))
            # The owner is in it for ever: its own gateways seal and open, too.
            public = _member_key(own).public_key().public_bytes_raw()
            group.join(own.key, public, 0, _FOR_EVER, _now(), os.urandom)
        sent[:] = [it for it in act(group) if it is not None]
        current = group.current_key()
        key[:] = [StoredKey(id_, current.generation, current.start, current.secret)]
        return json.dumps(group.to_state()).encode()

    with _open_keys() as store:
        store.change_group(id_, MANAGER, change)
        store.add(key)
    return sent


def _follow(
    store: GroupKeys, own: DomainKey, message: Welcome | Refresh
) -> tuple[UUID, int, int, bytes] | None:
    """Take one message of a manager; return the key that it brings to this domain."""
    from penstock.trust.key_groups import GroupMember, KeyGroupError, Welcome

    found: list[tuple[UUID, int, int, bytes]] = []

    def change(before: bytes | None) -> bytes | None:
        member = GroupMember(message.group, own.key, _member_key(own))
        if before is not None:
            member.take_state(json.loads(before))
        try:
            if isinstance(message, Welcome):
                key = member.take_welcome(message) if message.member == own.key else None
            else:
                key = member.take_refresh(message)
        except KeyGroupError:
            return before  # not for this domain, or taken before
        if key is not None:
            found[:] = [(key.resource, key.generation, key.start, key.secret)]
        state = member.to_state()
        return json.dumps(state).encode() if state is not None else before

    store.change_group(message.group, MEMBER, change)
    return found[0] if found else None


def _member_key(own: DomainKey) -> Any:
    from penstock.trust.key_groups import member_key

    return member_key(own.seed())


# --- files and words ---

_FOR_EVER = 1 << 53


def _now() -> int:
    return int(1000 * time.time())


def _time(milliseconds: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def _write(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        raise UnavailableError(
            f"{quote(path)} cannot be written: {error.strerror}", fix="name another file"
        ) from None


def _probe(path: Path) -> None:
    """Refuse a file that cannot be written before keys change: members would miss a revision."""
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK) or path.is_dir():
        raise UnavailableError(f"{quote(path)} cannot be written", fix="name another file")


def _leave_alone(group: KeyGroup) -> Iterable[Welcome | Refresh | None]:
    del group
    return ()


def _show_messages(
    messages: list[Welcome | Refresh], out: Path, as_json: bool, keys: Iterable[str] = ()
) -> None:
    from penstock.trust.key_groups import Welcome

    changed = sum(not isinstance(it, Welcome) for it in messages)
    given = list(keys)
    data = {"messages": len(messages), "changed": changed, "keys": given, "file": str(out)}

    def render(target: Console) -> None:
        if given:
            target.print(f"admitted to the keys of: {', '.join(given)}", soft_wrap=True)
        target.print(f"{counted(changed, 'key')} changed")
        target.print(f"wrote {out}; all members take it, in order", style="dim", soft_wrap=True)

    show(as_json, data, render)

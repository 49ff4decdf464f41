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

import os
import time
from collections.abc import Iterable, Iterator, Mapping
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
from penstock.errors import UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from penstock.model.document import Document, Key
    from penstock.model.kinds import EventType
    from penstock.store.key_groups import KeyOffice
    from penstock.trust.key_groups import Refresh, Welcome

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
    from penstock.trust.key_messages import sign_request

    with _open_office() as office:
        documents = held_documents()
        found = _find_type(event_type, documents)
        held = find_capability(capability, documents)
        asked = office.request(type_id(found), held.text, _now())
        _write(out, sign_request(asked, office.own))
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
    from penstock.trust.key_messages import read_request, sign_messages

    asked = read_request(read_file(request_file))
    _probe(out)
    with _open_office() as office:
        granted, messages = office.admit(asked, held_documents(), _now())
        _record("admitted", len(granted), domain=asked.member)
        _write(out, sign_messages(messages, office.own))
    _show_messages(messages, out, as_json, keys=[it.attribute or "whole" for it in granted])


@command.command("refresh")
@out_option
@click.option("--now", "at_once", is_flag=True, help="Also rotate keys that are not due yet.")
@json_option
def refresh(out: Path, at_once: bool, as_json: bool) -> None:
    """Rotate the keys that are due, without members whose capability has ended or was revoked."""
    from penstock.trust.key_messages import sign_messages

    _probe(out)
    with _open_office() as office:
        messages, _ = office.refresh(held_documents(), _now(), at_once=at_once)
        _record("refreshed", len(messages))
        _write(out, sign_messages(messages, office.own))
    _show_messages(messages, out, as_json)


@command.command("expel")
@click.argument("key")
@out_option
@json_option
def expel(key: str, out: Path, as_json: bool) -> None:
    """Expel the domain of KEY from all key groups, at once.

    It can still read what was sealed before, and nothing that is sealed later.
    """
    from penstock.trust.key_groups import Refresh
    from penstock.trust.key_messages import sign_messages

    _probe(out)
    with _open_office() as office:
        messages = office.expel(key, _now())
        if not messages:
            raise UsageError(
                f"{quote(key)} is in no key group of this domain",
                fix="`penstock keys list` shows who is",
            )
        _record("expelled", len(messages), domain=key)
        _write(out, sign_messages(messages, office.own))
    starts = [it.start for it in messages if isinstance(it, Refresh)]
    left = f"it still reads what was sealed before {_time(max(starts))}, wherever that is kept"
    _show_messages(messages, out, as_json, left=left)


@command.command("take")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def take(file: Path, as_json: bool) -> int:
    """Install the keys that the owner of a type wrote to FILE: gateways have them a second later.

    The exit code is 1 if a file that comes before this one was missed.
    """
    from penstock.store.key_groups import KnownTypes
    from penstock.trust.key_messages import signer_of

    document = read_file(file)
    signer = signer_of(document)
    with _open_office() as office:
        taken, passed, missed = office.take(
            document, signer, KnownTypes(held_documents()).resources
        )
    _record("taken", taken)
    data = {"signer": signer, "taken": taken, "passed_over": passed, "missed": missed}

    def render(target: Console) -> None:
        target.print(f"took {counted(taken, 'key')}; {passed} were for others, or known")
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
    """Show which keys are held, and who is in the groups of this domain. Keys are not shown."""
    from penstock.store.key_groups import MANAGER, KnownTypes

    named = KnownTypes(held_documents()).resources
    with _open_office() as office:
        held = office.keys.keys()
        groups = {it: office.group(it) for it in office.keys.groups(MANAGER)}
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


# --- the store ---


def _find_type(name: str, documents: Mapping[Key, Document]) -> EventType:
    from penstock.store.key_groups import KnownTypes

    types = KnownTypes(documents).types
    found = next((it for it in types if it.name == name), None)
    if found is None:
        known = ", ".join(sorted(it.name for it in types)) or "none"
        raise UsageError(f"there is no event type {quote(name)}", fix=f"name one of these: {known}")
    return found


@contextmanager
def _open_office() -> Iterator[KeyOffice]:
    from penstock.store.key_groups import KeyOffice
    from penstock.store.keys import open_group_keys

    own, settings = open_own_key(), configuration()
    refuse_missing_store(settings)
    with open_database(settings) as database:
        trust = settings.trust
        yield KeyOffice(
            open_group_keys(database, trust.key), own,
            refresh_every=int(1000 * trust.key_refresh), lead=int(1000 * trust.key_lead),
        )  # fmt: skip


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


# --- files and words ---


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


def _show_messages(
    messages: list[Welcome | Refresh],
    out: Path,
    as_json: bool,
    keys: Iterable[str] = (),
    left: str = "",
) -> None:
    from penstock.trust.key_groups import Welcome

    changed = sum(not isinstance(it, Welcome) for it in messages)
    given = list(keys)
    data: dict[str, Any] = {"messages": len(messages), "changed": changed, "keys": given}
    data["file"] = str(out)
    if left:
        data["left"] = left

    def render(target: Console) -> None:
        if given:
            target.print(f"admitted to the keys of: {', '.join(given)}", soft_wrap=True)
        target.print(f"{counted(changed, 'key')} changed")
        if left:
            target.print(left, soft_wrap=True)
        target.print(f"wrote {out}; all members take it, in order", style="dim", soft_wrap=True)

    show(as_json, data, render)

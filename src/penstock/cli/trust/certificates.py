"""`penstock cert`: capabilities between domains: issue, pass on, look at, revoke.

Rules that hold here:
- What is written is a definition: whoever it is for applies the file.
- The private key is read when something is signed, and made at the first use; it is never shown.
- A file holds one definition as YAML, so that whoever gets it applies it as it is. It appears
  whole, or not at all. `penstock event-type` and `penstock keys` write theirs likewise.
- A drawing shows keys by their short form, and marks the link for which the chain does not hold.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import Function, counted, json_option, show
from penstock.cli.session import actor, change_definitions, configuration, open_history
from penstock.errors import UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from penstock.model.document import Document, Key
    from penstock.trust.capabilities import Capability, Link, Revocations
    from penstock.trust.keys import DomainKey


SIZE_LIMIT = 4 << 20


def open_own_key() -> DomainKey:
    """Return the key of this domain; make it where there is none yet."""
    from penstock.trust.keys import open_key

    return open_key(configuration().trust.key)


def read_file(path: Path) -> bytes:
    """Return what a file holds."""
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise UnavailableError(
            f"{quote(path)} cannot be read: {error.strerror}", fix="name a file that exists"
        ) from None
    if len(content) > SIZE_LIMIT:
        raise UsageError(f"{quote(path)} is too large: at most {SIZE_LIMIT} bytes are read")
    return content


def write_document(document: Document, path: Path | None) -> str:
    """Return a definition as YAML; write it to a file where one is named."""
    import yaml

    text = yaml.safe_dump(document.fields(), sort_keys=False, allow_unicode=True, width=1_000_000)
    if path is not None:
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)
        except OSError as error:
            raise UnavailableError(
                f"{quote(path)} cannot be written: {error.strerror}", fix="name another file"
            ) from None
    return text


def held_documents() -> Mapping[Key, Document]:
    """Return the definitions of this installation; none where there is no store yet."""
    try:
        with open_history() as history:
            return history.snapshot().documents
    except UnavailableError:
        return {}


def find_body(kind: str, named: str, held: Mapping[Key, Document]) -> Mapping[str, Any]:
    """Return the fields of a definition: of a file, or of one that is registered here."""
    from penstock.definitions import read_paths
    from penstock.errors import InvalidError
    from penstock.model.document import Key

    path = Path(named)
    if not path.is_file():
        known = held.get(Key(kind, named))
        if known is not None:
            return known.fields()
        raise UsageError(
            f"there is no file {quote(named)}, and no {kind} of that name",
            fix=f"name a file, or one that `penstock get {kind}` lists",
        )
    if kind == "capability" and read_file(path).startswith(b"penstock-capability-"):
        return {"name": path.stem, "token": read_file(path).decode(errors="replace").strip()}
    reading = read_paths([str(path)])
    if reading.problems:
        raise InvalidError("definitions", list(reading.problems))
    found = [it.fields() for it in reading.documents if it.kind == kind]
    if len(found) != 1:
        raise UsageError(f"{quote(named)} holds {len(found)} definitions of kind {kind}, not one")
    return found[0]


def find_capability(named: str, held: Mapping[Key, Document]) -> Capability:
    """Return a capability of a file or of this installation, its signatures verified."""
    from penstock.trust import capabilities

    return capabilities.read(str(find_body("capability", named, held).get("token", "")))


DAYS = 365

Grants = tuple[str, ...]


@click.group("cert")
def command() -> None:
    """Manage what other domains may do: capabilities, delegated link by link.

    A GRANT is written `network: NAME; action: connect | install` or
    `type: NAME*; action: subscribe | publish; attributes: A & B = 500`.
    """


@command.command("key")
@json_option
def key(as_json: bool) -> None:
    """Show the public key of this domain; make the key if there is none."""
    from penstock.trust.keys import fingerprint

    own = open_own_key()
    data = {"key": own.key, "fingerprint": fingerprint(own.key)}

    def render(target: Console) -> None:
        target.print(own.key)
        target.print(f"short form, to compare by telephone: {data['fingerprint']}", style="dim")

    show(as_json, data, render)


def link_options(function: Function) -> Function:
    """Add the options that say what a link is like."""
    options: Iterable[Callable[[Function], Function]] = (
        click.option("--to", "holder", required=True, help="Who gets it: key:HEX or user:NAME."),
        click.option("--name", required=True, help="The name of the definition."),
        click.option(
            "--from",
            "start",
            metavar="TIME",
            help="Valid from this time, with its offset; default: now.",
        ),
        click.option("--until", metavar="TIME", help="Valid until this time; default: for --days."),
        click.option(
            "--days",
            type=click.IntRange(1, 36_500),
            default=DAYS,
            show_default=True,
            help="For how many days.",
        ),
        click.option(
            "--refresh",
            metavar="DURATION",
            default="0s",
            help="Expire unless a new revocation list arrives within this time; 0s: never.",
        ),
        click.option(
            "-o",
            "--out",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Also write the definition to this file.",
        ),
        json_option,
    )
    for option in options:
        function = option(function)
    return function


@command.command("issue")
@click.argument("grants", nargs=-1, required=True, metavar="GRANT...")
@link_options
def issue(grants: Grants, **options: Any) -> None:
    """Issue a capability for what belongs to this domain."""
    from penstock.trust import capabilities

    own = open_own_key()
    made = capabilities.issue(own, _make_link(own.key, grants, options))
    _deliver(made, options)


@command.command("delegate")
@click.argument("capability")
@click.argument("grants", nargs=-1, required=True, metavar="GRANT...")
@link_options
def delegate(capability: str, grants: Grants, **options: Any) -> None:
    """Delegate a part of CAPABILITY: a file, or the name of one that is applied here.

    Nobody can delegate more than they hold, and a user cannot delegate.
    """
    from penstock.trust import capabilities

    own = open_own_key()
    held = find_capability(capability, held_documents())
    made = capabilities.delegate(held, own, _make_link(own.key, grants, options))
    _deliver(made, options)


@command.command("inspect")
@click.argument("capability")
@json_option
def inspect(capability: str, as_json: bool) -> int:
    """Draw the chain of CAPABILITY, and say whether it holds now.

    The exit code is 1 where it does not.
    """
    from penstock.definitions.trust_checks import collect_revocations
    from penstock.trust import capabilities

    documents = held_documents()
    found = find_capability(capability, documents)
    revocations = collect_revocations(documents)
    now = time.time()
    reason = found.object_to(now, revocations)
    data = {
        "id": found.id,
        "owner": found.owner,
        "holder": found.holder,
        "links": capabilities.describe(found),
        "holds": reason is None,
        "reason": reason,
    }
    show(as_json, data, lambda target: draw(target, found, now, revocations))
    return 0 if reason is None else 1


@command.command("revoke")
@click.argument("capability", nargs=-1, metavar="[CAPABILITY]...")
@click.option(
    "--link",
    type=click.IntRange(1),
    help="The number of the link, counted from the owner's; default: the last.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the revocation list to this file, for the other domains.",
)
@json_option
def revoke(capability: tuple[str, ...], link: int | None, out: Path | None, as_json: bool) -> None:
    """Revoke a link of each CAPABILITY, and with it all that was delegated through it.

    The list of this domain's revocations is signed anew and applied here. Without CAPABILITY the
    list is only refreshed, for capabilities that would expire otherwise.
    """
    own = open_own_key()
    documents = held_documents()
    ids = [_find_link(find_capability(it, documents), own.key, link).id for it in capability]

    made: list[Document] = []

    def want(now: Any) -> dict[Key, Document | None]:
        made[:] = [_sign_list(now.documents, ids)]
        return {it.key: it for it in made}

    with change_definitions() as definitions:
        definitions.edit(want, actor=actor(), reason="revoked a capability" if ids else "refreshed")
    document = made[0]
    text = write_document(document, out)
    data = {
        "key": own.key,
        "issued": document.body["issued"],
        "revoked": ids,
        "total": len(document.body["revoked"]),
        "file": str(out) if out else None,
        "document": document.fields(),
    }

    def render(target: Console) -> None:
        total = counted(len(document.body["revoked"]), "link")
        target.print(f"revoked {counted(len(ids), 'link')}; the list names {total}")
        if out is None:
            target.print(text, soft_wrap=True)
        else:
            target.print(f"apply {out} in the other domains", style="dim", soft_wrap=True)

    show(as_json, data, render)


def _sign_list(held: Mapping[Key, Document], ids: Iterable[str]) -> Document:
    from penstock.model.document import Document, Key
    from penstock.trust import capabilities

    own = open_own_key()
    before = held.get(Key("revocation-list", own.key))
    known = before.body.get("revoked", ()) if before is not None else ()
    issued = max(int(time.time()), before.body["issued"] if before is not None else 0)
    found = capabilities.revoke(own, {*known, *ids}, issued)
    body = capabilities.write_revocations(found)
    return Document("revocation-list", body.pop("signer"), body)


def _find_link(found: Capability, own: str, number: int | None) -> Link:
    at = len(found.links) if number is None else number
    if at > len(found.links):
        raise UsageError(
            f"the capability has {counted(len(found.links), 'link')}, not {at}",
            fix="`penstock cert inspect` draws them",
        )
    if own not in {it.signer for it in found.links[:at]}:
        raise UsageError(
            f"link {at} was signed by others, and so were those before it",
            fix="its signer, or one nearer the owner, can revoke it",
        )
    return found.links[at - 1]


def _make_link(signer: str, grants: Grants, options: Mapping[str, Any]) -> Link:
    from penstock.config.settings import parse_duration
    from penstock.model.grants import parse_grant
    from penstock.model.kinds.roles import read_moment
    from penstock.trust.capabilities import Link

    def read(text: str | None, other: int) -> int:
        try:
            return read_moment(text) // 1000 if text else other
        except ValueError as error:
            raise UsageError(str(error)) from None

    start = read(options["start"], int(time.time()))
    until = read(options["until"], start + options["days"] * 86_400)
    try:
        refresh = int(parse_duration(options["refresh"]))
    except ValueError:
        raise UsageError(
            f"{quote(options['refresh'])} is not a duration", fix="write one such as 12h"
        ) from None
    holder = str(options["holder"])
    return Link(signer, holder, tuple(map(parse_grant, grants)), start, until, refresh)


def _deliver(made: Capability, options: Mapping[str, Any]) -> None:
    from penstock.model.document import Document
    from penstock.trust import capabilities
    from penstock.trust.capabilities import Revocations

    document = Document("capability", options["name"], {"token": made.text})
    out: Path | None = options["out"]
    text = write_document(document, out)
    data = {
        "name": options["name"],
        "id": made.id,
        "token": made.text,
        "links": capabilities.describe(made),
        "file": str(out) if out else None,
    }

    def render(target: Console) -> None:
        if out is None:
            target.print(text, soft_wrap=True)
        else:
            draw(target, made, time.time(), Revocations())
            target.print(f"wrote {out}; its holder applies it", style="dim", soft_wrap=True)

    show(options["as_json"], data, render)


def draw(target: Console, found: Capability, now: float, revocations: Revocations) -> None:
    """Draw a chain: who grants what to whom."""
    from penstock.trust.capabilities import Capability
    from penstock.trust.keys import fingerprint

    def name(holder: str) -> str:
        return f"key {fingerprint(holder[4:])}" if holder.startswith("key:") else holder

    target.print(Text.assemble(("owner ", "bold"), f"key {fingerprint(found.owner)}"))
    held = True
    for at, link in enumerate(found.links):
        reason = Capability(found.text, found.links[: at + 1]).object_to(now, revocations)
        style = "green" if reason is None else "red"
        for grant in link.grants:
            target.print(Text.assemble(("  │ ", style), str(grant)), soft_wrap=True)
        times = f"{_time(link.valid_from)} until {_time(link.valid_until)}"
        refresh = f", refreshed every {link.refresh} s" if link.refresh else ""
        target.print(Text.assemble(("  │ ", style), (f"{times}{refresh}", "dim")))
        if reason is not None and held:
            target.print(Text.assemble(("  ✗ ", style), (reason, style)))
            held = False
        target.print(Text.assemble(("  ▼ ", style), f"link {at + 1}, id {link.id[:16]}…"))
        target.print(Text.assemble(("", "bold"), name(link.holder)))
    target.print("it holds now" if held else "it does not hold", style="green" if held else "red")


def _time(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}Z"

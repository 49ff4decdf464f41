"""`penstock event-type`: sign event types, revise and extend them, look at them, fetch them.

Rules that hold here:
- What is written is a definition: whoever is to know the type applies the file.
- An attribute is written NAME:TYPE, with `?` behind the type where it is optional. Its UUID is made
  up once, and stays with it in all versions and in what extends the type.
- What another domain serves is verified when it is applied, as any file is.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import counted, json_option, show, table
from penstock.cli.trust.certificates import (
    find_body,
    find_capability,
    held_documents,
    open_own_key,
    write_document,
)
from penstock.errors import DeniedError, InvalidError, Problem, UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from penstock.model.document import Document, Key
    from penstock.model.kinds import EventType
    from penstock.model.kinds.trust import TypeAttribute, TypeCertificate

ANSWER_LIMIT = 1 << 20
ANSWER_SECONDS = 15.0

out_option = click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the definition to this file.",
)
name_option = click.option("--name", help="The name of the definition; default: LABEL/VERSION.")
capability_option = click.option(
    "--capability",
    help="The capability that permits this: a file, or the name of one that is applied here.",
)


@click.group("event-type")
def command() -> None:
    """Sign event types, and exchange them with other domains.

    An ATTRIBUTE is written NAME:TYPE, such as `location:string`, with `?` where it is optional.
    """


@command.command("create")
@click.argument("label")
@click.argument("attributes", nargs=-1, required=True, metavar="ATTRIBUTE...")
@name_option
@out_option
@json_option
def create(
    label: str, attributes: tuple[str, ...], name: str | None, out: Path | None, as_json: bool
) -> None:
    """Sign the first version of a type called LABEL."""
    _sign(label, [_parse_attribute(it) for it in attributes], (), None, name, out, as_json)


@command.command("revise")
@click.argument("event_type", metavar="TYPE")
@click.option(
    "--add", "added", multiple=True, metavar="ATTRIBUTE", help="Add an attribute; repeatable."
)
@click.option(
    "--remove", "removed", multiple=True, metavar="NAME", help="Remove an attribute; repeatable."
)
@click.option(
    "--rename",
    "renamed",
    multiple=True,
    metavar="NAME=NEW",
    help="Rename an attribute; repeatable.",
)
@click.option(
    "--retype",
    "retyped",
    multiple=True,
    metavar="ATTRIBUTE",
    help="Change the type of an attribute; repeatable.",
)
@capability_option
@name_option
@out_option
@json_option
def revise(
    *,
    event_type: str,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    renamed: tuple[str, ...],
    retyped: tuple[str, ...],
    capability: str | None,
    name: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Sign a new version of TYPE, as its issuer or as a manager with the rights to it."""
    from penstock.model.kinds.trust import TypeCertificate

    held = held_documents()
    base = _find_type(event_type, held)
    attributes = {it.name: it for it in base.attributes}
    for old in removed:
        _take(attributes, old)
    for text in renamed:
        old, equals, new = text.partition("=")
        if not equals or new in attributes:
            raise UsageError(f"{quote(text)} renames nothing", fix="write NAME=NEW, NEW unused")
        attributes[new] = _take(attributes, old).model_copy(update={"name": new})
    for text in retyped:
        new_type = _parse_attribute(text)
        known = _take(attributes, new_type.name)
        attributes[known.name] = new_type.model_copy(update={"id": known.id})
    for text in added:
        more = _parse_attribute(text)
        if more.name in attributes:
            raise UsageError(f"the type has {quote(more.name)} already", fix="use --retype")
        attributes[more.name] = more
    certificates = [it for it in base.certificates if it.extends is not None]
    if capability is not None:
        token = find_capability(capability, held).text
        certificates.append(TypeCertificate(token=token, revises=base.version))
    _sign(
        base.label, attributes.values(), certificates, base.issuer, name, out, as_json, known=held
    )


@command.command("extend")
@click.argument("event_type", metavar="TYPE")
@click.argument("label")
@click.argument("attributes", nargs=-1, required=True, metavar="ATTRIBUTE...")
@capability_option
@name_option
@out_option
@json_option
def extend(
    *,
    event_type: str,
    label: str,
    attributes: tuple[str, ...],
    capability: str | None,
    name: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Sign a type called LABEL of our own that has all attributes of TYPE, and more."""
    from penstock.model.kinds.trust import TypeCertificate
    from penstock.trust.event_types import type_id

    held = held_documents()
    base = _find_type(event_type, held)
    token = find_capability(capability, held).text if capability is not None else None
    certificate = TypeCertificate(token=token, extends=type_id(base))
    own = [_parse_attribute(it) for it in attributes]
    _sign(label, [*base.attributes, *own], [certificate], None, name, out, as_json, known=held)


@command.command("inspect")
@click.argument("event_type", metavar="TYPE")
@json_option
def inspect(event_type: str, as_json: bool) -> int:
    """Show the items of TYPE, a file or a definition, and whether it is believed.

    The exit code is 1 where it is not.
    """
    from penstock.trust.event_types import type_id
    from penstock.trust.keys import fingerprint

    held = held_documents()
    found = _find_type(event_type, held)
    reason = _registry(held, found).object_to(found)
    data = {
        "id": type_id(found),
        **found.statement(),
        "signature": found.signature,
        "believed": reason is None,
        "reason": reason,
    }

    def render(target: Console) -> None:
        target.print(Text.assemble((found.label, "bold"), f"  version {found.version}"))
        target.print(f"issuer key {fingerprint(found.issuer)}, id {data['id']}", soft_wrap=True)
        shown = table("attribute", "type", "UUID")
        for it in found.attributes:
            shown.add_row(it.name, f"{it.type}{'?' if it.optional else ''}", it.id)
        target.print(shown)
        for certificate in found.certificates:
            revised = certificate.revises
            what = f"revises {revised}" if revised else f"extends {certificate.extends}"
            target.print(what, soft_wrap=True)
        said = "it is believed" if reason is None else f"it is not believed: {reason}"
        target.print(said, style="green" if reason is None else "red", soft_wrap=True)

    show(as_json, data, render)
    return 0 if reason is None else 1


@command.command("list")
@json_option
def list_types(as_json: bool) -> None:
    """List the types that are registered here."""
    from penstock.trust.event_types import type_id
    from penstock.trust.keys import fingerprint

    found = list(_types(held_documents()))
    data = [
        {
            "name": it.name,
            "id": type_id(it),
            "label": it.label,
            "version": it.version,
            "issuer": it.issuer,
            "attributes": [attribute.name for attribute in it.attributes],
        }
        for it in found
    ]

    def render(target: Console) -> None:
        shown = table("name", "label", "issuer", "attributes")
        for it in found:
            names = ", ".join(attribute.name for attribute in it.attributes)
            shown.add_row(it.name, it.label, fingerprint(it.issuer), names)
        target.print(shown if found else "no event types yet; `penstock apply -f FILE` adds some")

    show(as_json, data, render)


@command.command("fetch")
@click.argument("url")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file of the token that the other domain's server asks for; nobody else may read it.",
)
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the definitions to this file, to be looked at and applied.",
)
@json_option
def fetch(url: str, token_file: Path | None, out: Path, as_json: bool) -> None:
    """Fetch the types that the server of another domain offers at URL, by https.

    Nothing is registered yet: applying the file verifies every one of them.
    """
    from penstock.config.secrets import SecretFile

    token = SecretFile(token_file).read_text() if token_file is not None else None
    found = _read_answer(_ask(url, token))
    text = "---\n".join(write_document(it, None) for it in found)
    out.write_text(text, encoding="utf-8")
    data = {"file": str(out), "types": [it.name for it in found]}

    def render(target: Console) -> None:
        target.print(f"wrote {counted(len(found), 'event type')} to {out}", soft_wrap=True)
        target.print(f"`penstock apply -f {out}` verifies them", style="dim", soft_wrap=True)

    show(as_json, data, render)


def _ask(url: str, token: str | None) -> bytes:
    import http.client
    from urllib.parse import urlsplit

    from penstock.config.settings import is_loopback

    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in {"http", "https"} or not host or parts.username or parts.query:
        raise UsageError(f"{quote(url)} is not an address of a server", fix="write https://HOST")
    if parts.scheme == "http" and not is_loopback(host):
        raise UsageError("others on the network could read the token", fix="use https")
    secure = parts.scheme == "https"
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = connect(host, parts.port, timeout=ANSWER_SECONDS)
    headers = {"Accept": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/v1/event-types", headers=headers)
        answer = connection.getresponse()
        content = answer.read(ANSWER_LIMIT + 1)
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(
            f"the server of {quote(host)} does not answer: {type(error).__name__}",
            fix="ask the other domain for its address",
        ) from None
    finally:
        connection.close()
    if answer.status in {401, 403}:
        raise DeniedError(
            f"the server of {quote(host)} does not let us in ({answer.status})",
            fix="give the token that the other domain made for us, with --token-file",
        )
    if answer.status != http.client.OK or len(content) > ANSWER_LIMIT:
        raise UnavailableError(f"the server of {quote(host)} answers {answer.status}")
    return content


def _read_answer(content: bytes) -> list[Document]:
    from penstock.json_text import read_object
    from penstock.model.document import Document

    found = read_object(content)
    listed = found.get("event_types") if found is not None else None
    if not isinstance(listed, list) or not all(isinstance(it, dict) for it in listed):
        raise UnavailableError("the answer is not a list of event types", fix="is it a Penstock?")
    made = []
    for body in listed:
        name = body.pop("name", None)
        body.pop("kind", None)
        if not isinstance(name, str):
            raise UnavailableError(
                "the answer is not a list of event types", fix="is it a Penstock?"
            )
        made.append(Document("event-type", name, body))
    return made


def _types(held: Mapping[Key, Document]) -> Iterable[EventType]:
    from penstock.model.kinds import EventType

    for key in sorted(held):
        if key.kind == EventType.kind:
            yield EventType.model_validate({"name": key.name, **held[key].body})


def _registry(held: Mapping[Key, Document], *more: EventType) -> Any:
    from penstock.trust.event_types import TypeRegistry

    return TypeRegistry([*_types(held), *more])


def _find_type(named: str, held: Mapping[Key, Document]) -> EventType:
    from pydantic import ValidationError

    from penstock.model.kinds import EventType

    body = {key: it for key, it in find_body("event-type", named, held).items() if key != "kind"}
    try:
        return EventType.model_validate(body)
    except ValidationError as error:
        problems = [
            Problem(".".join(map(str, it["loc"])), it["msg"])
            for it in error.errors(include_url=False, include_input=False)
        ]
        raise InvalidError(f"event-type {quote(named)}", problems) from None


def _parse_attribute(text: str) -> TypeAttribute:
    from pydantic import ValidationError

    from penstock.model.kinds.trust import TypeAttribute

    name, colon, kind = text.rpartition(":")
    try:
        return TypeAttribute.model_validate(
            {
                "name": name,
                "id": str(uuid.uuid4()),
                "type": kind.removesuffix("?") if colon else "",
                "optional": kind.endswith("?"),
            }
        )
    except ValidationError:
        raise UsageError(
            f"{quote(text)} is not an attribute",
            fix="write NAME:TYPE; types are string, int, long, float, double, boolean, date and "
            "timestamp",
        ) from None


def _take(attributes: dict[str, TypeAttribute], name: str) -> TypeAttribute:
    found = attributes.pop(name, None)
    if found is None:
        raise UsageError(
            f"the type has no attribute {quote(name)}", fix=f"it has {', '.join(attributes)}"
        )
    return found


def _sign(
    label: str,
    attributes: Iterable[TypeAttribute],
    certificates: Iterable[TypeCertificate],
    issuer: str | None,
    name: str | None,
    out: Path | None,
    as_json: bool,
    *,
    known: Mapping[Key, Document] | None = None,
) -> None:
    from pydantic import ValidationError

    from penstock.trust.event_types import sign_type, type_id

    own = open_own_key()
    version = str(uuid.uuid4())
    try:
        made = sign_type(
            own,
            name or f"{label}/{version}",
            label,
            version,
            attributes,
            issuer=issuer,
            certificates=certificates,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"the type cannot be signed: {first}") from None
    reason = _registry(known or {}, made).object_to(made)
    if reason is not None:
        raise DeniedError(f"this type would not be trusted: {reason}", fix="give --capability")
    document = made.document()
    text = write_document(document, out)
    data = {"id": type_id(made), "file": str(out) if out else None, "document": document.fields()}

    def render(target: Console) -> None:
        if out is None:
            target.print(text, soft_wrap=True)
        else:
            target.print(f"wrote {made.name} to {out}", soft_wrap=True)

    show(as_json, data, render)

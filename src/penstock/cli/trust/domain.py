"""What verbs about other domains share: the key of this one, files, and what is registered.

Rules that hold here:
- The private key is read when something is signed, and made at the first use; it is never shown.
- A file holds one definition as YAML, so that whoever gets it applies it as it is. It appears
  whole, or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.session import configuration, open_history
from penstock.errors import UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from penstock.model.document import Document, Key
    from penstock.trust.capabilities import Capability
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

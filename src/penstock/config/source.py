"""Reads penstock.yaml: one YAML document of `key: value` lines, within small limits."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import InvalidError, Problem, UnavailableError, quote
from penstock.yaml_text import Limits, Source, read_documents

# The file that `penstock init` writes has 10 KiB; a hostile one costs less than a second.
LIMITS = Limits(size=64 * 1024, depth=16, values=5000)


def read_file(path: Path) -> Source:
    """Read a settings file; raise `InvalidError` where it cannot be read to the end."""
    try:
        with path.open("rb") as file:
            content = file.read(LIMITS.size + 1)
    except OSError as error:
        raise UnavailableError(
            f"{quote(path)} cannot be read: {error.strerror}",
            fix="`penstock init` writes one; --config FILE names another",
        ) from None
    source = read_text(content, str(path))
    source.file = path.absolute()
    return source


def read_text(content: bytes, name: str) -> Source:
    """Read the text of a settings file named `name`."""
    documents = read_documents(content, name, LIMITS)
    source = documents[0] if documents else Source(name)
    if len(documents) > 1:
        raise _refused(documents[1], "a second document begins here", "keep one")
    if source.data is None:
        source.data = {}
    if not isinstance(source.data, dict):
        fix = "`penstock init` writes an example"
        raise _refused(source, "the file must hold `key: value` lines", fix)
    return source


def _refused(source: Source, message: str, fix: str) -> InvalidError:
    return InvalidError(source.name, [Problem(source.place(()), message, fix)])

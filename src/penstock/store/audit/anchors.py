"""Heads kept in files, outside the database.

Whoever holds the database alone can set the log back to an older signed state. A head
that is kept elsewhere tells: the log has to extend it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from penstock.errors import UnavailableError, quote
from penstock.store.audit.signing import Head

_LIMIT = 10_000


def anchor_path(private: Path) -> Path:
    """Return where the newest head is kept that belongs to a private key file."""
    return private.with_suffix(".head")


def load_head(path: Path) -> Head:
    """Read a head that was kept in a file; its signature is not checked yet."""
    try:
        with path.open() as file:
            return Head.from_document(json.loads(file.read(_LIMIT)))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not JSON"
        raise UnavailableError(
            f"the head kept in {quote(path)} cannot be read: {reason}",
            fix="pass a file that `penstock audit head --json` wrote",
        ) from None


def save_head(path: Path, head: Head) -> None:
    """Keep a head in a file; the file is whole at every moment."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w") as file:
        file.write(json.dumps(head.as_document()) + "\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)

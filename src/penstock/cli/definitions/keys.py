"""How a command names definitions: `KIND`, `KIND NAME` or `KIND/NAME`."""

from __future__ import annotations

import difflib

from penstock.errors import UsageError, quote
from penstock.model.document import Key
from penstock.model.kinds import KINDS


def parse_kind(text: str) -> str:
    """Return the kind; plural forms are taken too."""
    for word in (text, text.removesuffix("s"), text.removesuffix("ies") + "y"):
        if word in KINDS:
            return word
    near = difflib.get_close_matches(text, KINDS, n=1)
    raise UsageError(
        f"there is no kind {quote(text)}",
        fix=f"did you mean {near[0]!r}?" if near else f"kinds are {', '.join(sorted(KINDS))}",
    )


def parse_key(text: str) -> Key:
    """Return the key of `KIND/NAME`; the name may hold further slashes."""
    kind, slash, name = text.partition("/")
    if not slash or not name:
        raise UsageError(
            f"{quote(text)} does not name a definition", fix="write KIND/NAME, such as policy/nurse"
        )
    return Key(parse_kind(kind), name)

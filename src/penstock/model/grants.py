"""Grants: what a capability lets its holder do, in the notation that people read and write.

    network: CityNet; action: connect | install
    type: Sighting*; action: subscribe | publish; attributes: numberplate & camera = 500

Rules that hold here:
- A grant is about one network, or about the types of one owner whose names fit a pattern. Whose
  they are is not in the text: it is the key that signed the capability first.
- `*` stands for all actions, for all attributes, and at the end of a name for any further text.
- `attribute = value` fixes a value: published messages get it, others are not delivered. What has
  a fixed value is granted with it.
- The text has one canonical form. What is read and written again is that form.
- A grant covers another if whatever the other allows, it allows too, with no fixed value left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple
from urllib.parse import quote as escape
from urllib.parse import unquote_to_bytes

from penstock.errors import UsageError, quote

Resource = Literal["network", "type"]
Value = str | int | float | bool

CONNECT: Final = "connect"
INSTALL: Final = "install"
EXTEND: Final = "extend"
PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
ADD: Final = "addAttribute"
REMOVE: Final = "removeAttribute"
RENAME: Final = "editAttributeName"
RETYPE: Final = "editAttributeType"

MANAGEMENT: Final = frozenset({ADD, REMOVE, RENAME, RETYPE})
"""What a manager of a type may be allowed to change in a new version."""
ACTIONS: Final[Mapping[str, frozenset[str]]] = {
    "network": frozenset({CONNECT, INSTALL}),
    "type": frozenset({EXTEND, PUBLISH, SUBSCRIBE}) | MANAGEMENT,
}
ALL: Final = "*"
TEXT_LIMIT: Final = 2_000
ATTRIBUTE_LIMIT: Final = 64

_SAFE: Final = "-_.~/"
_NAME: Final = re.compile(r"[A-Za-z0-9._~/-][A-Za-z0-9._~/%-]{0,255}\*?|\*", re.ASCII)
_ATTRIBUTE: Final = re.compile(r"(?:[A-Za-z0-9_.~/-]|%[0-9A-F]{2}){1,768}", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?", re.ASCII)
_FIX: Final = "write it as `type: NAME; action: subscribe; attributes: A & B = 500`"


class Grant(NamedTuple):
    """What a capability allows: actions on one network, or on types whose names fit."""

    resource: Resource
    name: str
    """Of the network or of types; `*` at its end stands for any text."""
    actions: frozenset[str]
    attributes: frozenset[str] | None = None
    """The attributes of types that it is about; None: all."""
    values: tuple[tuple[str, Value], ...] = ()
    """Attributes with a fixed value, in order."""

    def allows(self, resource: Resource, name: str, action: str) -> bool:
        """Tell whether it is about an action on a network or a type."""
        return self.resource == resource and action in self.actions and fits(self.name, name)

    def sees(self, attribute: str) -> bool:
        """Tell whether it is about an attribute."""
        return self.attributes is None or attribute in self.attributes

    def covers(self, other: Grant) -> bool:
        """Tell whether it allows whatever another one does."""
        if self.resource != other.resource or not other.actions <= self.actions:
            return False
        if not covers_name(self.name, other.name):
            return False
        if self.attributes is not None and (
            other.attributes is None or not other.attributes <= self.attributes
        ):
            return False
        theirs = dict(other.values)
        return all(name in theirs and same(theirs[name], value) for name, value in self.values)

    def admits(self, content: Mapping[str, object]) -> bool:
        """Tell whether a message has all fixed values: what is missing has none."""
        return all(same(content.get(name), value) for name, value in self.values)

    def __str__(self) -> str:
        actions = (
            ALL if self.actions == ACTIONS[self.resource] else " | ".join(sorted(self.actions))
        )
        text = f"{self.resource}: {self.name}; action: {actions}"
        fixed = dict(self.values)
        if self.attributes is None and not fixed:
            return text
        named = sorted(fixed if self.attributes is None else self.attributes)
        terms = [ALL] if self.attributes is None else []
        for name in named:
            shown = escape(name, safe=_SAFE)
            terms.append(f"{shown} = {_write(fixed[name])}" if name in fixed else shown)
        return f"{text}; attributes: {' & '.join(terms)}"


def fits(pattern: str, name: str) -> bool:
    """Tell whether a name fits one that may end with `*`."""
    return name.startswith(pattern[:-1]) if pattern.endswith(ALL) else name == pattern


def covers_name(wide: str, narrow: str) -> bool:
    """Tell whether whatever fits one name with `*` fits another."""
    if narrow.endswith(ALL):
        return wide.endswith(ALL) and narrow[:-1].startswith(wide[:-1])
    return fits(wide, narrow)


def same(found: object, value: Value) -> bool:
    """Tell whether a value of a message is a fixed value: 500 is 500.0, and is not true or text."""
    if isinstance(found, bool) or isinstance(value, bool):
        return found is value
    if isinstance(value, str) or isinstance(found, str):
        return isinstance(value, str) and found == value
    return isinstance(found, int | float) and found == value


def parse_grant(text: str) -> Grant:
    """Read a grant; lines may stand for semicolons."""
    if len(text) > TEXT_LIMIT:
        raise UsageError(f"a grant has {len(text)} characters; at most {TEXT_LIMIT} are taken")
    parts: dict[str, str] = {}
    for piece in text.replace("\n", ";").split(";"):
        if not piece.strip():
            continue
        key, colon, value = piece.partition(":")
        key, value = key.strip(), value.strip()
        if not colon or not value or key in parts:
            raise UsageError(f"{quote(piece.strip())} in a grant is not a part of it", fix=_FIX)
        parts[key] = value
    resource: Resource = "network" if "network" in parts else "type"
    name = parts.pop(resource, "")
    strange = set(parts) - ({"action", "attributes"} if resource == "type" else {"action"})
    if not _NAME.fullmatch(name) or strange:
        wrong = next(iter(sorted(strange)), name or text)
        raise UsageError(f"{quote(wrong)} in a grant is not understood", fix=_FIX)
    if "action" not in parts:
        raise UsageError(f"the grant {quote(text)} names no action", fix=_FIX)
    actions = _parse_actions(resource, parts["action"])
    attributes, values = _parse_attributes(parts.get("attributes", ALL))
    return Grant(resource, name, actions, attributes, values)


def _parse_actions(resource: Resource, text: str) -> frozenset[str]:
    if text == ALL:
        return ACTIONS[resource]
    found = frozenset(it.strip() for it in text.split("|"))
    unknown = sorted(found - ACTIONS[resource])
    if unknown:
        raise UsageError(
            f"{quote(unknown[0])} is not an action on a {resource}",
            fix=f"write * or some of {', '.join(sorted(ACTIONS[resource]))}",
        )
    return found


def _parse_attributes(text: str) -> tuple[frozenset[str] | None, tuple[tuple[str, Value], ...]]:
    every = False
    named: set[str] = set()
    values: dict[str, Value] = {}
    for term in text.split("&"):
        shown, equals, value = (it.strip() for it in term.partition("="))
        if shown == ALL and not equals:
            every = True
            continue
        if not _ATTRIBUTE.fullmatch(shown):
            raise UsageError(f"{quote(term.strip())} is not an attribute of a grant", fix=_FIX)
        name = _unescape(shown)
        if name in named:
            raise UsageError(f"the attribute {quote(name)} stands twice in a grant", fix=_FIX)
        named.add(name)
        if equals:
            values[name] = _read(value)
    if len(named) > ATTRIBUTE_LIMIT:
        raise UsageError(f"a grant names {len(named)} attributes; at most {ATTRIBUTE_LIMIT}")
    if every and named != values.keys():
        loose = min(named - values.keys())
        raise UsageError(f"* grants {quote(loose)} already", fix="leave one of the two out")
    return (None if every else frozenset(named)), tuple(sorted(values.items()))


def _unescape(text: str) -> str:
    try:
        name = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        name = ""
    if not name or escape(name, safe=_SAFE) != text:
        raise UsageError(f"{quote(text)} is not escaped as a grant escapes", fix=_FIX)
    return name


def _write(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{escape(value, safe=_SAFE + ' ')}'"
    if isinstance(value, int):
        return str(value)
    # Never with an exponent: 15 digits behind the point read back as the same number.
    text = f"{value:.15f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


def _read(text: str) -> Value:
    if text in {"true", "false"}:
        return text == "true"
    if len(text) > 1 and text[0] == text[-1] == "'":
        inner = text[1:-1]
        found = unquote_to_bytes(inner).decode(errors="replace")
        if escape(found, safe=_SAFE + " ") == inner:
            return found
        # People write text as it is; what would end it or the grant has to be escaped.
        if inner.isprintable() and not set("%'&;=\\\"") & set(inner):
            return inner
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    raise UsageError(
        f"{quote(text)} is not a value of a grant", fix="write a number, true, false, or 'text'"
    )


def narrow(held: Iterable[Grant], wanted: Iterable[Grant]) -> Grant | None:
    """Return the first of the wanted grants that none of those held covers; None: all are."""
    known = tuple(held)
    return next((it for it in wanted if not any(mine.covers(it) for mine in known)), None)

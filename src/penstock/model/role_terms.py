"""How definitions write roles with parameters: `treating-doctor(doctor, "p-17")`.

    term     = name [ "(" [ argument { "," argument } ] ")" ]
    argument = "_" | variable | path | "text" | 'text'
    path     = root "." name { "." name }

Rules that hold here:
- A variable is a word, a path has a dot (`o.patientId`), a constant is quoted; `_` is anything.
- A value is text as it is: nothing in it, be it `/`, `+`, `#` or a quote, is ever read as a part
  of a term, a topic filter or an expression.
- A term without parentheses names the role whatever its parameters are.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from penstock.errors import quote

ARGUMENT_LIMIT: Final = 16
VALUE_LIMIT: Final = 256
ROLE_PREFIX: Final = "role:"

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?", re.ASCII)
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<double>"(?:[^"\\]|\\.)*")|(?P<single>'[^']*')"""
    r"""|(?P<word>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*))\s*""",
    re.ASCII,
)
_EXAMPLE: Final = 'treating-doctor(doctor, "p-17")'


@dataclass(frozen=True, slots=True)
class Variable:
    """A word that stands for a value; `_` stands for any, each time for another."""

    name: str

    @property
    def is_anything(self) -> bool:
        """Whether it is `_`."""
        return self.name == "_"


@dataclass(frozen=True, slots=True)
class Constant:
    """A value as it is written."""

    value: str


@dataclass(frozen=True, slots=True)
class Path:
    """A value that an attribute has, such as `o.patientId`."""

    text: str


Argument = Variable | Constant | Path


@dataclass(frozen=True, slots=True)
class RoleTerm:
    """A name with arguments; None where none are written."""

    name: str
    arguments: tuple[Argument, ...] | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables in it, without `_`, each once."""
        found = [it.name for it in self.arguments or () if isinstance(it, Variable)]
        return tuple(dict.fromkeys(name for name in found if name != "_"))

    @property
    def paths(self) -> tuple[str, ...]:
        """The attributes that it looks at."""
        return tuple(it.text for it in self.arguments or () if isinstance(it, Path))

    @property
    def is_plain(self) -> bool:
        """Whether all arguments are constants or `_`, so that no message has a say in it."""
        return all(
            isinstance(it, Constant) or (isinstance(it, Variable) and it.is_anything)
            for it in self.arguments or ()
        )


def parse_term(text: str) -> RoleTerm:
    """Read a term; a ValueError says what is wrong, with the fix behind an arrow."""
    name, opening, rest = text.partition("(")
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise ValueError(f"{quote(name)} cannot name a role → write one such as {_EXAMPLE}")
    if not opening:
        return RoleTerm(name)
    rest = rest.rstrip()
    if not rest.endswith(")"):
        raise ValueError(f"the parenthesis of {quote(name)} is not closed → write {_EXAMPLE}")
    return RoleTerm(name, tuple(_arguments(name, rest[:-1])))


def _arguments(name: str, text: str) -> list[Argument]:
    if not text.strip():
        return []
    found: list[Argument] = []
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(
                f"argument {len(found) + 1} of {quote(name)} cannot be read → write a word, "
                f"an attribute such as o.patientId, or quoted text, as in {_EXAMPLE}"
            )
        found.append(_argument(match))
        at = match.end()
        if at == len(text):
            break
        if text[at] != ",":
            raise ValueError(f"a comma is missing behind argument {len(found)} of {quote(name)}")
        at += 1
    if len(found) > ARGUMENT_LIMIT:
        raise ValueError(f"{quote(name)} has {len(found)} arguments → at most {ARGUMENT_LIMIT}")
    return found


def _argument(match: re.Match[str]) -> Argument:
    word = match["word"]
    if word is not None:
        return Path(word) if "." in word else Variable(word)
    text = match["single"]
    try:
        value = json.loads(match["double"]) if text is None else text[1:-1]
    except ValueError:
        raise ValueError("a quoted text has an escape that JSON does not know") from None
    check_value(value)
    return Constant(value)


def check_value(value: str) -> str:
    """Refuse what no parameter can be; the value itself is not repeated: it may be personal."""
    if not value or len(value) > VALUE_LIMIT:
        raise ValueError(f"a parameter has 1 to {VALUE_LIMIT} characters")
    if not value.isprintable():
        raise ValueError("a parameter has a character that cannot be printed")
    return value


def parse_subject(text: str) -> RoleTerm | None:
    """Return the role that a subject names, as in `role:nurse`; None where it is no role."""
    if not text.startswith(ROLE_PREFIX):
        return None
    return parse_term(text.removeprefix(ROLE_PREFIX))

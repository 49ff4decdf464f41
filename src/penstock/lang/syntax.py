"""The text of an expression: its tokens, and the tree that the parser builds of them.

The tree is what the text says, before types give it meaning.

Rules that hold here:
- Tokens carry the part of the text they come from; literals carry their value. Nodes are frozen
  and carry their part of the text likewise.
- A string holds Unicode characters only: an escape for half of a surrogate pair is
  refused, because such text has no UTF-8 form and so no meaning in Spark.
- Each pattern reads its input once, whatever the input is.
- `&&` and `||` hold any number of terms, so that a long chain is not a deep tree.
- `depth` counts the nodes from here to the deepest leaf; the parser bounds it, and so
  every later step may recurse.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from penstock.errors import quote
from penstock.lang.errors import MAX_INT, MAX_NUMERAL, MAX_TEXT, FaultError, Span
from penstock.lang.scalars import is_text


class TokenKind(Enum):
    """What a token is."""

    INT = "int"
    DOUBLE = "double"
    STRING = "string"
    NAME = "name"
    SIGN = "sign"
    END = "end"


class Token(NamedTuple):
    """A word of the text: what it is, its value (or its own text), and where it stands."""

    kind: TokenKind
    value: int | float | str
    span: Span


_SPACE: Final = re.compile(r"(?:[ \t\r\n]|//[^\n]*)*")
_WORD: Final = re.compile(
    r"(?P<string>[rR]?[\"'])"
    r"|(?P<hex>0[xX][0-9a-fA-F]+)"
    r"|(?P<double>[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+))"
    r"|(?P<int>[0-9]+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])"
)
_PLAIN: Final = {quote_: re.compile(rf"[^\\\n{quote_}]*") for quote_ in "\"'"}
_RAW: Final = {quote_: re.compile(rf"[^\n{quote_}]*") for quote_ in "\"'"}
_ESCAPES: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "\\": "\\",
    '"': '"',
    "'": "'",
}
_HEX_ESCAPES: Final = {"x": 2, "u": 4, "U": 8}
_MISTAKES: Final = {
    "=": "write == to compare",
    "&": "write && for 'and'",
    "|": "write || for 'or'",
    "“": 'write strings between straight quotes: "…"',
    "”": 'write strings between straight quotes: "…"',
    "\u2018": "write strings between straight quotes: '…'",
    "\u2019": "write strings between straight quotes: '…'",
    "≤": "write <=",
    "≥": "write >=",
    "≠": "write !=",
    "∈": "write in",
    "\u2227": "write &&",
    "\u2228": "write ||",
    "¬": "write !",
}


def split_tokens(text: str) -> list[Token]:
    """Return the tokens of a text, with one of kind END after the last."""
    if len(text) > MAX_TEXT:
        raise FaultError(
            Span(MAX_TEXT, MAX_TEXT + 1),
            f"the expression has {len(text)} characters, at most {MAX_TEXT} are allowed",
            "split it into several policies, or put long lists into attributes",
        )
    tokens = []
    at = _skip_space(text, 0)
    while at < len(text):
        token = _read(text, at)
        tokens.append(token)
        at = _skip_space(text, token.span.end)
    tokens.append(Token(TokenKind.END, "", Span(len(text), len(text) + 1)))
    return tokens


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _read(text: str, at: int) -> Token:
    match = _WORD.match(text, at)
    if match is None:
        raise FaultError(
            Span(at, at + 1), f"unexpected character {quote(text[at])}", _MISTAKES.get(text[at])
        )
    span = Span(*match.span())
    word = match[0]
    if match["string"]:
        return _read_string(text, span)
    if match["name"]:
        return Token(TokenKind.NAME, word, span)
    if match["sign"]:
        return Token(TokenKind.SIGN, word, span)
    return _read_number(text, span, hexadecimal=bool(match["hex"]), double=bool(match["double"]))


def _read_number(text: str, span: Span, *, hexadecimal: bool, double: bool) -> Token:
    word = text[span.start : span.end]
    following = text[span.end : span.end + 1]
    if following.isalnum() or following == "_":
        raise FaultError(
            Span(span.start, span.end + 1),
            f"a number cannot be followed by {quote(following)}",
            "there are no suffixes; write 1.5 or 1e3 for doubles, 12 or 0xFF for ints",
        )
    if len(word) > MAX_NUMERAL:
        raise FaultError(span, f"a number has at most {MAX_NUMERAL} characters")
    if double:
        value = float(word)
        if not math.isfinite(value):
            raise FaultError(span, f"{word} is beyond the range of double")
        return Token(TokenKind.DOUBLE, value, span)
    number = int(word, 16 if hexadecimal else 10)
    # One more than the largest int is let through: `-9223372036854775808` is an int.
    # The parser refuses it where no minus stands before it.
    if number > MAX_INT + 1:
        raise FaultError(span, f"{word} is beyond the range of int (64 bits)")
    return Token(TokenKind.INT, number, span)


def _read_string(text: str, opening: Span) -> Token:
    mark = text[opening.end - 1]
    raw = opening.end - opening.start > 1
    plain = (_RAW if raw else _PLAIN)[mark]
    parts = []
    at = opening.end
    while True:
        match = plain.match(text, at)
        if match:
            parts.append(match[0])
            at = match.end()
        if text[at : at + 1] == mark:
            break
        if text[at : at + 1] != "\\":
            raise FaultError(
                Span(opening.start, at),
                "the string does not end on its line",
                f"close it with {mark}",
            )
        character, at = _read_escape(text, at)
        parts.append(character)
    value = "".join(parts)
    span = Span(opening.start, at + 1)
    if not is_text(value):
        raise FaultError(
            span, "the string holds half of a surrogate pair, which is not a character"
        )
    return Token(TokenKind.STRING, value, span)


def _read_escape(text: str, at: int) -> tuple[str, int]:
    letter = text[at + 1 : at + 2]
    if letter in _ESCAPES and letter:
        return _ESCAPES[letter], at + 2
    digits = _HEX_ESCAPES.get(letter)
    if digits is None:
        raise FaultError(
            Span(at, at + 2),
            f"unknown escape {quote(text[at : at + 2])}",
            r"""escapes are \n \t \r \\ \" \' \xHH \uHHHH \UHHHHHHHH; r"…" takes \ as it is""",
        )
    end = at + 2 + digits
    code = text[at + 2 : end]
    if not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", code):
        raise FaultError(
            Span(at, min(end, len(text))), f"\\{letter} is followed by {digits} hexadecimal digits"
        )
    number = int(code, 16)
    if number > sys.maxunicode or not is_text(chr(number)):
        raise FaultError(
            Span(at, end),
            f"{text[at:end]} is not a character",
            r"write a character beyond \uFFFF as one escape, such as \U0001F600",
        )
    return chr(number), end


@dataclass(frozen=True, slots=True)
class Literal:
    """A bool, int, double or string as written."""

    span: Span
    value: bool | int | float | str
    depth: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    """A root or a variable."""

    span: Span
    name: str
    depth: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class Select:
    """A field: `operand.name`; `name_span` is the name alone."""

    span: Span
    operand: Node
    name: str
    name_span: Span
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Index:
    """An element: `operand[index]`."""

    span: Span
    operand: Node
    index: Node
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A function `name(arguments)`, or a method `target.name(arguments)`."""

    span: Span
    target: Node | None
    name: str
    name_span: Span
    arguments: tuple[Node, ...]
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Unary:
    """`!operand` or `-operand`."""

    span: Span
    sign: str
    operand: Node
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Binary:
    """`left sign right`: a comparison, `in`, or arithmetic; `sign_span` is the sign alone."""

    span: Span
    sign: str
    sign_span: Span
    left: Node
    right: Node
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Logic:
    """`a && b && …` or `a || b || …`."""

    span: Span
    sign: str
    terms: tuple[Node, ...]
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """`condition ? yes : no`."""

    span: Span
    condition: Node
    yes: Node
    no: Node
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class ListLiteral:
    """`[a, b, …]`."""

    span: Span
    items: tuple[Node, ...]
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class MapLiteral:
    """`{"key": value, …}`."""

    span: Span
    entries: tuple[tuple[Node, Node], ...]
    depth: int = field(compare=False)


Node: TypeAlias = (
    Literal
    | Name
    | Select
    | Index
    | Call
    | Unary
    | Binary
    | Logic
    | Choice
    | ListLiteral
    | MapLiteral
)

"""Kafka's wire protocol, as far as we speak it: primitive types and ACL bindings.

Rules that hold here:
- We speak flexible versions: lengths of strings and arrays are unsigned varints plus one, 0
  means null; structures end with tagged fields.
- Resource types, pattern types, operations and permissions travel as numbers. A number that
  is newer than this code has a word, too (`kind 15`), so that an ACL that somebody else made
  can be shown and deleted whatever it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from penstock.errors import UnavailableError
from penstock.kafka.acls import Acl

NO_TAGS = b"\0"
NOTHING = b"\0"
_MORE = 0x80
ANY = 1
_UNKNOWN = "kind "
_RESOURCES = {
    2: "topic", 3: "group", 4: "cluster", 5: "transactional_id", 6: "delegation_token", 7: "user",
}  # fmt: skip
_PATTERNS = {3: "literal", 4: "prefixed"}
_PERMISSIONS = {2: "deny", 3: "allow"}
_OPERATIONS = {
    2: "all", 3: "read", 4: "write", 5: "create", 6: "delete", 7: "alter", 8: "describe",
    9: "cluster_action", 10: "describe_configs", 11: "alter_configs", 12: "idempotent_write",
    13: "create_tokens", 14: "describe_tokens", 15: "two_phase_commit",
}  # fmt: skip
_NUMBERS = {  # no word is in two of them
    word: number
    for words in (_RESOURCES, _PATTERNS, _PERMISSIONS, _OPERATIONS)
    for number, word in words.items()
}


class ResponseReader:
    """Reads a response field by field."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """Read bytes."""
        found = self._data[self._at : self._at + size]
        if size < 0 or len(found) != size:
            raise UnavailableError(
                "Kafka broke off in the middle of an answer", fix="see the broker's log"
            )
        self._at += size
        return found

    def byte(self) -> int:
        """Read a number of one byte."""
        return int(struct.unpack(">b", self.take(1))[0])

    def short(self) -> int:
        """Read a number of two bytes."""
        return int(struct.unpack(">h", self.take(2))[0])

    def long(self) -> int:
        """Read a number of four bytes."""
        return int(struct.unpack(">i", self.take(4))[0])

    def size(self) -> int:
        """Read the length of what follows, plus one; 0 means that there is nothing."""
        found = shift = 0
        while True:
            (byte,) = self.take(1)
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < _MORE:
                return found

    def text(self) -> str:
        """Read a text; none is an empty one."""
        length = self.size()
        return self.take(length - 1).decode() if length else ""

    def count(self) -> int:
        """Read how many items follow."""
        return max(0, self.size() - 1)

    def skip_tags(self) -> None:
        """Skip tagged fields: what newer brokers may add."""
        for _ in range(self.size()):
            self.size()
            self.take(self.size())


def write_list(items: Iterable[bytes]) -> bytes:
    """Write a list."""
    found = list(items)
    return _varint(len(found) + 1) + b"".join(found)


def write_text(text: str) -> bytes:
    """Write a text."""
    return write_bytes(text.encode())


def write_bytes(data: bytes) -> bytes:
    """Write bytes."""
    return _varint(len(data) + 1) + data


def write_byte(value: int) -> bytes:
    """Write a number of one byte."""
    return struct.pack(">b", value)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= _MORE:
        found.append(value & 0x7F | _MORE)
        value >>= 7
    found.append(value)
    return bytes(found)


def read_resource(response: ResponseReader) -> tuple[str, str, str]:
    """Read the resource of ACLs: its type, its name, the pattern type."""
    resource, name, pattern = response.byte(), response.text(), response.byte()
    return _word(_RESOURCES, resource), name, _word(_PATTERNS, pattern)


def read_entry(response: ResponseReader, about: tuple[str, str, str]) -> tuple[str, Acl]:
    """Read a principal and its ACL on a resource."""
    principal, host = response.text(), response.text()
    operation, permission = response.byte(), response.byte()
    response.skip_tags()
    resource, name, pattern = about
    words = _word(_OPERATIONS, operation), _word(_PERMISSIONS, permission)
    return principal, Acl(resource, pattern, name, *words, host)


def write_acl(principal: str | None, acl: Acl) -> bytes:
    """Write an ACL to create, or the filter that matches it; no principal matches any."""
    return b"".join(
        (
            write_byte(_number(acl.resource)),
            write_text(acl.name),
            write_byte(_number(acl.pattern)),
            NOTHING if principal is None else write_text(principal),
            write_text(acl.host),
            write_byte(_number(acl.operation)),
            write_byte(_number(acl.permission)),
            NO_TAGS,
        )
    )


def write_any(principal: str | None) -> bytes:
    """Write the filter that matches all ACLs, or all of one principal."""
    any_ = write_byte(ANY)
    who = NOTHING if principal is None else write_text(principal)
    return b"".join((any_, NOTHING, any_, who, NOTHING, any_, any_))


def _word(words: Mapping[int, str], number: int) -> str:
    return words.get(number, f"{_UNKNOWN}{number}")


def _number(word: str) -> int:
    return int(word.removeprefix(_UNKNOWN)) if word.startswith(_UNKNOWN) else _NUMBERS[word]

"""Rules as Kafka's messages carry them.

Kinds, patterns, operations and permissions travel as numbers. A number that is newer than
this code has a word, too (`kind 15`), so that a rule that somebody else made can be shown
and removed whatever it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.kafka.frames import NO_TAGS, NOTHING, Answer, write_byte, write_text
from penstock.kafka.rules import Rule

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


def read_resource(answer: Answer) -> tuple[str, str, str]:
    """Read what rules are about: the kind of resource, its name, the pattern."""
    resource, name, pattern = answer.byte(), answer.text(), answer.byte()
    return _word(_RESOURCES, resource), name, _word(_PATTERNS, pattern)


def read_entry(answer: Answer, about: tuple[str, str, str]) -> tuple[str, Rule]:
    """Read a principal and its rule about a resource."""
    principal, host = answer.text(), answer.text()
    operation, permission = answer.byte(), answer.byte()
    answer.skip_tags()
    resource, name, pattern = about
    words = _word(_OPERATIONS, operation), _word(_PERMISSIONS, permission)
    return principal, Rule(resource, pattern, name, *words, host)


def write_rule(principal: str | None, rule: Rule) -> bytes:
    """Write a rule, to put it or to name it; without a principal it names that of anyone."""
    return b"".join(
        (
            write_byte(_number(_RESOURCES, rule.resource)),
            write_text(rule.name),
            write_byte(_number(_PATTERNS, rule.pattern)),
            NOTHING if principal is None else write_text(principal),
            write_text(rule.host),
            write_byte(_number(_OPERATIONS, rule.operation)),
            write_byte(_number(_PERMISSIONS, rule.permission)),
            NO_TAGS,
        )
    )


def write_any(principal: str | None) -> bytes:
    """Write what names all rules, or all of one principal."""
    any_ = write_byte(ANY)
    who = NOTHING if principal is None else write_text(principal)
    return b"".join((any_, NOTHING, any_, who, NOTHING, any_, any_))


def _word(words: Mapping[int, str], number: int) -> str:
    return words.get(number, f"{_UNKNOWN}{number}")


def _number(words: Mapping[int, str], word: str) -> int:
    if word.startswith(_UNKNOWN):
        return int(word.removeprefix(_UNKNOWN))
    return next(number for number, known in words.items() if known == word)

"""Reads YAML into plain data that remembers where each value stood, and writes it.

Rules that hold here:
- Data only: no tag makes an object, no key appears twice, no key is anything but text.
- What a word means does not depend on the reader's country: `true` and `false` are
  truth values, `no` and `on` are text, and nothing is a date (YAML 1.2, core schema).
- Size, depth and the number of values after aliases are expanded are limited, so that
  a hostile file costs milliseconds, not memory.
- Every problem has a place; those that allow reading on are collected.
- What is written is read back as it was: texts that look like numbers, `04008`, stand in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import InvalidError, Problem, quote


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a file is read before it is refused."""

    size: int = 256 * 1024
    depth: int = 16
    values: int = 10_000


ALIAS_ALLOWANCE = 1_000
ALIAS_FACTOR = 10

Steps = tuple[str | int, ...]
"""The way from the root to a value: keys and list positions."""


def dotted(path: Steps) -> str:
    """Write a way as people do: `gateway.listeners.mqtt.port`."""
    return ".".join(str(step) for step in path)


@dataclass(slots=True)
class Source:
    """The data of a file, and where each of its keys and values stands."""

    name: str
    file: Path | None = None
    data: Any = None
    problems: dict[Steps, Problem] = field(default_factory=dict)
    keys: dict[Steps, str] = field(default_factory=dict)
    values: dict[Steps, str] = field(default_factory=dict)

    def place(self, path: Steps, *, key: bool = False) -> str:
        """Say where the value (or the key) at `path` stands, or the nearest around it."""
        around = path
        if not path:
            return self.values.get((), self.name)
        while around:
            where = (self.keys if key or around != path else self.values).get(around)
            if where:
                return f"{where} ({dotted(path)})"
            around = around[:-1]
        return f"{self.values.get((), self.name)} ({dotted(path)})"


class _TooDeepError(yaml.MarkedYAMLError):
    """The nesting is deeper than the limit."""


class _Loader(yaml.SafeLoader):
    """Composes nodes of the YAML 1.2 core schema, to a limited depth."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - PyYAML's own attribute

    def __init__(self, text: str, depth_limit: int) -> None:
        super().__init__(text)
        self.depth = 0
        self.depth_limit = depth_limit

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.depth == self.depth_limit:
            raise _TooDeepError(
                problem=f"more than {self.depth_limit} levels", problem_mark=self.get_mark()
            )
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Dumper(yaml.SafeDumper):
    """Writes texts in quotes where they would be read as something else."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    special = any(pattern.match(text) for pattern in _SPECIAL)
    style = "'" if special else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def write_document(data: Any) -> str:
    """Write data as YAML."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


_SPECIAL: list[re.Pattern[str]] = []
"""Texts that are not read as text."""
_PLAIN = "tag:yaml.org,2002:"
for _kind, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]{1,18}", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:[0-9]{1,18}\.?|[0-9]{0,18}\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,3})?",
        list("-+.0123456789"),
    ),
):
    _SPECIAL.append(re.compile(rf"(?:{_pattern})\Z"))
    _Loader.add_implicit_resolver(_PLAIN + _kind, _SPECIAL[-1], _first)


def read_documents(content: bytes, name: str, limits: Limits) -> list[Source]:
    """Read the YAML documents of one text; raise `InvalidError` where it cannot be read."""
    text = _decode(content, name, limits)
    try:
        nodes = list(_nodes(_Loader(text, limits.depth)))
    except yaml.MarkedYAMLError as error:
        where = _place(name, error.problem_mark) if error.problem_mark else name
        context = f" {error.context}" if error.context else ""
        raise _refused(
            name, where, f"this is not YAML: {error.problem}{context}", "mend the line"
        ) from None
    except yaml.YAMLError as error:
        raise _refused(
            name, name, f"this is not YAML: {str(error).splitlines()[0]}", "remove the character"
        ) from None
    # Without aliases a value takes a byte at least: what is far beyond that is a trick.
    values = min(limits.values, ALIAS_ALLOWANCE + ALIAS_FACTOR * len(content))
    reader = _Reader(name, replace(limits, values=values))
    return [reader.document(node) for node in nodes]


def _decode(content: bytes, name: str, limits: Limits) -> str:
    if len(content) > limits.size:
        raise _refused(
            name,
            name,
            f"the file is over {limits.size} bytes",
            "split it, or leave out what is idle",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refused(
            name, f"{name}:{line}:1", "the text is not UTF-8", "save the file as UTF-8"
        ) from None


def _nodes(loader: _Loader) -> Iterator[yaml.Node]:
    while loader.check_node():
        node = loader.get_node()
        if node is not None:
            yield node


class _Reader:
    """Turns composed nodes into plain data, noting places and problems in the source."""

    def __init__(self, name: str, limits: Limits) -> None:
        self.name = name
        self.limits = limits
        self.source = Source(name)
        self.count = 0

    def document(self, node: yaml.Node) -> Source:
        self.source = source = Source(self.name)
        source.data = self.read(node, ())
        return source

    def read(self, node: yaml.Node, path: Steps) -> Any:
        where = _place(self.name, node.start_mark)
        self.source.values[path] = where
        self.count += 1
        # An alias is the same node again: recursion and expansion both end here.
        if self.count > self.limits.values or len(path) > self.limits.depth:
            raise _refused(
                self.name,
                where,
                f"more than {self.limits.values} values or {self.limits.depth} levels, "
                "aliases expanded",
                "write fewer values, without anchors and aliases",
            )
        if isinstance(node, yaml.MappingNode) and node.tag == _PLAIN + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _PLAIN + "seq":
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            try:
                return _SCALARS[node.tag](node.value)
            except ValueError:
                self._note(where, path, f"{quote(node.value)} is not what it claims to be")
                return None
        self._note(where, path, f"the tag {quote(node.tag)} is not known here")
        return None

    def _mapping(self, node: yaml.MappingNode, path: Steps) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key, value in node.value:
            where = _place(self.name, key.start_mark)
            try:
                word = _text(key.value)
            except ValueError:
                self._note(where, (*path, "?"), "a key must be a word")
                continue
            steps = (*path, word)
            if word in data:
                first = self.source.keys[steps]
                self.source.problems[steps] = Problem(
                    f"{where} ({dotted(steps)})",
                    f"the key {quote(word)} stands here a second time, first at {first}",
                    "keep one of the two",
                )
                continue
            self.source.keys[steps] = where
            data[word] = self.read(value, steps)
        return data

    def _note(self, where: str, path: Steps, message: str) -> None:
        shown = f"{where} ({dotted(path)})" if path else where
        self.source.problems[path] = Problem(shown, message, "write a plain value")


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(text)
    return text.lower() == "true"


def _text(value: Any) -> str:
    """Return text that can be written anywhere: whole characters, and no NUL."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(value)
    # JSON writes a character beyond the basic plane as two escapes; YAML leaves them apart.
    return value.encode("utf-16", "surrogatepass").decode("utf-16")


_SCALARS: dict[str, Callable[[str], Any]] = {
    _PLAIN + "null": lambda _: None,
    _PLAIN + "bool": _boolean,
    _PLAIN + "int": int,
    _PLAIN + "float": float,
    _PLAIN + "str": _text,
}


def _place(name: str, mark: yaml.Mark) -> str:
    return f"{name}:{mark.line + 1}:{mark.column + 1}"


def _refused(name: str, place: str, message: str, fix: str) -> InvalidError:
    return InvalidError(name, [Problem(place, message, fix)])

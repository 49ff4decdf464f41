"""Writes a commented penstock.yaml: every setting, its default, its meaning.

The text is made from the models; a test loads it and compares it with the defaults.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from penstock.config.catalogue import Setting, keys_at
from penstock.config.root import Config
from penstock.yaml_text import Steps

WIDTH = 90
INDENT = "  "

HEAD = """\
# The settings of one installation of Penstock.
#
# Each setting stands here with its default; a line that you remove keeps its default.
# Environment variables go before this file: PENSTOCK_STORE__URL sets store.url.
# Relative paths start at the data folder, and the data folder at the folder of this file.
# Durations are written 250ms, 5s, 2m, 1h; sizes 512B, 64KiB, 1MiB.
# Secrets never stand here: write {file: PATH} (a file of mode 0600) or {env: NAME}.
# `penstock doctor` checks it all, and what it needs.
"""


def write_template() -> str:
    """Return the text of a penstock.yaml with the defaults."""
    return HEAD + "\n".join(_lines((), "")) + "\n"


def _lines(path: Steps, indent: str) -> Iterator[str]:
    for count, setting in enumerate((keys_at(Config, path) or {}).values()):
        if not path or (count and setting.plural):
            yield ""
        yield from _comment(setting, indent)
        key = f"{indent}{setting.path[-1]}:"
        if setting.group is not None:
            yield key
            yield from _lines(setting.path, indent + INDENT)
        elif setting.named_group is not None:
            yield key
            for name in setting.default:
                yield f"{indent}{INDENT}{name}:"
                yield from _lines((*setting.path, name), indent + 2 * INDENT)
        else:
            yield f"{key} {show(setting.default)}"


def _comment(setting: Setting, indent: str) -> Iterator[str]:
    allowed = setting.kind if setting.choices else setting.bounds
    text = setting.description + (f" ({allowed})" if allowed else "")
    mark = f"{indent}# "
    yield from textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=mark)
    if setting.field.examples:
        yield f"{mark}For example: {' or '.join(setting.field.examples)}"


def show(value: Any) -> str:
    """Write a default as YAML; defaults are plain words, numbers and lists of these."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case tuple():
            return "[" + ", ".join(show(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{key}: {show(item)}" for key, item in value.items()) + "}"
    return str(value)

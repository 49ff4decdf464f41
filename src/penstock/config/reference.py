"""Writes what follows from the models: a commented penstock.yaml, and the reference in Markdown.

A test loads the template and compares it with the defaults.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from penstock.config.catalogue import ANY_NAME, Setting, keys_at
from penstock.config.root import Config
from penstock.yaml_text import Steps, dotted

WIDTH = 90
INDENT = "  "

HEAD = """\
# The settings of one installation of Penstock.
#
# Each setting stands here with its default, or with what suits a new installation. A line
# that you remove has its default.
# Environment variables go before this file: PENSTOCK_STORE__URL sets store.url.
# Relative paths start at the data folder, and the data folder at the folder of this file.
# Durations are written 250ms, 5s, 2m, 1h; sizes 512B, 64KiB, 1MiB.
# Secrets never stand here: write {file: PATH} (a file of mode 0600) or {env: NAME}.
# `penstock doctor` checks it all, and what it needs.
"""


def write_template() -> str:
    """Return the text of a penstock.yaml with the defaults."""
    return HEAD + "\n".join(_template_lines((), "")) + "\n"


def _template_lines(path: Steps, indent: str) -> Iterator[str]:
    for count, setting in enumerate((keys_at(Config, path) or {}).values()):
        if not path or (count and setting.plural):
            yield ""
        yield from _comment(setting, indent)
        key = f"{indent}{setting.path[-1]}:"
        if setting.group is not None:
            yield key
            yield from _template_lines(setting.path, indent + INDENT)
        elif setting.named_group is not None:
            yield key
            for name in setting.default:
                yield f"{indent}{INDENT}{name}:"
                yield from _template_lines((*setting.path, name), indent + 2 * INDENT)
        else:
            yield f"{key} {show(setting.initial)}"


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


def write_reference() -> str:
    """Return one table per group: each setting, its values, its default, its meaning."""
    return "\n".join(_tables((), Config.__doc__ or ""))


def _tables(path: Steps, text: str) -> Iterator[str]:
    settings = list((keys_at(Config, path) or {}).values())
    yield f"## {f'`{dotted(path)}`' if path else 'Top level'}\n"
    yield f"{text}\n"
    rows = [_row(setting) for setting in settings if setting.group is None]
    if rows:
        yield "| Setting | Value | Default | Meaning |"
        yield "| --- | --- | --- | --- |"
        yield from rows
        yield ""
    for setting in settings:
        if setting.group is not None:
            yield from _tables(setting.path, setting.description)
        elif setting.named_group is not None:
            yield from _tables((*setting.path, ANY_NAME), setting.named_group.__doc__ or "")


def _row(setting: Setting) -> str:
    value = setting.kind + (f" ({setting.bounds})" if setting.bounds else "")
    default = "" if setting.default is None else f"`{show(setting.default)}`"
    meaning = f"{setting.description}<br>`{setting.variable}`"
    return f"| `{setting.path[-1]}` | {value} | {default} | {meaning} |"

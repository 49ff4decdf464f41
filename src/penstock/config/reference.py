"""Writes the reference of the settings in Markdown, from the models."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config.catalogue import ANY_NAME, Setting, keys_at
from penstock.config.root import Config
from penstock.config.template import show
from penstock.yaml_text import Steps, dotted


def write_reference() -> str:
    """Return one table per group: each setting, its values, its default, its meaning."""
    return "\n".join(_group((), Config.__doc__ or ""))


def _group(path: Steps, text: str) -> Iterator[str]:
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
            yield from _group(setting.path, setting.description)
        elif setting.named_group is not None:
            yield from _group((*setting.path, ANY_NAME), setting.named_group.__doc__ or "")


def _row(setting: Setting) -> str:
    value = setting.kind + (f" ({setting.bounds})" if setting.bounds else "")
    default = "" if setting.default is None else f"`{show(setting.default)}`"
    meaning = f"{setting.description}<br>`{setting.variable}`"
    return f"| `{setting.path[-1]}` | {value} | {default} | {meaning} |"

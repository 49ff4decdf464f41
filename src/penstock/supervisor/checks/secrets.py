"""Secrets: whether each can be read, and by its owner alone. None is shown."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config import Config, KeyFile
from penstock.errors import UnavailableError
from penstock.supervisor.checks.finding import Finding, Verdict
from penstock.supervisor.part import Part
from penstock.yaml_text import dotted


def look(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Look at every secret that the settings name."""
    del parts
    for path, secret in config.secrets():
        name = dotted(path)
        if isinstance(secret, KeyFile) and not secret.path.exists():
            detail = f"{secret.path} (made at the first use)"
            yield Finding("secrets", name, Verdict.OK, detail)
            continue
        try:
            secret.read()
        except UnavailableError as error:
            yield Finding("secrets", name, Verdict.WRONG, error.message, error.fix)
        else:
            yield Finding("secrets", name, Verdict.OK, str(secret))

"""Durations and sizes as people write them: `250ms`, `5s`, `64KiB`.

A plain number is seconds, or bytes.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from penstock.config.settings import Kind, wrong
from penstock.errors import quote

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

# Digits are bounded so that no text from outside costs more than a glance.
_DURATION = re.compile(rf"([0-9]{{1,12}}(?:\.[0-9]{{1,9}})?)\s?({'|'.join(SECONDS)})?", re.ASCII)
_SIZE = re.compile(rf"([0-9]{{1,12}})\s?({'|'.join(BYTES)})?", re.ASCII)


def parse_duration(value: Any) -> float:
    """Return the seconds that `value` means."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value >= 0 and math.isfinite(value):
            return float(value)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match[1]) * SECONDS[match[2] or "s"]
    raise wrong(
        f"{quote(value)} is not a duration",
        f"write a number with a unit ({', '.join(SECONDS)}), such as 5s",
    )


def parse_size(value: Any) -> int:
    """Return the bytes that `value` means."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value >= 0:
            return value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        return int(match[1]) * BYTES[match[2] or "B"]
    raise wrong(
        f"{quote(value)} is not a size",
        f"write a whole number with a unit ({', '.join(BYTES)}), such as 64KiB",
    )


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": ["string", "number"]}),
    Kind("a duration"),
]
"""Seconds, written as `5s`."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": ["string", "integer"]}),
    Kind("a size"),
]
"""Bytes, written as `64KiB`."""

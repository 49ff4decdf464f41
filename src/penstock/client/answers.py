"""What the gateway answers to questions about reservations, read into plain values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Purposes:
    """Allowed and prohibited intended purposes, each in alphabetical order."""

    allowed: tuple[str, ...] = ()
    prohibited: tuple[str, ...] = ()


def read_combined(payload: bytes) -> Purposes | None:
    """Read the effective purposes of a topic; None where it is not reserved."""
    return _purposes(json.loads(payload)["purposes"])


def read_affected(payload: bytes) -> dict[str, Purposes]:
    """Read the reservations that apply to topics of a filter."""
    listed = json.loads(payload)["reservations"]
    return {filter_: _purposes(given) or Purposes() for filter_, given in listed.items()}


def read_text(payload: bytes) -> str:
    """Read a drawing."""
    return payload.decode()


def _purposes(given: Any) -> Purposes | None:
    if given is None:
        return None
    return Purposes(tuple(given["allow"]), tuple(given["prohibit"]))

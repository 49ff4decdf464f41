"""The loggers that modules have.

    log = get_logger("gateway")
    log.info("listening", port=1883)
    log.warning("broker lost", error=error, attempt=3)

Rules that hold here:
- A logger costs nothing until it says something: `logs`, with structlog and the metrics, is
  loaded with the first line. Most command lines say none.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


def get_logger(part: str) -> FilteringBoundLogger:
    """Return the logger of a part of Penstock; the rules hold even before `configure`."""
    return cast("FilteringBoundLogger", _Logger(part))


class _Logger:
    """A logger that is made when it is first used."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(_make(self._part), name)


@functools.cache
def _make(part: str) -> FilteringBoundLogger:
    from penstock.telemetry.logs import make_logger  # noqa: PLC0415 - see the rules above

    return make_logger(part)

"""The loggers that modules have, and whose errors may be quoted.

    log = get_logger("gateway")
    log.info("listening", port=1883)
    log.warning("broker lost", error=error, attempt=3)

Rules that hold here:
- A logger costs nothing until it says something: `logs`, with structlog and the metrics, is
  loaded with the first line. Most command lines say none.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.errors import PenstockError, UnavailableError

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_safe: set[type[BaseException]] = {UnavailableError}
Failure = TypeVar("Failure", bound=type[PenstockError])


def safe_text(cls: Failure) -> Failure:
    """Declare, as a decorator, that the texts of this class never quote what people sent.

    It holds for this class alone; a subclass says it again.
    """
    _safe.add(cls)
    return cls


def is_safe(cls: type[BaseException]) -> bool:
    """Tell whether the texts of this class were declared safe."""
    return cls in _safe


def get_logger(part: str) -> FilteringBoundLogger:
    """Return the logger of a part of Penstock; the rules hold even before `configure`."""
    return cast("FilteringBoundLogger", _Logger(part))


class _Logger:
    """A logger that is made when it is first used."""

    __slots__ = ("_part",)

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

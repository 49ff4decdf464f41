"""The loggers that modules have, and what Python calls for errors that nobody caught.

    log = get_logger("gateway")
    log.info("listening", port=1883)
    log.warning("broker lost", error=error, attempt=3)

Rules that hold here:
- A logger costs nothing until it says something: `logs`, with structlog and the metrics, is
  loaded with the first line. Most command lines say none.
- By itself Python prints uncaught errors with their text, which may quote what people sent; the
  hooks log them instead. They stand here because `redaction` admits the literals of whoever
  logs, and not those of `logs`.
"""

from __future__ import annotations

import functools
import sys
import threading
from types import TracebackType
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


def install_hooks() -> None:
    """Log errors that nobody caught, instead of Python's printing them with their text."""
    log = get_logger("process")

    def on_main(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            log.critical("uncaught error", error=error)

    def on_thread(args: threading.ExceptHookArgs) -> None:
        log.critical("uncaught error in a thread", error=args.exc_value)

    def on_unraisable(args: sys.UnraisableHookArgs) -> None:
        log.error("error that could not be raised", error=args.exc_value)

    sys.excepthook = on_main
    threading.excepthook = on_thread
    sys.unraisablehook = on_unraisable

"""What Python calls for errors that nobody caught.

By itself Python prints them with their text, which may quote what people sent. A module of
its own: `redaction` admits the literals of whoever logs, and not those of `logs` and `loggers`.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from penstock.telemetry.loggers import get_logger


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

"""Logs with an allow-list of fields, metrics with closed labels, health and readiness.

from penstock.telemetry import Endpoint, Health, configure, counter, get_logger

Python prints errors that nobody caught with their text, which may quote what people sent:
`install_hooks` logs them instead.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.lazy_exports import lazy_exports
from penstock.telemetry.loggers import get_logger

if TYPE_CHECKING:
    from penstock.telemetry.endpoint import Endpoint
    from penstock.telemetry.health import Health, HealthReport
    from penstock.telemetry.logs import configure
    from penstock.telemetry.metrics import counter, gauge, histogram
    from penstock.telemetry.redaction import Shape, allow, safe_text
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "endpoint": ("Endpoint",),
            "health": ("Health", "HealthReport"),
            "logs": ("configure",),
            "metrics": ("counter", "gauge", "histogram"),
            "redaction": ("Shape", "allow", "safe_text"),
        },
    )

__all__ = [
    "Endpoint",
    "Health",
    "HealthReport",
    "Shape",
    "allow",
    "configure",
    "counter",
    "gauge",
    "get_logger",
    "histogram",
    "install_hooks",
    "safe_text",
]


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

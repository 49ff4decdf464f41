"""Logs with an allow-list of fields, metrics with closed labels, health and readiness.

from penstock.telemetry import Endpoint, Health, configure, counter, get_logger
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.telemetry.endpoint import Endpoint
    from penstock.telemetry.health import Health, HealthReport
    from penstock.telemetry.hooks import install_hooks
    from penstock.telemetry.loggers import get_logger
    from penstock.telemetry.logs import configure
    from penstock.telemetry.metrics import counter, gauge, histogram
    from penstock.telemetry.redaction import Shape, allow, safe_text
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "endpoint": ("Endpoint",),
            "health": ("Health", "HealthReport"),
            "hooks": ("install_hooks",),
            "loggers": ("get_logger",),
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

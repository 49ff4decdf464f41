"""Logs with an allow-list of fields, metrics with closed labels, health and readiness.

from penstock.telemetry import Endpoint, Health, configure, counter, get_logger
"""

from penstock.telemetry.endpoint import Endpoint
from penstock.telemetry.health import Health, HealthReport
from penstock.telemetry.hooks import install_hooks
from penstock.telemetry.logs import configure, get_logger, safe_text
from penstock.telemetry.metrics import counter, gauge, histogram
from penstock.telemetry.redaction import Shape, allow

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

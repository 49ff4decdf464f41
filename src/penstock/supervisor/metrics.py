"""What the supervisor counts."""

from penstock.supervisor.parts import known_parts
from penstock.telemetry import counter, gauge

PART_UP = gauge("penstock_part_up", "Whether a part runs and was ready.", part=known_parts())
PART_RESTARTS = counter(
    "penstock_part_restarts", "How often a part was started again.", part=known_parts()
)

"""Requirements files of others: one stream and its anonymized versions in one JSON document."""

from penstock.pipeline.requirements.reader import (
    LIMITS,
    Requirements,
    check_owners,
    read_requirements,
)

__all__ = ["LIMITS", "Requirements", "check_owners", "read_requirements"]

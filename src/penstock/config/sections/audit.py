"""`audit`: the tamper-evident log of decisions and changes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.config.quantities import Duration
from penstock.config.secrets import KeyFile
from penstock.config.settings import Settings, setting


class AuditSettings(Settings):
    """The keys and the batches of the audit log."""

    signing_key: KeyFile = setting(
        "keys/audit-signing.key",
        "The file of the key that signs the heads of the log; created if missing.",
    )
    pseudonym_key: KeyFile = setting(
        "keys/pseudonym.key",
        "The file of the key that turns people into pseudonyms; created if "
        "missing. Without it nobody can tell who an entry is about.",
    )
    batch: Annotated[int, Field(ge=1, le=100_000)] = setting(
        1000, "The most entries that are written together."
    )
    delay: Annotated[Duration, Field(ge=0, le=60)] = setting(
        "100ms", "The longest that an entry waits for others."
    )

"""Other domains: who this one is to them.

Section: `trust`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.config.secrets import KeyFile
from penstock.config.settings import Duration, Settings, setting


class TrustSettings(Settings):
    """This domain's key, by which others know it."""

    key: KeyFile = setting(
        "keys/domain.key",
        "The file of this domain's private key (Ed25519, PEM); created if missing.",
    )
    key_refresh: Annotated[Duration, Field(ge=60, le=3_650 * 86_400)] = setting(
        "30d",
        "How old a key of a sealed stream may be: when `penstock keys refresh` changes it.",
    )
    key_delay: Annotated[Duration, Field(ge=600, le=3_650 * 86_400)] = setting(
        "7d",
        "How long a key of a sealed stream that was changed still opens what the broker keeps; "
        "then it is destroyed.",
    )

"""Other domains: who this one is to them.

Section: `trust`.
"""

from __future__ import annotations

from penstock.config.secrets import KeyFile
from penstock.config.settings import Settings, setting


class TrustSettings(Settings):
    """This domain's key, by which others know it."""

    key: KeyFile = setting(
        "keys/domain.key",
        "The file of this domain's private key (Ed25519, PEM); created if missing.",
    )

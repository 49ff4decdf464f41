"""`consent`: what people have opted out of."""

from __future__ import annotations

from penstock.config.secrets import KeyFile
from penstock.config.settings import Settings, setting


class ConsentSettings(Settings):
    """The key under which people are known who opted out of a purpose."""

    key: KeyFile = setting(
        "keys/consent.key",
        "The file of the key that marks people in the store, so that no name is in it; created "
        "if missing. Without it no opt-out can be found, and no view runs.",
    )

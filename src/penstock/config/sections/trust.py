"""Other domains at the same broker: who this one is, and how much it checks.

Section: `trust`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from penstock.config.secrets import KeyFile
from penstock.config.settings import Conflict, Duration, Settings, TypeLabel, setting

DomainKeyText = Annotated[
    str,
    Field(pattern=r"^[0-9a-f]{64}$"),
    TypeLabel("a public key", "64 hexadecimal digits, as `penstock cert key` prints them"),
]


class TrustSettings(Settings):
    """The network of domains that share a broker, and this domain's key in it."""

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
    network: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] | None = setting(
        None,
        "The network of domains that this one belongs to. Left out: no gateway of another domain "
        "is listened to.",
        examples=("CityNet",),
    )
    coordinator: DomainKeyText | None = setting(
        None, "The key of the domain that lets others connect to the network."
    )
    skew: Annotated[Duration, Field(ge=1, le=300)] = setting(
        "60s", "How far the clocks of two domains may be apart; what is older or newer is refused."
    )
    verify_rate: Annotated[float, Field(ge=0, le=1)] = setting(
        1.0,
        "How many signatures of messages on signed streams are verified: 1 all, 0.1 one of ten, 0 "
        "none. The first one of a gateway and capability always is; where one was wrong, all of "
        "its next ones are.",
    )
    refresh: Annotated[Duration, Field(ge=1, le=3600)] = setting(
        "30s",
        "How often a gateway announces itself to the others; who was silent for three times as "
        "long is no member any more.",
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a network without anybody who could let others in."""
        if self.network is not None and self.coordinator is None:
            yield Conflict(
                "coordinator",
                "nobody could show that it may connect to the network",
                "name the key of the domain that lets others in",
            )

"""The broker behind the gateway: its address, the gateway's credentials, the texts it accepts.

Rules that hold here:
- TLS towards the broker always verifies its certificate.
- A receiver may close the connection over control characters and non-characters, although
  they are UTF-8 (MQTT5 1.5.4). On a client's own connection that is between the client and
  the broker. The gateway's own connection carries messages of actions and wills of all
  clients, so texts that are not acceptable never go out on it.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.components.mosquitto import GATEWAY_USER, generate_password
from penstock.config.secrets import KeyFile, Secret
from penstock.config.sections.brokers import BrokerSettings
from penstock.errors import UnavailableError

_NON_CHARACTERS: Final = "".join(
    chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF)
)
_NOT_ACCEPTABLE: Final = re.compile(
    f"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NON_CHARACTERS}]"
)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The broker behind the gateway."""

    host: str
    port: int
    keep_alive: int = 30
    timeout: float = 5.0
    tls: ssl.SSLContext | None = None
    username: str | None = None
    secret: Secret | None = None

    @classmethod
    def of(cls, settings: BrokerSettings) -> BrokerAddress:
        """Read the settings; who starts the embedded broker has put its port there."""
        if not settings.port:
            raise UnavailableError(
                "the port of the broker is not known",
                fix="set broker.port, or let `penstock up` start broker and gateway",
            )
        embedded = settings.mode == "embedded"
        return cls(
            host=settings.host,
            port=settings.port,
            keep_alive=int(settings.keep_alive),
            timeout=settings.connect_timeout,
            tls=make_context(settings) if settings.tls.enabled else None,
            username=GATEWAY_USER if embedded else settings.username,
            secret=settings.key if embedded else settings.password,
        )

    def password(self) -> bytes | None:
        """Read the gateway's own password at the broker."""
        if isinstance(self.secret, KeyFile):
            self.secret.read_or_create(generate_password)
        return self.secret.read_text().encode() if self.secret is not None else None


def make_context(settings: BrokerSettings) -> ssl.SSLContext:
    """Make the TLS context towards the broker."""
    tls = settings.tls
    context = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.certificate is not None and tls.key is not None:
        context.load_cert_chain(str(tls.certificate), str(tls.key.path))
    return context


def are_acceptable(texts: Iterable[str]) -> bool:
    """Say whether every broker accepts these texts."""
    return not any(map(_NOT_ACCEPTABLE.search, texts))

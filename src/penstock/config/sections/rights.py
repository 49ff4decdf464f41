"""How services are told of what people chose and asked for: `rights`."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, Field

from penstock.config.settings import Duration, Settings, TypeLabel, setting, wrong


def _check_network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise wrong(f"{text!r} is no network", "write such as 10.1.0.0/16 or fd00::/8") from None
    return text


Network = Annotated[
    str, Field(max_length=64), AfterValidator(_check_network), TypeLabel("a network")
]


class RightsSettings(Settings):
    """How services are told of privacy requests."""

    networks: Annotated[tuple[Network, ...], Field(max_length=100)] = setting(
        (),
        "Networks of one's own that services may be in. Public addresses are always allowed, those "
        "of this machine and of private networks only where they are listed here.",
    )
    timeout: Annotated[Duration, Field(ge=0.1, le=300)] = setting(
        "10s", "How long a service may take to answer a call."
    )
    poll: Annotated[Duration, Field(ge=0.01, le=60)] = setting(
        "500ms", "How often a worker looks for what is due."
    )

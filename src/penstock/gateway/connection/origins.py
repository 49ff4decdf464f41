"""Which web pages may connect: a browser tells the origin of a page, and follows any script.

Rules that hold here:
- Programs that are no browsers send no Origin (RFC 6455 10.2): they are let pass, for they could
  send any.
- A page has to be of an origin that the settings list, or of this very host where the browser
  has proof of whom it talks to. A name alone is no proof: whoever owns one may let it stand for
  our address (DNS rebinding). A certificate is one, and so is an address in the place of a name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

_ANYBODY: Final = "*"


class OriginRule:
    """Which web pages may connect."""

    def __init__(self, origins: Iterable[str], *, encrypted: bool) -> None:
        self._origins = frozenset(origins)
        self._encrypted = encrypted

    def allows(self, origins: list[str], hosts: list[str]) -> bool:
        """Say whether a request with these Origin and Host headers may be served."""
        if not origins or _ANYBODY in self._origins:
            return True
        if len(origins) > 1:
            return False
        origin = origins[0].lower()
        return origin in self._origins or (len(hosts) == 1 and self._is_own(origin, hosts[0]))

    def _is_own(self, origin: str, host: str) -> bool:
        """Say whether a page is of this very host, and the browser has proof of the host."""
        host = host.lower()
        if self._encrypted:
            return origin == f"https://{host}"
        return origin == f"http://{host}" and _is_address(host)


def _is_address(host: str) -> bool:
    name = host.rpartition("]")[0].removeprefix("[") or host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True

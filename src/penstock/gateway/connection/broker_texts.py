"""Texts that a broker may close the connection over, although they are UTF-8.

MQTT lets a receiver do so for control characters and for code points that are no characters.
On a client's own connection that is between the client and the broker. On the gateway's own,
on which messages of actions and wills go out, it would hold up everybody's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_ENDS: Final = "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
_DISLIKED: Final = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_ENDS}]")


def are_welcome(texts: Iterable[str]) -> bool:
    """Say whether every broker takes these texts."""
    return not any(map(_DISLIKED.search, texts))

"""What a measurement is at, for whoever waits for it: lines on standard error."""

from __future__ import annotations

import sys


def tell(text: str) -> None:
    """Say what is measured now; standard output is for figures."""
    print(text, file=sys.stderr, flush=True)

"""The garbage collector as a gateway sets it, for measurements without one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_THRESHOLDS: Final = (20_000, 20, 50)


@contextmanager
def settled_collector() -> Iterator[None]:
    """Leave what is there to itself, and look at the rest as seldom as a gateway does."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()

"""The Python processes that run Spark's tasks, and what they need not do again and again.

Spark collects garbage in such a process after each task. With all the modules that are loaded
there, this takes some tens of milliseconds of a processor, more than a small batch itself.
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle() -> None:
    """Let the garbage collector look no more at what is loaded by now; once for a process."""
    gc.freeze()

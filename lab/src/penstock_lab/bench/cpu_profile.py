"""Where a process spends its CPU time: a timer that looks at the stack as CPU time passes.

Rules that hold here:
- The timer counts the time of the processor, not of the clock: what waits is not seen, and
  other work on the machine changes little.
- A sample belongs to the innermost function of the product. What it calls outside (JSON, sockets,
  the event loop between two calls) is its own time.
- The kernel looks a few hundred times a second: shares of less than a hundredth mean nothing.
"""

from __future__ import annotations

import signal
from collections import Counter
from types import FrameType
from typing import Any, Final

_EVERY_SECONDS: Final = 0.001
_SHOWN: Final = 15
_PRODUCT: Final = "penstock."
_ELSEWHERE: Final = ("elsewhere", "")


class CpuProfile:
    """Samples of one process; it is switched on and off in its main thread."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._running = False

    def toggle(self) -> None:
        """Begin anew, or end."""
        self._running = not self._running
        if self._running:
            self.counts.clear()
            signal.signal(signal.SIGPROF, self.note)
        every = _EVERY_SECONDS if self._running else 0.0
        signal.setitimer(signal.ITIMER_PROF, every, every)

    def note(self, _: int, frame: FrameType | None) -> None:
        """Count a sample."""
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module.startswith(_PRODUCT):
                self.counts[module.removeprefix(_PRODUCT), frame.f_code.co_qualname] += 1
                return
            frame = frame.f_back
        self.counts[_ELSEWHERE] += 1

    def report(self) -> dict[str, Any]:
        """Return the shares of rooms, and of the functions that took most."""
        total = sum(self.counts.values())
        rooms: Counter[str] = Counter()
        for (module, _), count in self.counts.items():
            rooms[".".join(module.split(".")[:2])] += count
        functions = {
            f"{module}:{name}" if name else module: count / total
            for (module, name), count in self.counts.most_common(_SHOWN)
        }
        return {
            "samples": total,
            "rooms": {name: round(it / total, 3) for name, it in rooms.most_common(_SHOWN)},
            "functions": {name: round(share, 3) for name, share in functions.items()},
        }

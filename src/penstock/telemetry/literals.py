"""Tells texts that stand in source code from texts that were put together at run time.

A log message that is a literal at the place of the call cannot hold what a client
sent. One that was formatted can. This is the rule by which messages, our own and those
of libraries, are printed or withheld: it needs no trust in whoever wrote the call.

The literals of a function are the constants of its code object; the function is found
on the call stack, so the question must be asked in the thread of the call.
"""

from __future__ import annotations

import inspect
from types import FrameType

_LOGGING = ("structlog", "penstock.telemetry.logs", "penstock.telemetry.literals")


def calling_frame() -> FrameType | None:
    """Find the innermost function on the stack that is not part of logging itself."""
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not any(module == name or module.startswith(name + ".") for name in _LOGGING):
            return frame
        frame = frame.f_back
    return None


def frame_at(filename: str, line: int) -> FrameType | None:
    """Find the function on the stack that is at this line, as a log record names it."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_lineno == line and frame.f_code.co_filename == filename:
            return frame
        frame = frame.f_back
    return None


def is_literal(text: object, frame: FrameType | None) -> bool:
    """Tell whether this text stands, whole, in the source of the function."""
    return (
        type(text) is str
        and frame is not None
        and any(type(constant) is str and constant == text for constant in frame.f_code.co_consts)
    )

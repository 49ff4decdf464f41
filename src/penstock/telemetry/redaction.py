"""What may be said in a log line: fields of an allow-list in their shapes, messages as literals.

Rules that hold here:
- A field that is not on the list is dropped. A value that has not the shape of its
  field is withheld. Both are counted, never printed.
- No shape admits free text. Words are ASCII without spaces or `@`, so that neither a
  line break nor a terminal sequence nor a mail address can pass.
- Fields that would name people or carry what they sent can not be put on the list.
- A message is printed where it is a literal of the function that logs it, ours or a
  library's: such a text cannot hold what a client sent, a formatted one can. The literals
  of a function are the constants of its code object; the function is found on the call
  stack, so the question must be asked in the thread of the call.
"""

from __future__ import annotations

import inspect
import math
import re
from enum import StrEnum
from types import FrameType
from typing import TypeVar

from penstock.errors import PenstockError, UnavailableError, UsageError, quote

WITHHELD = "(withheld)"
WORD_LIMIT = 80
_WORD = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.:/+-]{{0,{WORD_LIMIT - 1}}}", re.ASCII)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
_LARGEST = 2**63

_NEVER = re.compile(
    r"payload|topic|user|client|person|people|subject|actor|name|mail|phone|address|password"
    r"|secret|token|credential|cookie|body|content|message|headers?|query|sql|params",
)
_LOGGING = (
    "structlog",
    "penstock.telemetry.loggers",
    "penstock.telemetry.logs",
    "penstock.telemetry.redaction",
)


class Shape(StrEnum):
    """What the value of a field may look like."""

    NUMBER = "number"
    FLAG = "flag"
    WORD = "word"


_allowed: dict[str, Shape] = {
    "attempt": Shape.NUMBER,
    "bytes": Shape.NUMBER,
    "check": Shape.WORD,
    "code": Shape.WORD,
    "component": Shape.WORD,
    "count": Shape.NUMBER,
    "delay_s": Shape.NUMBER,
    "duration_ms": Shape.NUMBER,
    "enabled": Shape.FLAG,
    "epoch": Shape.NUMBER,
    "exit_code": Shape.NUMBER,
    "host": Shape.WORD,
    "key_id": Shape.WORD,
    "kind": Shape.WORD,
    "limit": Shape.NUMBER,
    "outcome": Shape.WORD,
    "part": Shape.WORD,
    "pid": Shape.NUMBER,
    "port": Shape.NUMBER,
    "protocol": Shape.WORD,
    "reason": Shape.WORD,
    "rule": Shape.WORD,
    "seconds": Shape.NUMBER,
    "signal": Shape.WORD,
    "size": Shape.NUMBER,
    "state": Shape.WORD,
    "version": Shape.WORD,
    "view": Shape.WORD,
}


def allow(field: str, shape: Shape) -> None:
    """Put a field on the list; meant to be called while a module is imported."""
    if not _NAME.fullmatch(field):
        raise UsageError(f"{quote(field)} is not a name for a log field", fix="use snake_case")
    if _NEVER.search(field):
        raise UsageError(
            f"the log field {quote(field)} sounds like a person or what they sent",
            fix="log a count, a kind or a rule; who did what belongs in the audit log",
        )
    if _allowed.setdefault(field, shape) is not shape:
        raise UsageError(f"the log field {quote(field)} is already a {_allowed[field]}")


def allowed() -> dict[str, Shape]:
    """Return the list as it stands, for the reference and its test."""
    return dict(sorted(_allowed.items()))


def shape_of(field: object) -> Shape | None:
    """Return the shape of a field on the list, or None."""
    return _allowed.get(field) if isinstance(field, str) else None


def admit(shape: Shape, value: object) -> str | int | float | bool | None:
    """Return the value as it may be printed, or `WITHHELD`.

    Exact types only: a subclass of `str` or `int` could print as anything.
    """
    if value is None:
        return None
    if shape is Shape.FLAG and type(value) is bool:
        return value
    if shape is Shape.NUMBER:
        if type(value) is int and -_LARGEST <= value < _LARGEST:
            return value
        if type(value) is float and math.isfinite(value):
            return value
    if shape is Shape.WORD:
        text = value.value if isinstance(value, StrEnum) else value
        if type(text) is str and _WORD.fullmatch(text):
            return text
    return WITHHELD


_safe: set[type[BaseException]] = {UnavailableError}
Failure = TypeVar("Failure", bound=type[PenstockError])


def safe_text(cls: Failure) -> Failure:
    """Declare, as a decorator, that the texts of this class never quote what people sent.

    It holds for this class alone; a subclass says it again.
    """
    _safe.add(cls)
    return cls


def is_safe(cls: type[BaseException]) -> bool:
    """Tell whether the texts of this class were declared safe."""
    return cls in _safe


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

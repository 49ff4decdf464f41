"""Structured logs to stderr: JSON lines, or readable lines where a person watches.

Rules that hold here:
- Nothing reaches the stream but through `_admit`: fields of the allow-list in their
  shapes, and messages that are literals (see `redaction`).
- An error is printed as its type and the places in Penstock it came through. Its text
  is printed only where its class was declared safe (see `redaction`), because the texts
  of errors quote their input.
- Libraries log through the same rules, and without the arguments of their messages.
- Logging never raises and never blocks on anything but the stream itself.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO

import structlog
from structlog.typing import FilteringBoundLogger

from penstock.telemetry import metrics, redaction

Level = Literal["debug", "info", "warning", "error", "critical"]
Style = Literal["auto", "json", "console"]

TEXT_LIMIT = 300
PLACES_LIMIT = 6
_LEVELS: dict[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
# The package itself: a checkout may well be called penstock, too.
_SOURCE_ROOT = str(Path(__file__).resolve().parents[1]) + os.sep

WITHHELD = metrics.counter(
    "penstock_log_withheld",
    "Parts of log lines that were not printed because they were not on the allow-list.",
    what=("field", "value", "message"),
)
LOST = metrics.counter("penstock_log_lost", "Log lines that the stream did not take.").plain


def make_logger(part: str) -> FilteringBoundLogger:
    """Return what writes the lines of a part of Penstock."""
    # Wrapped with processors of its own, so that no setting of structlog can lift the rules.
    logger: FilteringBoundLogger = structlog.wrap_logger(
        _sink, processors=_PROCESSORS, wrapper_class=_Bound, part=part
    )
    return logger


def configure(
    *,
    level: Level = "info",
    library_level: Level = "warning",
    style: Style = "auto",
    stream: TextIO | None = None,
) -> None:
    """Send all logs of this process, our own and those of libraries, through the rules."""
    _sink.stream = stream
    _sink.style = style
    _sink.least = _LEVELS[level]
    structlog.configure(processors=_PROCESSORS, wrapper_class=_Bound)
    root = logging.getLogger()
    for handler in [*root.handlers]:
        root.removeHandler(handler)
    root.addHandler(_LibraryHandler())
    root.setLevel(_LEVELS[library_level])
    logging.captureWarnings(capture=True)


class _Sink:
    """Where lines end: the one stream of this process, a whole line at a time."""

    def __init__(self) -> None:
        self.stream: TextIO | None = None  # none: whatever stderr is when a line comes
        self.style: Style = "auto"
        self.least = logging.INFO
        self._lock = threading.Lock()

    def write(self, event: MutableMapping[str, Any]) -> None:
        """Print what may be printed of this event."""
        line = _admit(event)
        stream = self.stream or sys.stderr
        try:
            readable = self.style == "console" or (self.style == "auto" and stream.isatty())
            text = _as_text(line) if readable else _as_json(line)
            with self._lock:
                stream.write(text + "\n")
                stream.flush()
        except (OSError, ValueError):
            # The stream is closed or full: only the metric can show it.
            LOST.inc()


_sink = _Sink()


class _LibraryHandler(logging.Handler):
    """Takes the records of the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message without its arguments, if it stands so in the library's source."""
        frame = redaction.frame_at(record.pathname, record.lineno)
        # A logger can be named after anything, a module only after a module.
        library = record.name.partition(".")[0]
        _sink.write(
            {
                "event": _literal_or_withheld(record.msg, redaction.is_literal(record.msg, frame)),
                "level": _level_of(record.levelno),
                "part": library if library in sys.modules else "library",
                "error": record.exc_info[1] if record.exc_info else None,
            }
        )


def _drop_quiet(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    del logger, method
    if _LEVELS[event["level"]] < _sink.least:
        raise structlog.DropEvent
    return event


def _check_message(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    del logger, method
    text = event.get("event")
    known = redaction.is_literal(text, redaction.calling_frame())
    event["event"] = _literal_or_withheld(text, known)
    exc_info = event.pop("exc_info", None)
    if exc_info and event.get("error") is None:
        raised = exc_info[1] if isinstance(exc_info, tuple) else exc_info
        event["error"] = raised if isinstance(raised, BaseException) else sys.exc_info()[1]
    return event


def _write(logger: object, method: str, event: MutableMapping[str, Any]) -> NoReturn:
    del logger, method
    _sink.write(event)
    raise structlog.DropEvent


_PROCESSORS: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    _drop_quiet,
    _check_message,
    _write,
]
_Bound = structlog.make_filtering_bound_logger(logging.DEBUG)


def _literal_or_withheld(text: Any, known: bool) -> str:  # noqa: FBT001
    if known:
        return str(text)[:TEXT_LIMIT]
    WITHHELD["message"].inc()
    return redaction.WITHHELD


def _level_of(number: int) -> str:
    reached = [name for name, least in _LEVELS.items() if number >= least]
    return reached[-1] if reached else "debug"


def _admit(event: MutableMapping[str, Any]) -> dict[str, Any]:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    line: dict[str, Any] = {
        "time": f"{stamp}.{int(now % 1 * 1000):03d}Z",
        "level": event.pop("level", "info"),
        "event": event.pop("event", redaction.WITHHELD),
    }
    error = event.pop("error", None)
    dropped = 0
    for name, value in event.items():
        shape = redaction.shape_of(name)
        if shape is None:
            dropped += 1
            continue
        line[name] = redaction.admit(shape, value)
        if line[name] == redaction.WITHHELD:
            WITHHELD["value"].inc()
    if isinstance(error, BaseException):
        line.update(_describe(error))
    elif error is not None:
        dropped += 1
    if dropped:
        WITHHELD["field"].inc(dropped)
        line["dropped"] = dropped
    return line


def _describe(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    described: dict[str, Any] = {"error": f"{kind.__module__}.{kind.__qualname__}"}
    if redaction.is_safe(kind):
        described["error_text"] = str(error)[:TEXT_LIMIT]
    places = [
        frame.filename.removeprefix(_SOURCE_ROOT) + f":{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(_SOURCE_ROOT)
    ]
    if places:
        described["at"] = " > ".join(places[-PLACES_LIMIT:])
    return described


def _as_json(line: dict[str, Any]) -> str:
    # ASCII only: no line separator of any kind and no terminal sequence survives that.
    return json.dumps(line, ensure_ascii=True, separators=(",", ":"))


def _as_text(line: dict[str, Any]) -> str:
    first = f"{line.pop('time')} {line.pop('level'):<8} {_escape(line.pop('event'))}"
    rest = [f"{name}={_escape(value)}" for name, value in line.items() if value is not None]
    return "  ".join([first, *rest])


def _escape(value: object) -> str:
    text = str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)

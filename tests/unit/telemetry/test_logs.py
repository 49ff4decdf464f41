"""Hostile use of logs: whatever is passed in, nothing forbidden comes out."""

import asyncio
import io
import json
import logging
import logging.handlers
import queue
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from penstock.errors import DeniedError, PenstockError, UnavailableError
from penstock.telemetry import Shape, allow, configure, get_logger, install_hooks, logs, safe_text

SECRET = "alice-pulse-180"  # noqa: S105 (stands for what must not appear)


class Lines:
    def __init__(self, style: logs.Style = "json") -> None:
        self.stream = io.StringIO()
        configure(style=style, stream=self.stream, level="debug", library_level="debug")

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def last(self) -> dict[str, Any]:
        line = self.text.splitlines()[-1]
        parsed: dict[str, Any] = json.loads(line)
        return parsed


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    yield
    logs._sink.__init__()  # type: ignore[misc]
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


def count(what: str) -> float:
    return float(logs.WITHHELD[what]._value.get())


def test_allowed_fields_are_printed() -> None:
    lines = Lines()
    get_logger("gateway").info("listening", port=1883, protocol="mqtt")
    assert lines.last.pop("time").endswith("Z")
    assert {name: lines.last[name] for name in ("level", "event", "part", "port", "protocol")} == {
        "level": "info",
        "event": "listening",
        "part": "gateway",
        "port": 1883,
        "protocol": "mqtt",
    }


def test_other_fields_are_dropped_and_counted() -> None:
    lines = Lines()
    before = count("field")
    get_logger("gateway").info("received", payload=SECRET, topic=SECRET, client_id=SECRET)
    assert SECRET not in lines.text
    assert lines.last["dropped"] == 3
    assert count("field") == before + 3


def test_bound_fields_and_context_pass_the_same_filter() -> None:
    lines = Lines()
    structlog.contextvars.bind_contextvars(user=SECRET, epoch=4)
    get_logger("gateway").bind(client=SECRET).info("received", kind=f"{SECRET}@example.org")
    assert SECRET not in lines.text
    assert (lines.last["epoch"], lines.last["dropped"], lines.last["kind"]) == (4, 2, "(withheld)")


def test_names_of_the_line_itself_cannot_be_taken_over() -> None:
    lines = Lines()
    get_logger("gateway").info("x", level=SECRET, time=SECRET, at=SECRET, error_text=SECRET)
    get_logger("gateway").info("x", error=SECRET, dropped=SECRET)
    assert SECRET not in lines.text
    assert lines.last["level"] == "info"


def test_messages_put_together_at_run_time_are_withheld() -> None:
    lines = Lines()
    before = count("message")
    log = get_logger("gateway")
    log.info(f"hello {SECRET}")  # noqa: G004 (each of these is a way to leak)
    log.info("hello %s", SECRET)
    log.info("hello " + SECRET)  # noqa: G003
    log.info("hello {}".format(SECRET))  # noqa: G001, UP032
    assert SECRET not in lines.text
    assert lines.text.count("(withheld)") == 4
    assert count("message") == before + 4


def test_messages_of_libraries_appear_without_their_arguments() -> None:
    lines = Lines()
    library = logging.getLogger("asyncio")
    library.warning("connection of %s lost", SECRET)
    assert (lines.last["event"], lines.last["part"]) == ("connection of %s lost", "asyncio")
    library.warning(f"connection of {SECRET} lost")
    library.warning({"payload": SECRET})
    logging.getLogger(SECRET).error("a logger of a strange name")
    assert lines.last["part"] == "library"
    assert SECRET not in lines.text


def test_extra_fields_of_records_do_not_appear() -> None:
    lines = Lines()
    logging.getLogger("asyncio").error("a literal", extra={"payload": SECRET, "port": SECRET})
    assert SECRET not in lines.text
    assert lines.last["event"] == "a literal"


def test_records_from_another_thread_are_withheld() -> None:
    lines = Lines()
    record = logging.LogRecord("asyncio", logging.ERROR, "nowhere.py", 1, SECRET, (), None)
    logging.getLogger().handle(record)
    assert SECRET not in lines.text
    assert lines.last["event"] == "(withheld)"


def test_errors_are_a_type_and_a_place() -> None:
    lines = Lines()
    try:
        json.loads(SECRET)
    except ValueError as error:
        get_logger("gateway").warning("cannot parse", error=error)
        assert lines.last["error"] == "json.decoder.JSONDecodeError"
        get_logger("gateway").exception("cannot parse")
        assert lines.last["error"] == "json.decoder.JSONDecodeError"
        logging.getLogger("asyncio").exception("cannot parse")
        assert lines.last["error"] == "json.decoder.JSONDecodeError"
    try:
        allow(SECRET, Shape.WORD)
    except PenstockError as error:
        get_logger("gateway").warning("not allowed", exc_info=error)
    assert lines.last["at"].startswith("telemetry/redaction.py:")
    assert SECRET not in lines.text


def test_the_text_of_an_error_appears_only_where_its_class_is_safe() -> None:
    lines = Lines()
    log = get_logger("store")

    class OtherError(UnavailableError):
        pass

    @safe_text
    class NamedError(UnavailableError):
        pass

    log.error("failed", error=DeniedError(f"no {SECRET}"))
    log.error("failed", error=OtherError(f"no {SECRET}"))
    assert SECRET not in lines.text
    log.error("failed", error=UnavailableError("no database", fix="start it"))
    assert lines.last["error_text"] == "no database → start it"
    log.error("failed", error=NamedError("x" * 1000))
    assert len(lines.last["error_text"]) == logs.TEXT_LIMIT


def test_no_value_can_begin_a_line_of_its_own() -> None:
    hostile = 'a\n{"event":"forged"}\r\x1b[2J\u2028\u202e\x00'
    styles: list[logs.Style] = ["json", "console"]
    for style in styles:
        lines = Lines(style)
        log = get_logger("gateway")
        log.info("x", kind=hostile, reason=hostile)
        log.error("x", error=UnavailableError(hostile))
        assert len(lines.text.splitlines()) == 2
        printed = lines.text.replace("\n", "")
        assert printed.isprintable()


def test_readable_lines() -> None:
    lines = Lines("console")
    get_logger("gateway").warning("broker lost", attempt=3, host=None)
    line = lines.text.rstrip("\n")
    assert line.endswith(" warning  broker lost  part=gateway  attempt=3")


def test_level_decides_what_is_printed() -> None:
    stream = io.StringIO()
    configure(stream=stream, style="json", level="warning", library_level="error")
    get_logger("gateway").info("not printed")
    logging.getLogger("asyncio").warning("not printed either")
    logging.getLogger("asyncio").critical("printed")
    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == ["critical"]


def test_a_closed_stream_is_counted_and_does_not_raise() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    stream.close()
    before = logs.LOST._value.get()
    get_logger("gateway").info("nobody hears this")
    assert logs.LOST._value.get() == before + 1


def test_warnings_do_not_leak() -> None:
    lines = Lines()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # catch_warnings put the printing function back; capture once more inside it.
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn(SECRET, stacklevel=1)
    assert lines.last["level"] == "warning"
    assert SECRET not in lines.text


def test_uncaught_errors_do_not_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    install_hooks()

    def fail() -> None:
        raise ValueError(SECRET)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert lines.last["event"] == "uncaught error in a thread"
    error = ValueError(SECRET)
    sys.excepthook(ValueError, error, None)
    assert lines.last["event"] == "uncaught error"
    assert SECRET not in lines.text


def test_errors_of_forgotten_tasks_do_not_leak() -> None:
    lines = Lines()

    async def fail() -> None:
        raise ValueError(SECRET)

    async def run() -> None:
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"failed for {SECRET}", "exception": task.exception(), "task": task}
        )

    asyncio.run(run())
    assert lines.last["error"] == "builtins.ValueError"
    assert SECRET not in lines.text


def test_a_queue_between_library_and_handler_withholds_the_message() -> None:
    lines = Lines()
    between: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    sender = logging.handlers.QueueHandler(between)
    library = logging.getLogger("penstock_test_queue")
    library.propagate = False
    library.addHandler(sender)
    library.error("hello %s", SECRET)
    logging.getLogger().handle(between.get())
    assert lines.last["event"] == "(withheld)"
    assert SECRET not in lines.text


def test_the_rules_hold_before_anybody_configured_logs(capsys: pytest.CaptureFixture[str]) -> None:
    get_logger("gateway").warning("started", payload=SECRET, port=1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert json.loads(printed.err)["port"] == 1
    assert SECRET not in printed.err

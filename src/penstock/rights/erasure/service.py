"""Erasure as a built-in service: told of a deletion, it erases, proves it, and is done.

    vault ─▶ event log ─▶ Kafka ─▶ broker ─▶ detection ─▶ store ─▶ views ─▶ scan
                                                       evidence, audited ─▶ DONE ◀──┘

Rules that hold here:
- Each step is noted when it is done and is idempotent: killed between any two, the next worker
  goes on at the first that is not noted. The progress row is leased and kept as that of any other
  service (`keep`), and `COMPLETED` comes after the evidence is durable.
- Vault entries go first: which are the person's, only the records tell. Views come behind the
  event log, so that what they read again is clean. A view that runs may have a batch under way
  that it read before: erasure looks at views when that is over (`rights.settle`).
- What detection remembers is in the memory of the gateway that detects: that forgets, and erasure
  waits for it. Who is in a situation is forgotten when it has ended, which nobody waits for.
- Only what was recorded before a step is erased by it. What comes later is new data; the evidence
  says up to where the log was looked at.
- What cannot be erased is listed in the evidence, with the reason, and never passed over.
- Evidence names streams, views and counts; it never says who the person is.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from penstock.components.mosquitto import find_listener
from penstock.config import Config
from penstock.definitions import DefinitionSet
from penstock.definitions.views import STATEFUL_ANONYMIZERS
from penstock.errors import PenstockError, UnavailableError
from penstock.eventlog import EventLog, Topic
from penstock.eventlog.erasure import Keep, ask_to_forget, erase, is_asked
from penstock.hadoop import is_remote
from penstock.model.kinds import Event, Scenario, Stream, View
from penstock.rights.dispatch.message import (
    Dispatched,
    LeaseLostError,
    Notification,
    Outcome,
    failed,
)
from penstock.rights.erasure.published import erase_files
from penstock.rights.erasure.records import (
    ABSENT,
    ResultTrace,
    StreamRecords,
    ViewTrace,
    find_absent,
    find_tokens,
    open_records,
    trace_views,
)
from penstock.rights.erasure.retained import clear_retained, clear_waiting
from penstock.rights.erasure.scan import scan
from penstock.store.audit.entry import Entry
from penstock.store.audit.entry import Outcome as AuditOutcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.signatures import Head
from penstock.store.database import Database
from penstock.store.detection.erasures import DetectionErasures
from penstock.store.detokenization import StoreVault
from penstock.store.keys import PersonKeys
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.erasures import ErasureBook
from penstock.store.sessions import Sessions
from penstock.telemetry import get_logger
from penstock.trust.credentials import derive_client_prefix
from penstock.trust.keys import open_key

VERSION: Final = 1
_log = get_logger("rights")

Result = dict[str, Any]
"""What a step did: lists of `erased` and `remains`."""

_ELSEWHERE: Final = (
    ("copies", "what services and consumers took out of Penstock: each answers for itself"),
    ("backups", "copies of files and databases that others made"),
    ("disk", "what the file system keeps of removed files until it uses the space again"),
    ("audit-log", "entries under a pseudonym, which is kept to prove what was done"),
    ("choices", "opt-ins and opt-outs under a mark, which tells nobody's name"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Case:
    """One request, and what is known about it."""

    request: str
    person: str
    definitions: DefinitionSet
    traces: list[ViewTrace]
    keep: Keep

    @property
    def attributes(self) -> frozenset[str]:
        """Attributes of events that name people."""
        told = (it.subject for it in self.definitions.of(Stream).values())
        followed = (it.attribute for it in self.definitions.of(Scenario).values())
        return frozenset((*(it for it in told if it is not None), *followed))


_LOGS: Final = ("log:", "keys", "kafka:")
"""How the steps begin that take away what views read."""
_HELD: Final = (
    "records that it holds back: they are forgotten when it runs, before it publishes anything"
)
_REMEMBERED: Final = "what patterns remember of the person's events: forgotten when it runs"
_DETECTED: Final = "detected:"
_STATES: Final = "what it held back before, in states that Spark keeps until the next two batches"


_FORGETTING: Final = timedelta(minutes=10)
"""How long a gateway may take to forget somebody until that counts as a failure."""
_FORGETTING_SECONDS: Final = 1.0


class _NotYetError(PenstockError):
    """A step has to wait for somebody else, who is at it."""

    def __init__(self, code: str, seconds: float) -> None:
        super().__init__("an erasure waits")
        self.waiting = Dispatched(Outcome.SENT, code, again=seconds)


class _Step(NamedTuple):
    name: str
    run: Callable[[], Result]


class ErasureService:
    """Erases what Penstock keeps about a person."""

    def __init__(
        self,
        config: Config,
        log: AuditLog,
        database: Database,
        people: Pseudonyms,
        marks: SubjectMarks,
    ) -> None:
        self._config = config
        self.book = ErasureBook(database)
        self._database = database
        self._vault = StoreVault(database)
        self._detection = DetectionErasures(database)
        self._log = log
        self._people = people
        self._marks = marks
        self._events = EventLog(config.pipeline.event_log)

    def run(self, notification: Notification, definitions: DefinitionSet, keep: Keep) -> Dispatched:
        """Erase, and say so; or say why not yet."""
        request, person = notification.request, notification.subject
        try:
            if any(it.subscriber == notification.subscriber for it in self.book.evidence(request)):
                return Dispatched(Outcome.DONE)
            traces = trace_views(definitions, self._secret(), person)
            case = _Case(request, person, definitions, traces, keep)
            self._work(case)
            self._conclude(case, notification.subscriber)
        except LeaseLostError:
            return failed("lease-lost")
        except _NotYetError as error:
            return error.waiting
        except PenstockError as error:
            # Such as a broker out of reach, or a file that somebody has damaged: one request
            # waits for it, not the worker. Its message may quote a path, but never a person.
            _log.warning("an erasure cannot go on now", error=error)
            return failed("erasure", "unavailable")
        except OSError as error:
            _log.warning("an erasure cannot go on now", code=type(error).__name__)
            return failed("erasure", type(error).__name__)
        return Dispatched(Outcome.DONE)

    def _work(self, case: _Case) -> None:
        """Do what is not done yet."""
        done = self.book.steps(case.request)
        for step in self._steps(case):
            if step.name in done:
                continue
            case.keep()
            if step.name.startswith(("view:", _DETECTED)) and self._running(case):
                erased = [it.at for name, it in done.items() if name.startswith(_LOGS)]
                settle = timedelta(seconds=self._config.rights.settle)
                wait = max(erased, default=self.book.clock() - settle) + settle - self.book.clock()
                if wait > timedelta():
                    raise _NotYetError("views-running", wait.total_seconds())
            done[step.name] = self.book.note(case.request, step.name, step.run())

    def _steps(self, case: _Case) -> Iterator[_Step]:
        streams = [it for _, it in sorted(case.definitions.of(Stream).items())]
        yield _Step("vault", lambda: self._erase_vault(case))
        for stream in streams:
            if stream.subject is not None and stream.source is None:
                yield _Step(f"log:{stream.name}", lambda it=stream: self._erase_log(case, it))  # type: ignore[misc]
        yield _Step("keys", lambda: self._destroy_key(case))
        for stream in streams:
            if stream.subject is not None and _is_at_kafka(stream):
                yield _Step(f"kafka:{stream.name}", lambda it=stream: self._erase_kafka(case, it))  # type: ignore[misc]
        yield _Step("elsewhere", lambda: self._list_others(case, streams))
        yield _Step("retained", lambda: self._clear_retained(case, streams))
        yield _Step("sessions", lambda: self._clear_waiting(case, streams))
        yield _Step("detection", lambda: self._erase_detection(case))
        yield _Step("store", lambda: self._erase_store(case))
        for trace in case.traces:
            if _is_stateful(trace.view):
                yield _Step(_held(trace), lambda it=trace: self._ask_view(case, it))  # type: ignore[misc]
        found = self._config.pipeline.detections
        detected = sorted(it for it in found.iterdir() if it.is_dir()) if found.is_dir() else []
        for folder in detected:
            yield _Step(f"{_DETECTED}{folder.name}/held", partial(self._ask_detected, case, folder))
        for trace in case.traces:
            yield _Step(f"view:{trace.view.name}", lambda it=trace: self._erase_view(case, it))  # type: ignore[misc]
        for folder in detected:
            yield _Step(f"{_DETECTED}{folder.name}", partial(self._erase_detected, case, folder))
        yield _Step("scan", lambda: self._scan(case))

    # --- steps ---

    def _erase_vault(self, case: _Case) -> Result:
        tokens = {token for trace in case.traces for token in trace.tokens}
        secret, remains = self._secret(), list[dict[str, Any]]()
        for stream in case.definitions.of(Stream).values():
            views = [
                trace.view for trace in case.traces
                if trace.stream == stream and _has_vault(trace.view)
            ]  # fmt: skip
            if not views or secret is None:
                continue
            if stream.source is not None or is_remote(self._events.root):
                reason = (
                    "entries of identifiers other than the subject, which records elsewhere tell"
                )
                remains.append(_remain(f"vault, of {stream.name}", reason))
                continue
            records = StreamRecords(stream, case.person, self._marks)
            opened = open_records(self._config, stream, self._events.topic(stream.topic).read())
            for number, record in enumerate(opened):
                if number % 10_000 == 0:
                    case.keep()
                if records.is_about(record):
                    fields = records.read(record.value) or {}
                    for view in views:
                        tokens |= set(find_tokens(view, stream, case.definitions, secret, fields))
        count = self._vault.delete(sorted(tokens))
        return _result([{"place": "vault", "entries": count}], remains)

    def _erase_log(self, case: _Case, stream: Stream) -> Result:
        if is_remote(self._events.root):
            return _result([])  # named by `_list_others`
        records = StreamRecords(stream, case.person, self._marks)
        topic, name = self._events.topic(stream.topic), f"event log of {stream.name}"
        keys = {case.person: records.needle}
        if records.mark is not None:
            # What came before the stream was sealed stands under the name.
            keys[records.mark] = records.mark.encode()
        made = [
            erase(topic, records.is_about, key, needle=needle, keep=case.keep)
            for key, needle in keys.items()
        ]
        return _result(
            [{"place": name, "records": sum(it.records for it in made),
              "files": sum(it.files for it in made), "through": made[-1].through}]
        )  # fmt: skip

    def _destroy_key(self, case: _Case) -> Result:
        """Destroy the key that records at Kafka are sealed under."""
        key = self._config.consent.key
        if not key.path.exists():
            return _result([])
        gone = PersonKeys(self._database, key.read()).destroy(case.person)
        return _result([{"place": "key of the person", "keys": gone}])

    def _erase_kafka(self, case: _Case, stream: Stream) -> Result:
        # Only who uses Kafka needs its client.
        from penstock.eventlog.kafka import KafkaLog  # noqa: PLC0415

        log, place = KafkaLog(self._config.kafka), f"topic {stream.topic} at Kafka"
        if stream.topic not in log.topics():
            return _result([{"place": place, "records": 0}])
        topic = log.topic(stream.topic)
        kept, compacted = topic.retention()
        until = None if kept is None else self.book.clock() + timedelta(milliseconds=kept)
        match stream.erasure:
            case "shred":
                reason = "records that were written before the stream declared erasure: shred"
                return _result([], [_remain(place, reason, until=until)])
            case "tombstone" if compacted:
                case.keep()
                count = topic.bury(case.person.encode())
                reason = "records under the tombstones, until the brokers compact the topic"
                return _result([{"place": place, "tombstones": count}], [_remain(place, reason)])
            case "tombstone":
                reason = "the topic is not compacted, so that tombstones would erase nothing"
                return _result([], [_remain(place, reason, until=until)])
        reason = "records that the brokers keep until the retention of the topic ends"
        return _result([], [_remain(place, reason, until=until)])

    def _list_others(self, case: _Case, streams: list[Stream]) -> Result:
        """List what lies with others, or says of nobody whose it is."""
        remains = []
        declared = {it.topic for it in streams} | {it.view.topic for it in case.traces}
        views = {it.view.name for it in case.traces}
        for stream in streams:
            if not StreamRecords(stream, case.person).is_telling:
                remains.append(
                    _remain(stream.name, "the stream does not say whom records are about")
                )
            elif stream.source is not None and stream.source.files is not None:
                remains.append(_remain(stream.name, "files of a folder that others write"))
        remains += [
            _remain(name, "a topic of the event log that no definition describes")
            for name in (() if is_remote(self._events.root) else self._events.topics())
            if name not in declared
        ]
        folder = self._config.pipeline.folder
        remains += [_remain(it, ABSENT) for it in find_absent(self._config, case.definitions)]
        remains += [
            _remain(f"view {it.name}", "files of a view that no definition describes")
            for it in (sorted(folder.iterdir()) if folder.is_dir() else ())
            if it.is_dir() and not it.name.startswith(".") and it.name not in views
        ]
        return _result([], remains)

    def _clear_retained(self, case: _Case, streams: list[Stream]) -> Result:
        count = clear_retained(self._config.broker, streams, case.person, case.keep)
        self._write_broker_state(count)
        return _result([{"place": "retained messages", "messages": count}])

    def _clear_waiting(self, case: _Case, streams: list[Stream]) -> Result:
        """Take out what waits at the broker for clients that are away."""
        place = "sessions of clients that are away"
        if self._config.gateway.authentication.relay:
            reason = "the broker lets nobody but the clients themselves into their sessions"
            return _result([], [_remain(place, reason)])
        sessions = Sessions(self._database)
        away = sessions.away()
        trust = self._config.trust
        if trust.network is not None:
            prefix = derive_client_prefix(open_key(trust.key))
            away = [replace(it, client=f"{prefix}{it.client}") for it in away]
        found = clear_waiting(self._config.broker, away, streams, case.person, case.keep)
        self._write_broker_state(found.messages)
        remains = []
        if found.unread:
            reason = "more waits than the broker sends at once, or the client came back meanwhile"
            remains.append(_remain(place, reason, found.unread))
        if others := sessions.count().kept - len(away):
            reason = (
                "sessions of clients that are connected, whose gateway was killed, or that left "
                "a will which the broker holds back: what waits there, waits until they come"
            )
            remains.append(_remain("other sessions", reason, others))
        erased = {"place": place, "messages": found.messages, "sessions": len(away)}
        return _result([erased], remains)

    def _write_broker_state(self, changes: int) -> None:
        """Let the embedded broker write its memory to the disk now, not half an hour later."""
        if changes and self._config.broker.mode == "embedded":
            found = find_listener(self._config.broker.socket)
            if found is not None:
                with suppress(OSError):
                    os.kill(found.pid, signal.SIGUSR1)

    def _erase_detection(self, case: _Case) -> Result:
        """Let detection forget the person's events, or wait until it has."""
        place, detection = "event detection", self._detection
        if not detection.has_state():
            return _result([])
        if not case.definitions.of(Event) and detection.discard_state():
            # No gateway will lead any more, and what is left is for nothing that is defined.
            return _result([{"place": place, "rows": 0}])
        asked = detection.ask(case.request, case.person, case.attributes)
        if asked.is_settled:
            return _result([{"place": place, "rows": asked.forgotten}])
        if self.book.is_standing(case.person):
            reason = "events of somebody who is in a situation now: forgotten when it has ended"
            return _result([], [_remain(place, reason)])
        if not detection.is_led() or self.book.clock() - asked.asked > _FORGETTING:
            raise UnavailableError(
                "no gateway forgets the events of who is erased", fix="let a gateway run"
            )
        raise _NotYetError("detection-forgets", _FORGETTING_SECONDS)

    def _erase_store(self, case: _Case) -> Result:
        mark = self._marks.of(case.person)
        contacts = self.book.forget_contacts(mark)
        packages = [self._config.rights.package(it) for it in self.book.requests_of(mark)]
        packages = [it for it in packages if it.exists()]
        for path in packages:
            path.unlink()
        past, standing = self.book.forget_situations(case.person)
        remains = []
        if standing:
            remains.append(_remain("situations", "a situation that holds now: until it ends"))
        return _result(
            [
                {"place": "contacts", "addresses": contacts},
                {"place": "situations", "steps": past},
                {"place": "exports", "packages": len(packages)},
            ],
            remains,
        )

    def _erase_view(self, case: _Case, trace: ViewTrace) -> Result:
        view, stream = trace.view, trace.stream
        name, remains = f"view {view.name}", list[Mapping[str, Any]]()
        if _is_stateful(view):
            remains += self._await_view(case, trace)
        if trace.keyless and (self._config.pipeline.folder / view.name).is_dir():
            raise UnavailableError(
                f"the key of masks is missing, which tells people in the view {view.name}",
                fix="let pipeline.key name the key that the views were run with",
            )
        if trace.value is None:
            remains.append(_remain(name, "its records do not tell whose they are"))
            return _result([], remains)
        case.keep()
        self._vault.delete(sorted(trace.tokens))
        erased = list[Mapping[str, Any]]()
        folder = self._config.pipeline.folder / view.name
        at_store = is_remote(self._config.pipeline.files)
        if view.format != "topic" and at_store:
            remains.append(_remain(name, ABSENT))
        elif view.format != "topic":
            made = erase_files(folder, trace, case.keep)
            erased.append({"place": name, "rows": made.rows, "files": made.files})
        elif next((folder / "data").glob("*"), None) is not None:
            remains.append(_remain(name, "files on their way to its topic, or from before it"))
        topic = self._events.topic(view.topic)
        if is_remote(topic.folder) and not _is_at_kafka(stream):
            remains += [_remain(name, ABSENT)] if view.format == "topic" else []
        elif _is_at_kafka(stream):
            if view.format == "topic":
                remains.append(self._remain_at_kafka(view.topic))
        elif view.format == "topic" or topic.segments():  # or had one before it was changed
            erased.append({"place": name, **self._erase_topic(case, trace, topic)})
        return _result(erased, remains)

    def _ask_view(self, case: _Case, trace: ViewTrace) -> Result:
        """Ask who runs a view to forget the person among what it holds back."""
        folder = self._config.pipeline.folder / trace.view.name
        if folder.is_dir():
            ask_to_forget(folder, case.request, str(self._marks.number(case.person)))
        return _result([])

    def _await_view(self, case: _Case, trace: ViewTrace) -> list[dict[str, Any]]:
        """Wait until a view that runs has forgotten the person; return what remains."""
        folder = self._config.pipeline.folder / trace.view.name
        if not folder.is_dir():
            return []
        forgotten = self._await_forgetting(case, folder, _held(trace))
        return [_remain(f"view {trace.view.name}", _STATES if forgotten else _HELD)]

    def _await_forgetting(self, case: _Case, folder: Path, step: str) -> bool:
        """Wait until who runs something has forgotten the person; False: nobody runs it."""
        if not is_asked(folder, case.request):
            return True
        since = self.book.clock() - self.book.steps(case.request)[step].at
        if _is_running(folder) and since < _FORGETTING:
            raise _NotYetError("views-forget", _FORGETTING_SECONDS)
        return False

    def _ask_detected(self, case: _Case, folder: Path) -> Result:
        """Ask who runs a detection on Spark to forget the person."""
        note = {"person": case.person, "attributes": sorted(case.attributes)}
        ask_to_forget(folder, case.request, json.dumps(note))
        return _result([])

    def _erase_detected(self, case: _Case, folder: Path) -> Result:
        """Erase from the results of a detection on Spark."""
        place, remains = f"detected in {folder.name}", list[dict[str, Any]]()
        if not self._await_forgetting(case, folder, f"{_DETECTED}{folder.name}/held"):
            remains.append(_remain(place, _REMEMBERED))
        made = erase_files(folder, ResultTrace(case.person, case.attributes), case.keep)
        return _result([{"place": place, "rows": made.rows, "files": made.files}], remains)

    def _erase_topic(self, case: _Case, trace: ViewTrace, topic: Topic) -> dict[str, int]:
        published = StreamRecords(_plain(trace.stream), case.person)

        def is_about(record: Any) -> bool:
            return trace.is_about(published.read(record.value) or {})

        value = trace.value or ""
        made = erase(topic, is_about, value, needle=value.encode(), keep=case.keep)
        return {"records": made.records, "files": made.files, "through": made.through}

    def _remain_at_kafka(self, name: str) -> dict[str, Any]:
        from penstock.eventlog.kafka import KafkaLog  # noqa: PLC0415 - see above

        log, until = KafkaLog(self._config.kafka), None
        if name in log.topics():
            kept = log.topic(name).retention().milliseconds
            until = None if kept is None else self.book.clock() + timedelta(milliseconds=kept)
        reason = "records that the brokers keep until the retention of the topic ends"
        return _remain(f"topic {name} at Kafka", reason, until=until)

    def _scan(self, case: _Case) -> Result:
        config = self._config
        folders = (config.data, config.pipeline.event_log, config.pipeline.folder)
        here = [it for it in folders if not is_remote(it) and it.is_dir()]
        report = scan(here, case.person, case.keep)
        remains = [
            _remain(place, "the name stands there, in what is not the person's record, or as a "
                    "word like others", count)
            for place, count in sorted(report.places.items())
        ]  # fmt: skip
        return {**_result([], remains), "scan": report.as_data()}

    # --- the end ---

    def _conclude(self, case: _Case, subscriber: str) -> None:
        done = self.book.steps(case.request)
        results = [done[step.name].result for step in self._steps(case) if step.name in done]
        erased = [it for result in results for it in result["erased"]]
        remains = [it for result in results for it in result["remains"]]
        remains += [_remain(place, reason) for place, reason in _ELSEWHERE]
        content = {
            "version": VERSION, "request": case.request, "erased": erased, "remains": remains,
            "scan": next((it["scan"] for it in results if "scan" in it), None),
        }  # fmt: skip
        count = sum(it.get(what, 0) for it in erased for what in ("records", "rows", "messages"))
        person = self._people.person(case.person)

        def record(connection: Connection, digest: str) -> Head:
            entry = Entry.make(
                "rights.erased", AuditOutcome.DONE, subject=person,
                request=case.request, digest=digest, count=count,
            )  # fmt: skip
            return self._log.append_within(connection, [entry])

        self.book.conclude(case.request, subscriber, content, record)

    # --- inside ---

    def _secret(self) -> bytes | None:
        """Return the key of masks; None where no view has needed one."""
        key = self._config.pipeline.key
        return key.read() if key.path.exists() else None

    def _running(self, case: _Case) -> bool:
        """Say whether some view is written now."""
        folder, detections = self._config.pipeline.folder, self._config.pipeline.detections
        places = [folder / trace.view.name for trace in case.traces]
        return any(map(_is_running, (*places, *detections.glob("*"))))


def _result(
    erased: list[Mapping[str, Any]] | list[dict[str, Any]],
    remains: list[Mapping[str, Any]] | list[dict[str, Any]] | None = None,
) -> Result:
    return {"erased": list(erased), "remains": list(remains or [])}


def _remain(
    place: str, reason: str, count: int | None = None, *, until: datetime | None = None
) -> dict[str, Any]:
    made: dict[str, Any] = {"place": place, "reason": reason}
    if count is not None:
        made["count"] = count
    if until is not None:
        # The first day on which all is gone.
        made["until"] = (until + timedelta(days=1)).date().isoformat()
    return made


def _is_at_kafka(stream: Stream) -> bool:
    return stream.source is not None and stream.source.kafka is not None


def _held(trace: ViewTrace) -> str:
    return f"view:{trace.view.name}/held"


def _is_running(folder: Path) -> bool:
    """Say whether a view is written now."""
    lock = folder / ".lock"
    if not lock.exists():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _has_vault(view: View) -> bool:
    return any("vault" in item for item in view.anonymizers)


def _is_stateful(view: View) -> bool:
    return any(item.get("anonymizer") in STATEFUL_ANONYMIZERS for item in view.anonymizers)


def _plain(stream: Stream) -> Stream:
    """Return the stream as its views write records: JSON, without an envelope."""
    return stream.model_copy(update={"format": "json"})

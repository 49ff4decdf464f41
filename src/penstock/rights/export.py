"""Export as a built-in service: what Penstock keeps about a person, as one package.

    event log, Kafka, views, retained ─┐
    choices, contacts, situations ─────┴▶ REQUEST.zip: JSON and a manifest ──▶ handed over once

Rules that hold here:
- A record is in the package where its stream, or the trace of its view, says that it is the
  person's: by the same rules as erasure, so that both speak of the same data.
- What may hold more and cannot be told is listed in the manifest (`missing`), not passed over.
- The package appears whole, readable by its owner only. It is handed over once, to the front end
  that asked, and removed then; erasure of the person removes it, too.
- The audit log has the SHA-256 of the package; neither log nor evidence says whom it is about.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection

from penstock.config import Config
from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError, UsageError
from penstock.eventlog import EventLog, Record
from penstock.eventlog.erasure import Keep
from penstock.hadoop import is_remote, sync
from penstock.model.kinds import Stream
from penstock.rights.dispatch.message import (
    Dispatched,
    LeaseLostError,
    Notification,
    Outcome,
    failed,
)
from penstock.rights.erasure.published import read_rows
from penstock.rights.erasure.records import (
    ABSENT,
    StreamRecords,
    ViewTrace,
    find_absent,
    open_records,
    trace_views,
)
from penstock.rights.erasure.retained import read_retained
from penstock.store.audit.entry import Entry
from penstock.store.audit.entry import Outcome as AuditOutcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.signatures import Head
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.erasures import ErasureBook
from penstock.store.rights.profiles import Profiles
from penstock.telemetry import get_logger

VERSION: Final = 1
MANIFEST: Final = "manifest.json"
_CHUNK: Final = 10_000
_log = get_logger("rights")

Rows = Iterable[Mapping[str, Any]]


class ExportService:
    """Gathers what Penstock keeps about a person."""

    def __init__(
        self,
        config: Config,
        log: AuditLog,
        database: Database,
        people: Pseudonyms,
        marks: SubjectMarks,
        profiles: Profiles,
    ) -> None:
        self._config = config
        self._log = log
        self._database = database
        self._people = people
        self._consent = ConsentBook(database, marks)
        self._marks = marks
        self._profiles = profiles
        self.book = ErasureBook(database)
        self._events = EventLog(config.pipeline.event_log)

    def run(self, notification: Notification, definitions: DefinitionSet, keep: Keep) -> Dispatched:
        """Write the package, and say so; or say why not yet."""
        request, person = notification.request, notification.subject
        try:
            if not any(
                it.subscriber == notification.subscriber for it in self.book.evidence(request)
            ):
                content = self._write(request, person, definitions, keep)
                self._conclude(request, notification.subscriber, person, content)
        except LeaseLostError:
            return failed("lease-lost")
        except UnavailableError as error:
            _log.warning("an export cannot go on now", error=error)
            return failed("export", "unavailable")
        except OSError as error:
            _log.warning("an export cannot go on now", code=type(error).__name__)
            return failed("export", type(error).__name__)
        return Dispatched(Outcome.DONE)

    def _write(
        self, request: str, person: str, definitions: DefinitionSet, keep: Keep
    ) -> dict[str, Any]:
        """Write the package; return what the evidence says of it."""
        path = self._config.rights.package(request)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        files: list[dict[str, Any]] = []
        missing = list(self._list_missing(definitions))
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with (
            os.fdopen(handle, "wb") as target,
            zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as package,
        ):
            for name, rows in self._parts(person, definitions, keep):
                made = _add(package, name, rows)
                if made["records"]:
                    files.append(made)
            manifest = {
                "version": VERSION, "request": request, "subject": person,
                "at": datetime.now(UTC).isoformat(timespec="seconds"), "files": files,
                "missing": missing,
            }  # fmt: skip
            package.writestr(MANIFEST, _dump(manifest))
            package.close()
            target.flush()
            os.fsync(target.fileno())
        with partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        partial.replace(path)
        sync(path.parent)
        told = [{"place": it["name"], "records": it["records"]} for it in files]
        return {
            "version": VERSION, "request": request, "package": digest, "exported": told,
            "remains": missing,
        }  # fmt: skip

    def _parts(
        self, person: str, definitions: DefinitionSet, keep: Keep
    ) -> Iterator[tuple[str, Rows]]:
        """Yield the files of the package, each with its rows."""
        streams = [it for _, it in sorted(definitions.of(Stream).items())]
        for stream in streams:
            if stream.subject is not None and not _has_files(stream):
                yield f"streams/{stream.name}.jsonl", self._read_stream(stream, person, keep)
        for trace in trace_views(definitions, self._secret(), person):
            yield f"views/{trace.view.name}.jsonl", self._read_view(trace, keep)
        retained = read_retained(self._config.broker, streams, person, keep)
        yield (
            "retained.jsonl",
            (
                {"topic": it.topic, "payload": it.payload.decode(errors="replace")}
                for it in retained
            ),
        )
        yield "choices.jsonl", (
            {"at": it.at, "choice": it.choice.value, "control": it.control,
             "categories": it.categories, "purposes": it.purposes, "taken_in_by": it.origin}
            for it in self._consent.history(person)
        )  # fmt: skip
        yield (
            "contacts.jsonl",
            (
                {"kept_by": publisher, **contact}
                for publisher, contact in self._profiles.contacts(person).items()
            ),
        )
        yield "situations.jsonl", self.book.situations(person)

    def _read_stream(self, stream: Stream, person: str, keep: Keep) -> Rows:
        records = StreamRecords(stream, person, self._marks)
        for record in self._read_records(stream, keep):
            if records.is_about(record):
                at = datetime.fromtimestamp(record.milliseconds / 1000, UTC)
                value = records.read(record.value)
                told = {"unread": record.value.decode(errors="replace")} if value is None else value
                yield {"arrived": at, "record": told}

    def _read_records(self, stream: Stream, keep: Keep) -> Iterator[Record]:
        if stream.source is None:
            if is_remote(self._events.root):
                return  # listed as missing
            held = self._events.topic(stream.topic).read()
            for number, record in enumerate(open_records(self._config, stream, held)):
                if number % _CHUNK == 0:
                    keep()
                yield record
            return
        # Only who uses Kafka needs its client.
        from penstock.eventlog.kafka import KafkaLog  # noqa: PLC0415

        log = KafkaLog(self._config.kafka)
        if stream.topic not in log.topics():
            return
        topic = log.topic(stream.topic)
        for partition, (start, end) in topic.ends().items():
            found = topic.read_partition(partition, start, end)
            for number, record in enumerate(open_records(self._config, stream, found)):
                if number % _CHUNK == 0:
                    keep()
                yield record

    def _read_view(self, trace: ViewTrace, keep: Keep) -> Rows:
        keep()
        topic = trace.view.format == "topic"
        if is_remote(self._events.root if topic else self._config.pipeline.files):
            return ()  # listed as missing
        if not topic:
            return read_rows(self._config.pipeline.folder / trace.view.name, trace)
        if trace.stream.source is not None:
            return ()  # a topic of Kafka, listed as missing
        found = (json.loads(it.value) for it in self._events.topic(trace.view.topic).read())
        return (row for row in found if isinstance(row, dict) and trace.is_about(row))

    def _list_missing(self, definitions: DefinitionSet) -> Iterator[dict[str, str]]:
        for name in find_absent(self._config, definitions):
            yield {"place": name, "reason": ABSENT}
        for name, stream in sorted(definitions.of(Stream).items()):
            if stream.subject is None:
                yield {"place": name, "reason": "the stream does not say whom records are about"}
            elif _has_files(stream):
                yield {"place": name, "reason": "files of a folder that others write"}
        for trace in trace_views(definitions, self._secret(), "-"):
            name = f"view {trace.view.name}"
            if trace.value is None:
                yield {"place": name, "reason": "its records do not tell whose they are"}
            elif trace.view.format == "topic" and trace.stream.source is not None:
                yield {"place": name, "reason": "a topic of Kafka, made of the stream"}
        yield {"place": "audit-log", "reason": "entries under a pseudonym: `audit tail` shows them"}
        yield {"place": "services", "reason": "each answers for what it keeps"}

    def _conclude(
        self, request: str, subscriber: str, person: str, content: Mapping[str, Any]
    ) -> None:
        pseudonym = self._people.person(person)

        def record(connection: Connection, digest: str) -> Head:
            entry = Entry.make(
                "rights.exported", AuditOutcome.DONE, subject=pseudonym, request=request,
                digest=digest,
            )  # fmt: skip
            return self._log.append_within(connection, [entry])

        self.book.conclude(request, subscriber, content, record)

    def _secret(self) -> bytes | None:
        key = self._config.pipeline.key
        return key.read() if key.path.exists() else None


def hand_over(config: Config, request: str, target: Path, record: Callable[[], None]) -> None:
    """Bring the package of a request to a file of the caller's, and keep it no longer.

    `record` puts it into the audit log, before anything is handed over.
    """
    path = config.rights.package(request)
    if not path.exists():
        raise UsageError(
            "there is no package of this request: it is not done, or was handed over",
            fix="`penstock requests show`; or hand the request in again, under another key",
        )
    record()
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".export-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(path.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync(target.parent)
    path.unlink()


def _has_files(stream: Stream) -> bool:
    return stream.source is not None and stream.source.files is not None


def _dump(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, default=str)


def _add(package: zipfile.ZipFile, name: str, rows: Rows) -> dict[str, Any]:
    digest, count = hashlib.sha256(), 0
    with tempfile.TemporaryFile() as held:
        for row in rows:
            line = _dump(row).encode(errors="surrogatepass") + b"\n"
            digest.update(line)
            held.write(line)
            count += 1
        if count:
            held.seek(0)
            with package.open(name, "w") as file:
                while piece := held.read(1 << 20):
                    file.write(piece)
    return {"name": name, "records": count, "sha256": digest.hexdigest()}

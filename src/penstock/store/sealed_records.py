"""Records of event logs under keys of this installation: of key groups, and of people.

    value ──▶ sealed as at the broker (`sealed`) ──▶ under the key of its person (`erasure: shred`)
    key   ──▶ the mark of the person, where either is so

Rules that hold here:
- Both layers take their keys from the one store of wrapped keys: what is destroyed there opens
  nothing any more, at no process.
- What cannot be sealed is recorded as unread, without what it said.
- A record for which no key is held reads as `CLOSED`, and one that is not as its stream is sealed
  as `FORGED`: neither is a record to anybody.
- Tasks of Spark get an address: where the store is, and what unwraps keys. The private key of
  the domain stays with who started them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from penstock.clock import utc_now
from penstock.config import Config
from penstock.errors import PenstockError, UnavailableError, quote
from penstock.json_text import CLOSED, ERASED, FORGED, UNREAD
from penstock.model.kinds import EventType, Stream
from penstock.store.database import Database
from penstock.store.definitions.documents import load_current
from penstock.store.keys import GroupKeys, KeyWrapping, PersonKeys, group_wrapping
from penstock.store.opt_outs import SubjectMarks
from penstock.trust.key_ring import GroupKey, KeyRing
from penstock.trust.sealed_events import (
    AS_RECORD,
    ClosedEventError,
    EventLayout,
    find_layouts,
    open_event,
    seal_event,
)
from penstock.trust.sealed_messages import Opener, Sealer

GRACE: Final = 300_000
SKEW: Final = 60_000
_LONGEST: Final = 1 << 60
"""Keys open records for as long as the store has them."""
_UNSEALED: Final = UNREAD + b"it could not be sealed"
_OPEN_LIMIT: Final = 4
T = TypeVar("T")


class Layers(NamedTuple):
    """How the records of a stream are sealed, from the inside."""

    topic: str
    event: EventLayout | None
    shredded: bool

    def __bool__(self) -> bool:
        """Say whether they are."""
        return self.event is not None or self.shredded


class RecordKeys:
    """Seals and opens records. Used by one thread."""

    def __init__(
        self, database: Database, consent: bytes | None, groups: KeyWrapping | None
    ) -> None:
        self._people = PersonKeys(database, consent) if consent is not None else None
        self._marks = SubjectMarks(consent) if consent is not None else None
        self._groups = GroupKeys(database, groups) if groups is not None else None
        self._changes = -1
        self._ring = KeyRing(grace=GRACE, delay=_LONGEST, skew=SKEW)
        self._sealer = Sealer(self._ring, os.urandom)
        self._opener = Opener(self._ring)

    def seal(
        self, layers: Layers, people: Sequence[bytes], values: Sequence[bytes], most: int
    ) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Return marks in the place of people, and the values sealed, none longer than `most`."""
        if layers.event is not None:
            self._look()
            now = _now()
            values = [self._seal(layers.topic, layers.event, it, now, most) for it in values]
        if layers.shredded:
            return _needed(self._people).seal(layers.topic, people, values, most)
        marks = _needed(self._marks) if any(people) else None
        return [marks.of(it.decode()).encode() if marks and it else b"" for it in people], values

    def _seal(self, topic: str, event: EventLayout, value: bytes, now: int, most: int) -> bytes:
        try:
            sealed = seal_event(self._sealer, event, topic, value, now, AS_RECORD)
        except PenstockError:
            return _UNSEALED
        return sealed if len(sealed) <= most else _UNSEALED

    def open(self, layers: Layers, values: Sequence[bytes | None]) -> list[bytes | None]:
        """Return values as they were written, or why they do not open."""
        opened = list(values)
        if layers.shredded:
            opened = _needed(self._people).open(layers.topic, opened)
        if layers.event is None:
            return opened
        if self._groups is None:
            return [CLOSED if it else it for it in opened]
        self._look()
        now = _now()
        return [self._open(layers.topic, layers.event, it, now) for it in opened]

    def _open(self, topic: str, event: EventLayout, value: bytes | None, now: int) -> bytes | None:
        if not value or value.startswith((ERASED, _UNSEALED)):
            return value
        try:
            return open_event(self._opener, event, topic, value, now, AS_RECORD)
        except ClosedEventError:
            return CLOSED
        except PenstockError:
            return FORGED

    def _look(self) -> None:
        """Take over what changed among the keys of groups since the last look."""
        keys = _needed(self._groups)
        changes = keys.changes()
        if changes == self._changes:
            return
        self._changes, held = changes, keys.keys()
        self._ring.take([GroupKey(*it) for it in held])


class KeyAddress:
    """The keys of an installation by the address of its database: each process opens it itself.

    Tasks of Spark get it within the functions they run.
    """

    def __init__(self, url: str, consent: bytes | None, groups: KeyWrapping | None) -> None:
        self._place = (url, consent, groups)

    @classmethod
    def of(cls, config: Config) -> KeyAddress:
        """Return where the keys are that the settings name."""
        consent, domain = config.consent.key, config.trust.key
        return cls(
            config.store.connection_url(),
            consent.read() if consent.path.exists() else None,
            group_wrapping(domain) if domain.path.exists() else None,
        )

    def __repr__(self) -> str:
        return "KeyAddress()"

    def keys(self) -> RecordKeys:
        """Return the keys, opened in this process."""
        return _open_for(*self._place, os.getpid())

    def layers(self, stream: Stream) -> Layers:
        """Return how the records of a stream are sealed, as the definitions in force say."""
        if stream.sealed is None:
            return Layers(stream.topic, None, stream.erasure == "shred")
        with Database.open(self._place[0]) as database, database.read() as connection:
            held = load_current(connection).snapshot.documents
        types = [it for key, it in held.items() if key.kind == EventType.kind]
        if all(it.name != stream.event_type for it in types):
            raise UnavailableError(
                f"the store does not know {quote(stream.event_type or '')}, the event type of "
                f"{quote(stream.name)}, whose records are sealed",
                fix="apply the event type",
            )
        layout = find_layouts([stream], types)[stream.name]
        return Layers(stream.topic, layout, stream.erasure == "shred")

    def open(self, layers: Layers, values: Sequence[bytes | None]) -> list[bytes | None]:
        """Return values as they were written; see `RecordKeys.open`."""
        return self.keys().open(layers, values)


@lru_cache(_OPEN_LIMIT)
def _open_for(
    url: str, consent: bytes | None, groups: KeyWrapping | None, process: int
) -> RecordKeys:
    # By process, because a connection does not survive a fork.
    del process
    return RecordKeys(Database.open(url), consent, groups)


def _needed(keys: T | None) -> T:
    if keys is None:
        raise UnavailableError(
            "records are sealed, and the keys of this installation are not there",
            fix="run it with the settings of the installation: `consent.key` and `trust.key`",
        )
    return keys


def _now() -> int:
    return int(utc_now().timestamp() * 1000)

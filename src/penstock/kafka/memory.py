"""What the cluster was last brought to, remembered outside the database.

Rules that hold here:
- The database has its own note of it, but a database that is set back sets its note back, too.
  Then only memory, and after a restart the file, tells which users may still be at the cluster.
- Where another process of the same history went further, that is what is remembered from then on.
- The file names users and no secret; its mode is 0600 all the same, and it stands beside the key of
  the credentials. It is whole at every moment.
- A file that is missing tells nothing; one that is unreadable is reported and tells nothing.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from penstock.errors import UsageError
from penstock.kafka.acls import principals_of
from penstock.store.definitions.documents import Snapshot
from penstock.store.definitions.history import Definitions
from penstock.store.kafka_users import KafkaUsers
from penstock.telemetry import get_logger

_LIMIT = 100_000_000
_log = get_logger("kafka")


@dataclass(frozen=True, slots=True)
class Reached:
    """The epoch that the cluster was brought to, and whose users it then had."""

    epoch: int
    mark: str
    users: frozenset[str]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """Return what these definitions bring to a cluster."""
        users = frozenset(
            name
            for key, document in snapshot.documents.items()
            if key.kind == "user"
            for name in principals_of(key.name, document.body.get("certificate"))
        )
        return cls(snapshot.epoch, snapshot.mark, users)


class ReachedFile:
    """The file, and what it holds."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Reached | None:
        """Read what was noted last."""
        try:
            with self._path.open() as file:
                document = json.loads(file.read(_LIMIT))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("the note of what Kafka has cannot be read", error=error)
            return None
        match document:
            case {"epoch": int(epoch), "mark": str(mark), "users": list(users)}:
                return Reached(epoch, mark, frozenset(it for it in users if isinstance(it, str)))
        _log.warning("the note of what Kafka has is not one")
        return None

    def save(self, reached: Reached) -> None:
        """Note what the cluster has; that it cannot be noted is no reason to undo it."""
        document = {"epoch": reached.epoch, "mark": reached.mark, "users": sorted(reached.users)}
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            beside.touch(mode=0o600)
            beside.write_text(json.dumps(document) + "\n")
            beside.replace(self._path)
        except OSError as error:
            _log.error("what Kafka has cannot be noted outside the database", error=error)


class ClusterMemory:
    """Remembers what the cluster has, and notices a store that tells another history."""

    def __init__(
        self,
        definitions: Definitions,
        users: KafkaUsers,
        own: frozenset[str],
        file: ReachedFile | None = None,
    ) -> None:
        self._definitions = definitions
        self._users = users
        self._own = own
        self._file = file
        self._known = file.load() if file is not None else None
        self._had: Snapshot | None = None  # saves reading it again
        self._distrusted = False  # the store's own note of what the cluster has is too old

    def is_set_back(self) -> bool:
        """Say whether the store tells another history than the cluster was brought to.

        Its own note of what the cluster has is then as old as the rest of it.
        """
        known = self._known
        progress = self._users.progress()
        if self._distrusted or known is None or progress.mark == known.mark:
            return self._distrusted
        if self._snapshot_at(known.epoch, known.mark) is not None:
            if progress.epoch > known.epoch:
                reached = self._snapshot_at(progress.epoch, progress.mark)
                if reached is not None:
                    self.remember(reached)
            return False
        _log.warning("the store was set back to another history", epoch=known.epoch)
        # Users of then may be at the cluster, and the store does not know of them any more.
        self._users.register(known.users - self._own)
        self._had = None
        self._distrusted = True
        return True

    def recall(self, identity: str) -> Snapshot | None:
        """Return the definitions that this cluster has, if that is known."""
        progress = self._users.progress()
        if self._distrusted or progress.cluster != identity or progress.epoch < 0:
            return None
        if self._had is not None and self._had.mark == progress.mark:
            return self._had
        return self._snapshot_at(progress.epoch, progress.mark)

    def remember(self, snapshot: Snapshot) -> None:
        """Take note that the cluster has all of these definitions."""
        self._distrusted = False
        self._had = snapshot
        if self._known is None or self._known.mark != snapshot.mark:
            self._known = Reached.of(snapshot)
            if self._file is not None:
                self._file.save(self._known)

    def _snapshot_at(self, epoch: int, mark: str) -> Snapshot | None:
        """Return the definitions of an epoch, if the store has it and it is of this history."""
        try:
            snapshot = self._definitions.snapshot_at(epoch)
        except UsageError:
            return None  # it has no such epoch
        return snapshot if snapshot.mark == mark else None

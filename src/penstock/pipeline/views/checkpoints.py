"""Spark's checkpoints of views: whose they are, how far they go, and how a view leaves one.

    .checkpoints/STREAM/NAME/    offsets, commits, sources, metadata: Spark's own
                    penstock.json    which stream and source it belongs to: ours
    VIEW/place.json                  which checkpoint a view goes by, and from which batch on

Rules that hold here:
- Only Spark's checkpoint says what was read. A batch of a view is known by the name of the
  checkpoint and Spark's number of the batch: what comes again under the same is passed over.
- Views share a checkpoint as long as they have the same batches. One that misses a batch goes
  on with a copy that ends where it ended; views whose copies end at the same place may share
  one again.
- A stateful view has a checkpoint of its own, with its state.
- A checkpoint that is damaged, or of another view, stream or source, is refused with the reason.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from penstock.errors import UnavailableError, UsageError, quote
from penstock.hadoop import copy_folder, remove, write_whole
from penstock.pipeline.sinks.commits import Batch, ViewFolder
from penstock.pipeline.sources.files import FILES, forget_files, seen_files

PLACE: Final = "place.json"
OWNER: Final = "penstock.json"
_VERSION: Final = "v1"
_HEAD: Final = 2
"""Lines before the offsets of sources: the version, and what Spark says of the batch."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which checkpoint a view goes by, and the newest batch of it that the view has."""

    checkpoint: str
    batch: int = -1


def read_place(view: Path) -> Place | None:
    """Return where a view goes on, if it has begun."""
    try:
        return Place(**json.loads((view / PLACE).read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise UnavailableError(
            f"{quote(view / PLACE)} cannot be read", fix=f"restore it, or move {view} away"
        ) from None


def write_place(view: Path, place: Place) -> None:
    """Let a view go on there; holds once this returns."""
    write_whole(view / PLACE, json.dumps(asdict(place)).encode())


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose records a checkpoint tells the places of."""

    stream: str
    source: str
    """Names the source for good: another topic or folder has another."""
    view: str | None = None
    """The one view that it belongs to, where it holds state."""
    partitions: int = 0
    """How many partitions that state has, for good."""
    start: str = ""
    """Where it begins in the source, in Spark's words; empty: at the beginning."""


class Checkpoint:
    """A folder that Spark keeps a query's progress in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name

    @classmethod
    def make(cls, parent: Path, owner: Owner) -> Checkpoint:
        """Begin a checkpoint, at the beginning of the source."""
        made = cls(parent / secrets.token_hex(8))
        made.folder.mkdir(mode=0o700, parents=True)
        made.claim(owner)
        return made

    def claim(self, owner: Owner) -> None:
        """Say whose it is."""
        write_whole(self.folder / OWNER, json.dumps(asdict(owner)).encode())

    @property
    def owner(self) -> Owner:
        """Whose it is."""
        try:
            return Owner(**json.loads((self.folder / OWNER).read_bytes()))
        except FileNotFoundError:
            raise self._damaged("is not there, or not one of Penstock's") from None
        except (ValueError, TypeError):
            raise self._damaged("does not say whose it is") from None

    @property
    def committed(self) -> int:
        """The newest batch that Spark has noted as done; -1 where there is none."""
        return max(self._numbers("commits"), default=-1)

    @property
    def planned(self) -> int:
        """The newest batch that Spark has begun; -1 where there is none."""
        return max(self._numbers("offsets"), default=-1)

    def check(self, owner: Owner) -> None:
        """Raise unless the checkpoint is whole, and belongs to this owner."""
        found = self.owner
        if (found.stream, found.view) != (owner.stream, owner.view):
            raise UsageError(
                f"the checkpoint {quote(self.folder)} belongs to "
                f"{_describe(found)}, and not to {_describe(owner)}",
                fix="put the view's own checkpoint back, or move the view's folder away",
            )
        if found.source != owner.source:
            raise UsageError(
                f"the view was one of the stream {quote(owner.stream)}, which had another source",
                fix="give the view another name, or move its folder away",
            )
        planned = self.planned
        if not self.committed <= planned <= self.committed + 1:
            raise self._damaged(f"has offsets up to {planned}, commits up to {self.committed}")
        if planned >= 0:
            self.offsets(planned)

    def offsets(self, batch: int) -> str:
        """Return where a batch ends in the source, as Spark writes it."""
        path = self.folder / "offsets" / str(batch)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise self._damaged(f"has no offsets of batch {batch}") from None
        except UnicodeDecodeError:
            lines = []
        if len(lines) <= _HEAD or lines[0] != _VERSION or not _is_json(lines[_HEAD]):
            raise self._damaged(f"has offsets of batch {batch} that cannot be read")
        return lines[_HEAD]

    def position(self, batch: int) -> str:
        """Return what tells whether two checkpoints end at the same place."""
        found = self.offsets(batch)
        last = json.loads(found).get("logOffset")
        if last is None:
            return found
        names = sorted(str(it.path) for it in seen_files(self.folder) if it.number <= last)
        return hashlib.sha256("\n".join(names).encode()).hexdigest()

    def forget_planned(self) -> None:
        """Let the batch that a kill ended be planned anew; only where nobody has it."""
        number, committed = self.planned, self.committed
        if number > committed:
            # Hadoop keeps a checksum beside the file, and writes none over another.
            for name in (f".{number}.crc", str(number)):
                (self.folder / "offsets" / name).unlink(missing_ok=True)
        if committed < 0:
            # Spark begins with no state but an empty one.
            remove(self.folder / "state")
        if self.owner.source.startswith(FILES):
            # Spark notes files before it plans their batch.
            forget_files(self.folder, self.offsets(committed) if committed >= 0 else "")

    def fork(self, batch: int) -> Checkpoint:
        """Return a copy that ends with a batch; another query may go on from there."""
        owner = self.owner
        self.offsets(batch)
        made = Checkpoint(self.folder.with_name(secrets.token_hex(8)))
        made.folder.mkdir(mode=0o700)
        if (self.folder / "sources").is_dir():
            copy_folder(self.folder / "sources", made.folder / "sources")
        for kind in ("offsets", "commits"):
            (made.folder / kind).mkdir()
            for number in self._numbers(kind):
                if number <= batch:
                    content = (self.folder / kind / str(number)).read_bytes()
                    (made.folder / kind / str(number)).write_bytes(content)
        # Spark may not have noted yet that the batch is done: for those who leave, it is.
        done = made.folder / "commits" / str(batch)
        if not done.exists():
            done.write_text(f'{_VERSION}\n{{"nextBatchWatermarkMs":0}}', encoding="utf-8")
        # A query of its own, for Spark, too.
        write_whole(made.folder / "metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        made.claim(owner)
        return made

    def _numbers(self, kind: str) -> list[int]:
        try:
            return [int(it.name) for it in (self.folder / kind).iterdir() if it.name.isdigit()]
        except FileNotFoundError:
            return []

    def _damaged(self, what: str) -> UnavailableError:
        return UnavailableError(
            f"the checkpoint {quote(self.folder)} {what}",
            fix="restore it from a backup, or move the folders of its views away",
        )


def find_batch(view: Path, checkpoint: str) -> int:
    """Return the newest batch of a checkpoint that a view has; -1 where it has none."""
    place, last = read_place(view), ViewFolder(view).last()
    noted = place.batch if place is not None and place.checkpoint == checkpoint else -1
    own = last.batch if last is not None else Batch()
    return max(noted, own.number) if own.checkpoint == checkpoint else noted


def give_copy(checkpoint: Checkpoint, view: Path) -> None:
    """Let a view go on with a checkpoint of its own, from the place it has come to."""
    batch, owner = find_batch(view, checkpoint.name), checkpoint.owner
    if batch >= 0:
        write_place(view, Place(checkpoint.fork(batch).name, batch))
    elif owner.start and not owner.source.startswith(FILES):
        # It came from another checkpoint, and has had nothing of this one.
        write_place(view, Place(Checkpoint.make(checkpoint.folder.parent, owner).name))
    else:
        (view / PLACE).unlink(missing_ok=True)


def find_holders(views: Path, checkpoint: str) -> Iterator[Path]:
    """Yield the views below a folder that go by a checkpoint."""
    for view in sorted(views.iterdir()) if views.is_dir() else ():
        place = read_place(view) if (view / PLACE).is_file() else None
        if place is not None and place.checkpoint == checkpoint:
            yield view


def remove_unused(parent: Path, views: Path) -> None:
    """Remove checkpoints of a stream that no view goes by any more."""
    for folder in parent.iterdir() if parent.is_dir() else ():
        if next(find_holders(views, folder.name), None) is None:
            remove(folder)


def _describe(owner: Owner) -> str:
    return f"the {'view' if owner.view else 'stream'} {quote(owner.view or owner.stream)}"


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False

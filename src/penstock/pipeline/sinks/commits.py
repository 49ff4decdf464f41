"""What a view has published, batch by batch, each all or nothing.

    .taking-back         stands here until all that was published is gone
    commits.jsonl        one line per batch: this line makes it count
    dead/                the records that could not be published: their places and reasons
    files.json           where the files are, if not here

    here, or at a store that all nodes of a cluster reach:
    .staging/SEQUENCE/   what a batch wrote, before it counts
    data/                the published files
    owner                whose files these are, at a store

Rules that hold here:
- A batch counts from the moment its line is on the disk, as a whole. Its files are brought
  to the disk before, and to their places after; a crash between is mended on opening.
- `data` never holds a file that does not count, so that anyone may read it as a table.
- What counts is then delivered, where the view's records are read elsewhere than here; the
  newest batch once more on opening, since a crash may have come between.
- One process at a time writes a view; a second one is refused. At a store a file tells whose view
  it is, put there only where there is none: two installations cannot write the same files.
- A store may rename by copying: each file is renamed once, by itself, and again after a kill.
- A batch of Spark's is in one commit; Spark's number in it makes a repeat known.
- What a view holds back is in Spark's state store, under the checkpoint of its query.
- What was published can be taken back (`take_back`). A mark stands in the folder until that is done
  as a whole: nothing is published meanwhile, also after a crash.
- What is not for readers (commits, dead letters) only its owner can read, wherever
  the folder is copied to.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final, Protocol, Self, TypeAlias

from penstock.errors import UnavailableError, UsageError, quote
from penstock.eventlog.files import find_end
from penstock.hadoop import read_path, remove, sync, write_new, write_whole

COMMITS: Final = "commits.jsonl"
TAKING_BACK: Final = ".taking-back"
FILES: Final = "files.json"
OWNER: Final = "owner"
DIGITS: Final = 12
PART: Final = "part-"
"""Begins the name of a file that was staged."""
OWN: Final = 0o600
_STAYS: Final = frozenset({"wanted.json", "condition.json", ".lock", ".erasing.lock", TAKING_BACK})
"""What is not a part of what a view has published, nor of where it stands."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What became of records, in all batches so far."""

    read: int = 0
    published: int = 0
    rejected: int = 0
    loss: float = 0.0
    """The sum of what generalization lost of published records, from 0 to 1 each."""

    def add(self, other: Totals) -> Totals:
        """Return the sum."""
        return Totals(
            self.read + other.read,
            self.published + other.published,
            self.rejected + other.rejected,
            self.loss + other.loss,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of Spark's: the checkpoint that numbers it, its number, where it ends."""

    checkpoint: str = ""
    number: int = -1
    place: str = ""
    """Where it ends in the source, in Spark's words; for those who want to know."""


ShardCount: TypeAlias = tuple[int, int | None]
"""How many records a shard holds back, and when the clock lets some of them go, if it does."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One batch that counts."""

    sequence: int
    plan: str
    """Names the definitions that the batch was made by."""
    batch: Batch = Batch()
    """The newest batch of Spark's that is in the view."""
    files: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    held: int = 0
    """How many records the view holds back."""
    due: int | None = None
    """When the clock lets some of them go, if it does."""
    shards: Mapping[str, ShardCount] = field(default_factory=dict)
    """The same for each shard of a stateful view, as it said last."""
    at: int = 0
    totals: Totals = Totals()
    format: str = "parquet"
    """How the files are written, and which way their records leave."""
    begin: int = 0
    """Where the batch begins in the store that it is delivered to."""
    mark: str = ""
    """What else is true from this commit on, in the words of who writes it."""

    def to_line(self) -> bytes:
        """Write the commit as a line."""
        return json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Read a line."""
        data: dict[str, Any] = json.loads(line)
        if "batch" not in data:
            # Of a version whose views kept offsets of their own: no checkpoint tells its place.
            del data["next"]
            data |= {"batch": {"number": 0}, "shards": {}}
        data["totals"], data["batch"] = Totals(**data["totals"]), Batch(**data["batch"])
        data["files"], data["dead"] = tuple(data["files"]), tuple(data["dead"])
        data["shards"] = {key: (held, due) for key, (held, due) in data["shards"].items()}
        return cls(**data)


class ViewFolder:
    """What a view has published, for those who read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dead = folder / "dead"

    @property
    def files(self) -> Path:
        """Where its files are."""
        told = self._told()
        return read_path(told["at"]) if told is not None else self.folder

    @property
    def data(self) -> Path:
        """Where the published files are."""
        return self.files / "data"

    def _told(self) -> dict[str, str] | None:
        try:
            found: dict[str, str] = json.loads((self.folder / FILES).read_bytes())
        except FileNotFoundError:
            return None
        return found

    def last(self) -> Commit | None:
        """Return the newest commit."""
        path = self.folder / COMMITS
        if not path.exists():
            return None
        with path.open("rb") as file:
            end = find_end(file)
            line = _last_line(file, end)
        return Commit.from_line(line) if line else None

    def commits(self) -> Iterator[Commit]:
        """Yield all commits, oldest first."""
        path = self.folder / COMMITS
        if path.exists():
            with path.open("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        yield Commit.from_line(line)

    def tail(self, limit: int = 1 << 20) -> list[Commit]:
        """Return the newest commits, oldest first: as many as so many bytes of the log hold."""
        path = self.folder / COMMITS
        if not path.exists():
            return []
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - limit)
            file.seek(begin)
            lines = file.read(limit).splitlines(keepends=True)
        whole = lines[1:] if begin else lines
        return [Commit.from_line(it) for it in whole if it.endswith(b"\n")]

    def dead_letters(self) -> Iterator[dict[str, Any]]:
        """Yield the records that could not be published: offset and reason."""
        for commit in self.commits():
            for name in commit.dead:
                with (self.dead / name).open("rb") as file:
                    for line in file:
                        yield json.loads(line)


class Deliver(Protocol):
    """Shows what a commit made count; see `sinks.sink`."""

    def __call__(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        """Add what is not there yet."""


class ViewWriter(ViewFolder):
    """What a view has published, for the one who publishes."""

    def __init__(
        self, folder: Path, deliver: Deliver | None = None, store: Path | None = None
    ) -> None:
        """Take the view's folder, and where its files are to be, if not there."""
        super().__init__(folder)
        self._deliver = deliver
        self._store = store if store != folder else None
        self._lock: IO[bytes] | None = None
        self.newest: Commit | None = None

    def open(self) -> Commit | None:
        """Take the view, mend what a crash left, and return the newest commit."""
        for folder in (self.folder, self.dead):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = lock_view(self.folder)
        try:
            self._settle()
            self._mend()
        except BaseException:
            self.close()
            raise
        return self.newest

    def _settle(self) -> None:
        """Make sure that the view's files are where they are to be, and are its own."""
        told = self._told()
        if told is None and self._store is not None and self.last() is None:
            told = {"at": str(self._store), "owner": secrets.token_hex(16)}
            write_whole(self.folder / FILES, json.dumps(told).encode())
        files = self.files
        if files != (self._store or self.folder):
            raise UsageError(
                f"the files of the view in {self.folder} are at {quote(files)}, and pipeline.store "
                f"says {quote(self._store or 'nothing')}",
                fix="put the setting back, or move the view's folder away",
            )
        (files / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
        if told is None:
            return
        owner = files / OWNER
        if not owner.exists():
            with suppress(FileExistsError):
                write_new(owner, told["owner"].encode())
        if owner.read_bytes() != told["owner"].encode():
            raise UsageError(
                f"the files at {quote(files)} are of another installation's view",
                fix="give pipeline.store a folder of its own, or move what is there away",
            )

    def _mend(self) -> None:
        if (self.folder / TAKING_BACK).exists():
            raise UnavailableError(
                f"taking back what the view in {self.folder} published was interrupted",
                fix="repeat `penstock views erase` or `penstock views rebuild`",
            )
        self._cut_torn_line()
        self.newest = self.last()
        if self.newest is not None:
            self._place(self.newest, again=True)
        self._clear()

    def close(self) -> None:
        """Release the view."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def sequence(self) -> int:
        """The number of the next batch."""
        return 0 if self.newest is None else self.newest.sequence + 1

    def stage(self) -> Path:
        """Return an empty folder for the files of the next batch: `data` in it."""
        folder = self.files / ".staging" / str(self.sequence)
        remove(folder)
        folder.mkdir(mode=0o700, parents=True)
        return folder

    def commit(self, commit: Commit, letters: Sequence[Mapping[str, Any]] = ()) -> Commit:
        """Make what was staged count, and with it the dead letters."""
        staged = self.files / ".staging" / str(commit.sequence) / "data"
        files = sorted(path for path in staged.glob(f"{PART}*") if path.is_file())
        stem = f"{commit.sequence:0{DIGITS}}"
        whole = replace(
            commit,
            # The name tells which of the staged files it was.
            files=tuple(f"{stem}-{path.name.removeprefix(PART)}" for path in files),
            dead=(f"{stem}.jsonl",) if letters else (),
        )
        for path in files:
            sync(path)
        for name in whole.dead:
            # Counts when the commit does, which names it; what a crash left is written over.
            lines = (json.dumps(it, ensure_ascii=False) + "\n" for it in letters)
            write_whole(self.dead / name, "".join(lines).encode())
            sync(self.dead)
        with open(self.folder / COMMITS, "ab", opener=_open_own) as log:
            log.write(whole.to_line())
            log.flush()
            os.fsync(log.fileno())
        self.newest = whole
        self._place(whole)
        self._clear()
        return whole

    def _place(self, commit: Commit, *, again: bool = False) -> None:
        """Bring the files of a commit to their places, as far as they are not there yet."""
        data = self.data
        staged = data.with_name(".staging") / str(commit.sequence) / "data"
        for name in commit.files:
            source = staged / f"{PART}{name[DIGITS + 1 :]}"
            if not again or source.exists():
                source.rename(data / name)
        if commit.files:
            sync(data)
        if self._deliver is not None:
            self._deliver(commit, [data / name for name in commit.files], again=again)

    def _clear(self) -> None:
        """Remove what does not count."""
        remove(self.files / ".staging")

    def _cut_torn_line(self) -> None:
        path = self.folder / COMMITS
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(find_end(file))


def lock_view(folder: Path) -> IO[bytes]:
    """Be the one process that writes a view, until the file is closed."""
    lock = (folder / ".lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UnavailableError(
            f"the view in {folder} is written by another process",
            fix="stop the other `penstock views run`",
        ) from None
    return lock


def take_back(folder: ViewFolder, elsewhere: Callable[[], None], *, anew: bool) -> int:
    """Remove all that a view has published; return the number of its files.

    The caller has the view locked. `elsewhere` removes what was delivered to other places. The
    view goes on behind what it has read; or, `anew`, it begins with the first record of its stream.
    """
    mark = folder.folder / TAKING_BACK
    mark.touch(mode=OWN)
    sync(folder.folder)
    elsewhere()
    last = folder.last()
    files = sum(1 for path in folder.data.rglob("*") if path.is_file())
    for name in ("data", ".staging"):
        remove(folder.files / name)
    if anew or last is None:
        for path in folder.folder.iterdir():
            if path.name not in _STAYS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    else:
        kept = replace(last, files=(), dead=(), totals=Totals())
        partial = folder.folder / f".{COMMITS}"
        with open(partial, "wb", opener=_open_own) as log:
            log.write(kept.to_line())
            log.flush()
            os.fsync(log.fileno())
        partial.replace(folder.folder / COMMITS)
        for name in ("dead", "persons"):
            shutil.rmtree(folder.folder / name, ignore_errors=True)
    sync(folder.folder)
    mark.unlink()
    return files


def _last_line(file: IO[bytes], end: int) -> bytes:
    step = 1 << 12
    while end:
        start = max(0, end - step)
        file.seek(start)
        piece = file.read(end - start)
        found = piece.rfind(b"\n", 0, -1)
        if found >= 0 or start == 0:
            return piece[found + 1 :]
        step *= 4
    return b""


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags, OWN)

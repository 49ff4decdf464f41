"""Paths at file systems that Hadoop knows: `hdfs://HOST:PORT/…`, `s3a://BUCKET/…` and others.

    HadoopPath ─ py4j ─▶ org.apache.hadoop.fs.FileSystem of the Java process that Spark runs in

Rules that hold here:
- Such a path is used as any other; what it cannot do it refuses. Nothing takes it for a path of
  this machine: `open()` and `os` do not accept it.
- Who has a Java process gives it (`use_java`), and it is asked for when a file is touched, not
  before: settings may name such paths where no Java is.
- A file is written as a whole. It gets its name by what Spark writes its checkpoints with
  (`CheckpointFileManager`), so that nobody meets half of one, and we rely on no more of a file
  system than Spark does. Nothing is appended to, and nothing is changed in place.
- An object store renames by copying. `rename` may be repeated after a kill; it replaces a copy.
- One process writes to a place; see `penstock.pipeline.sinks.commits`.
"""

from __future__ import annotations

import errno
import fnmatch
import io
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from penstock.errors import UnavailableError

if TYPE_CHECKING:
    from pathlib import PosixPath as _LocalPath
else:
    _LocalPath = type(Path())

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:")
_LOCAL: Final = "file:"
_BUFFER: Final = 1 << 18
_PIECE: Final = 1 << 22
_OWN: Final = 0o600
_BASE: Final = 1000
_ERRORS: Final = {
    "FileNotFoundException": errno.ENOENT,
    "FileAlreadyExistsException": errno.EEXIST,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "AccessControlException": errno.EACCES,
    "AccessDeniedException": errno.EACCES,
}


def read_path(text: str | Path) -> Path:
    """Return a path of this machine, or of a file system that Hadoop knows."""
    path = Path(text)
    if isinstance(path, HadoopPath) or not path.parts or not _SCHEME.fullmatch(path.parts[0]):
        return path
    if path.parts[0] == _LOCAL:
        return Path("/", *path.parts[1:])
    return HadoopPath(*path.parts)


def is_remote(path: Path) -> bool:
    """Whether a path is of another file system than this machine's."""
    return isinstance(path, HadoopPath)


def use_java(connect: Callable[[], tuple[Any, Any]]) -> None:
    """Say where Hadoop is: its Java process, and the settings that it takes."""
    _Hadoop.connect = staticmethod(connect)


class _Hadoop:
    """What is needed of the Java process; looked up once for each."""

    connect: Callable[[], tuple[Any, Any]] | None = None
    _known: tuple[Any, _Hadoop] | None = None

    def __init__(self, java: Any, settings: Any) -> None:
        self.settings = settings
        hadoop = java.org.apache.hadoop.fs
        self.path = hadoop.Path
        self.permission = hadoop.permission.FsPermission
        self.statuses = hadoop.FileUtil
        self.sequences = java.scala.collection.immutable.ArraySeq
        streaming = java.org.apache.spark.sql.execution.streaming.checkpointing
        self._managers = getattr(getattr(streaming, "CheckpointFileManager$"), "MODULE$")

    @classmethod
    def of(cls) -> _Hadoop:
        if cls.connect is None:
            raise UnavailableError(
                "files of hdfs: and other file systems of Hadoop are reached through Spark, which "
                "does not run here",
                fix="run this where the pipeline runs, or keep these files in a folder",
            )
        java, settings = cls.connect()
        if cls._known is None or cls._known[0] is not java:
            cls._known = java, cls(java, settings)
        cls._known[1].settings = settings
        return cls._known[1]

    def manager(self, path: Any) -> Any:
        """Return what Spark writes checkpoints with."""
        return self._managers.create(path, self.settings)


class HadoopPath(_LocalPath):
    """A file or folder at a file system that Hadoop knows."""

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    def __fspath__(self) -> str:
        raise TypeError(f"{self} is no path of this machine")

    def __repr__(self) -> str:
        return f"HadoopPath({str(self)!r})"

    @contextmanager
    def _at(self) -> Iterator[tuple[_Hadoop, Any, Any]]:
        """Give Hadoop, the file system and the path; its errors become those of Python."""
        hadoop = _Hadoop.of()
        try:
            path = hadoop.path(str(self))
            yield hadoop, path.getFileSystem(hadoop.settings), path
        except Exception as error:
            found = getattr(error, "java_exception", None)
            if found is None:
                raise
            kind = found.getClass().getSimpleName()
            told = str(found.getMessage()).partition("\n")[0]
            number = _ERRORS.get(kind, errno.EIO)
            words = os.strerror(number) if kind in _ERRORS else f"{kind}: {told}"
            raise OSError(number, words, str(self)) from None

    # --- what is there ---

    def is_absolute(self) -> bool:
        """Say so."""
        return True

    def absolute(self) -> HadoopPath:
        """Return the same path."""
        return self

    def expanduser(self) -> HadoopPath:
        """Return the same path."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002
        """Return kind, size and time of change."""
        with self._at() as (_, system, path):
            found = system.getFileStatus(path)
            kind = stat.S_IFDIR if found.isDirectory() else stat.S_IFREG
            mode = kind | int(found.getPermission().toShort())
            changed = found.getModificationTime() / _BASE
            return os.stat_result((mode, 0, 0, 1, 0, 0, found.getLen(), changed, changed, changed))

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Whether something is there."""
        with self._at() as (_, system, path):
            return bool(system.exists(path))

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Whether it is a folder."""
        with suppress(FileNotFoundError):
            return stat.S_ISDIR(self.stat().st_mode)
        return False

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        """Whether it is a file."""
        with suppress(FileNotFoundError):
            return stat.S_ISREG(self.stat().st_mode)
        return False

    def iterdir(self) -> Iterator[HadoopPath]:  # type: ignore[override]
        """Yield what is in a folder."""
        with self._at() as (hadoop, _, path):
            # One answer for all names: each call takes a while.
            paths = hadoop.statuses.stat2Paths(hadoop.manager(path).list(path))
            told = hadoop.sequences.unsafeWrapArray(paths).mkString("\n")
        for it in told.split("\n") if told else ():
            yield self / it.rpartition("/")[2]

    def glob(self, pattern: str, **_: Any) -> Iterator[HadoopPath]:  # type: ignore[override]
        """Yield what is in a folder and has such a name."""
        try:
            names = list(self.iterdir())
        except FileNotFoundError:
            return
        yield from (it for it in names if fnmatch.fnmatchcase(it.name, pattern))

    def rglob(self, pattern: str, **_: Any) -> Iterator[HadoopPath]:  # type: ignore[override]
        """Yield what is below a folder and has such a name."""
        for it in list(self.glob("*")):
            if fnmatch.fnmatchcase(it.name, pattern):
                yield it
            if it.is_dir():
                yield from it.rglob(pattern)

    def open(  # type: ignore[override]
        self,
        mode: str = "r",
        buffering: int = -1,  # noqa: ARG002
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Open a file to read it."""
        if mode not in {"r", "rb"}:
            raise io.UnsupportedOperation(f"{self} is written as a whole")
        with self._at() as (_, system, path):
            size = system.getFileStatus(path).getLen()
            raw = _Input(system.open(path), int(size))
        binary = io.BufferedReader(raw, _BUFFER)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        """Return what a file holds."""
        with self.open("rb") as file:
            content: bytes = file.read()
        return content

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """Return what a file holds as text."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    # --- what is changed ---

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - as pathlib has it
        """Make a folder, with those above it."""
        with self._at() as (hadoop, system, path):
            if not exist_ok and system.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self))
            system.mkdirs(path, hadoop.permission(f"{mode:o}"))

    def write_bytes(self, data: Any, *, replacing: bool = True) -> int:
        """Write a file as a whole; unless it is `replacing`, nothing may be there."""
        with self._at() as (hadoop, _, path):
            target = hadoop.manager(path).createAtomic(path, replacing)
            try:
                for start in range(0, len(data), _BUFFER):
                    target.write(bytes(data[start : start + _BUFFER]))
            except BaseException:
                target.cancel()
                raise
            target.close()
        return len(data)

    def write_text(  # type: ignore[override]
        self, data: str, encoding: str | None = None, errors: str | None = None, **_: Any
    ) -> int:
        """Write a file of text as a whole."""
        return self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))

    def rename(self, target: str | os.PathLike[str]) -> HadoopPath:
        """Give a file another name; where a kill left a copy under it, that is replaced."""
        if not isinstance(target, HadoopPath):
            raise TypeError(f"{target} is elsewhere than {self}")
        with self._at() as (hadoop, system, path):
            other = hadoop.path(str(target))
            if not system.rename(path, other):
                system.delete(other, False)  # noqa: FBT003 - of Java
                if not system.rename(path, other):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return target

    replace = rename

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - as pathlib has it
        """Remove a file."""
        with self._at() as (_, system, path):
            if not system.delete(path, False) and not missing_ok:  # noqa: FBT003 - of Java
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))

    rmdir = unlink

    def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:  # noqa: ARG002
        """Say who may read a file, where the file system knows that."""
        with self._at() as (hadoop, system, path):
            system.setPermission(path, hadoop.permission(f"{mode:o}"))

    def remove(self) -> None:
        """Remove a folder with all that is in it, or a file, if it is there."""
        with self._at() as (_, system, path):
            system.delete(path, True)  # noqa: FBT003 - of Java


class _Input(io.RawIOBase):
    """A file that Hadoop reads."""

    def __init__(self, stream: Any, size: int) -> None:
        self._stream = stream
        self._size = size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        self._stream.seek(min(self._place, self._size))
        return self._place

    def readinto(self, target: Any) -> int:
        found = self._read(len(target))
        target[: len(found)] = found
        return len(found)

    def readall(self) -> bytes:
        # In few pieces: each answer of Java's takes some tens of milliseconds, whatever its size.
        return b"".join(iter(lambda: self._read(_PIECE), b""))

    def _read(self, most: int) -> bytes:
        if self._place >= self._size:
            return b""
        found: bytes = self._stream.readNBytes(min(most, self._size - self._place))
        self._place += len(found)
        return found

    def close(self) -> None:
        if not self.closed:
            with suppress(Exception):  # it was only read
                self._stream.close()
        super().close()


# --- for paths of both kinds ---


def remove(path: Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    if isinstance(path, HadoopPath):
        path.remove()
    else:
        shutil.rmtree(path, ignore_errors=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file as a whole, readable by its owner alone; it is there once this returns."""
    if isinstance(path, HadoopPath):
        path.write_bytes(content)
        return
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "wb", opener=_open_own) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_new(path: Path, content: bytes) -> None:
    """Write a file as a whole where there is none; raises `FileExistsError` where there is."""
    if isinstance(path, HadoopPath):
        path.write_bytes(content, replacing=False)
    elif path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    else:
        write_whole(path, content)


def copy_folder(source: Path, target: Path) -> None:
    """Copy the files of a folder, and of those below it."""
    target.mkdir(mode=0o700, exist_ok=True)
    for it in source.iterdir():
        if it.is_dir():
            copy_folder(it, target / it.name)
        else:
            (target / it.name).write_bytes(it.read_bytes())


def sync(path: Path) -> None:
    """Bring a file, or the names of a folder, to the disk; elsewhere they are there already."""
    if isinstance(path, HadoopPath):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags, _OWN)

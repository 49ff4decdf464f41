"""Secrets: where one is kept, never what it is.

Rules that hold here:
- A secret stands in a file that only its owner can read, or in an environment
  variable. Written into penstock.yaml itself it is refused, and never quoted.
- Settings hold the place only. The value is read when it is used, so that no dump,
  log or error of the settings can show it.
- A file that others could read is not read: the mode is checked on the opened file.
- A new file appears whole and with its mode, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from penstock.config.settings import EnvironmentText, folders_of, wrong
from penstock.errors import UnavailableError, quote

SIZE_LIMIT = 64 * 1024
OTHERS = stat.S_IRWXG | stat.S_IRWXO
SAFE_FILE = 0o600
SAFE_FOLDER = 0o700
KEY_BYTES = 32


class Secret(ABC):
    """A secret that is kept somewhere: `{file: PATH}` or `{env: NAME}`."""

    __slots__ = ()

    @abstractmethod
    def read(self) -> bytes:
        """Return the secret; raise `UnavailableError` where it cannot or must not be read."""

    def read_text(self) -> str:
        """Return the secret as text, without the line end that editors add."""
        try:
            return self.read().decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise UnavailableError(
                f"{self}: the secret is not UTF-8 text", fix="store it as UTF-8 text"
            ) from None

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            cls._validate, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def _validate(cls, value: Any, info: ValidationInfo) -> Secret:
        match value:
            case Secret():
                return value
            case EnvironmentText():
                return SecretVariable(value.variable)
            case {"file": str(path), **rest} if path and not rest:
                return SecretFile(_resolve(path, info))
            case {"env": str(name), **rest} if name and not rest:
                return SecretVariable(name)
            case dict():
                raise wrong("this does not say where the secret is", _HOW)
        raise wrong("a secret must not stand in the file itself", _HOW)


_HOW = "write {file: PATH} (a file of mode 0600) or {env: NAME}, and change a secret that was shown"


def _resolve(path: str, info: ValidationInfo) -> Path:
    if "\n" in path or "\0" in path or "-----BEGIN" in path:
        # Not quoted: whoever pasted a key here meant to keep it secret.
        raise wrong(
            "a path is expected here, and this looks like the secret itself",
            "put it into a file of mode 0600 and write the path of the file",
        )
    return folders_of(info)["data"] / Path(path).expanduser()


@dataclass(frozen=True, slots=True)
class SecretVariable(Secret):
    """A secret in an environment variable."""

    name: str

    def read(self) -> bytes:
        """Return the value of the variable."""
        value = os.environb.get(self.name.encode())
        if not value:
            raise UnavailableError(
                f"the environment variable {quote(self.name)} holds no secret",
                fix=f"set {self.name}, or name another place in penstock.yaml",
            )
        return value

    def __str__(self) -> str:
        return f"environment variable {self.name}"


@dataclass(frozen=True, slots=True)
class SecretFile(Secret):
    """A secret in a file of mode 0600 (or 0400) of our own or of root."""

    path: Path

    @classmethod
    def _validate(cls, value: Any, info: ValidationInfo) -> SecretFile:
        match value:
            case SecretFile():
                return value
            case Path():
                return cls(_resolve(str(value), info))
            case str(path) | {"file": str(path)} if path:
                return cls(_resolve(path, info))
        raise wrong("the path of a file is expected", "write the path of a file of mode 0600")

    def __str__(self) -> str:
        return f"file {self.path}"

    def read(self) -> bytes:
        """Return the content of the file, after the checks."""
        try:
            # Non-blocking, so that a named pipe in its place cannot hang us.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise UnavailableError(
                f"the secret file {quote(self.path)} cannot be read: {error.strerror}",
                fix=f"create {self.path} with mode 0600, or name another in penstock.yaml",
            ) from None
        try:
            self._check(os.fstat(descriptor))
            content = os.read(descriptor, SIZE_LIMIT + 1)
        finally:
            os.close(descriptor)
        if not 0 < len(content) <= SIZE_LIMIT:
            raise UnavailableError(
                f"the secret file {quote(self.path)} is empty or over {SIZE_LIMIT} bytes",
                fix="put the secret alone into the file",
            )
        return content

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise UnavailableError(
                f"the secret file {quote(self.path)} is not an ordinary file",
                fix="name an ordinary file",
            )
        mode = stat.S_IMODE(found.st_mode)
        if mode & OTHERS:
            raise UnavailableError(
                f"the secret file {quote(self.path)} has mode {mode:04o}: others can read it",
                fix=f"chmod 600 {self.path}, and change a secret that others may have seen",
            )
        if found.st_uid not in {os.geteuid(), 0}:
            raise UnavailableError(
                f"the secret file {quote(self.path)} belongs to user {found.st_uid}",
                fix=f"chown it to the user that runs Penstock (user {os.geteuid()})",
            )

    def create(self, content: bytes) -> bool:
        """Write a new secret file; return False, changing nothing, where one exists."""
        folder = self.path.parent
        folder.mkdir(mode=SAFE_FOLDER, parents=True, exist_ok=True)
        # Written beside its place and linked into it: a link never replaces, and no
        # reader ever sees half a key.
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, SAFE_FILE)
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            with contextlib.suppress(FileExistsError):
                os.link(name, self.path)
                return True
        finally:
            Path(name).unlink()
        return False

    def read_or_create(self, generate: Callable[[], bytes]) -> bytes:
        """Return the content, after creating the file with what `generate` makes if missing."""
        if not self.path.exists():
            self.create(generate())
        return self.read()


class KeyFile(SecretFile):
    """A secret file that Penstock makes itself where it is missing."""

    __slots__ = ()


def generate_key() -> bytes:
    """Return a new key of random bytes."""
    return secrets.token_bytes(KEY_BYTES)

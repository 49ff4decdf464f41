import os
import stat
import threading
from pathlib import Path

import pytest

from penstock.config.secrets import SIZE_LIMIT, SecretFile, SecretVariable
from penstock.errors import UnavailableError


@pytest.fixture
def secret(tmp_path: Path) -> SecretFile:
    path = tmp_path / "key"
    path.write_bytes(b"hunter2\n")
    path.chmod(0o600)
    return SecretFile(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_its_owner_alone_is_read(secret: SecretFile, mode: int) -> None:
    secret.path.chmod(mode)
    assert secret.read() == b"hunter2\n"
    assert secret.read_text() == "hunter2"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o610, 0o602])
def test_a_file_that_others_can_use_is_not_read(secret: SecretFile, mode: int) -> None:
    secret.path.chmod(mode)
    with pytest.raises(UnavailableError) as caught:
        secret.read()
    assert f"has mode {mode:04o}" in str(caught.value)
    assert f"chmod 600 {secret.path}" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_mode_of_a_links_target_counts(secret: SecretFile, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(secret.path)
    assert SecretFile(link).read_text() == "hunter2"
    secret.path.chmod(0o644)
    with pytest.raises(UnavailableError):
        SecretFile(link).read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_read(
    secret: SecretFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(secret.path, 12345, -1)
    with pytest.raises(UnavailableError, match="belongs to user 12345"):
        secret.read()


def test_what_is_no_ordinary_file_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (tmp_path, pipe):
        with pytest.raises(UnavailableError, match="is not an ordinary file"):
            SecretFile(path).read()


def test_empty_and_oversized_files_are_refused(secret: SecretFile) -> None:
    for content in (b"", b"x" * (SIZE_LIMIT + 1)):
        secret.path.write_bytes(content)
        with pytest.raises(UnavailableError, match="is empty or over"):
            secret.read()
    secret.path.write_bytes(b"x" * SIZE_LIMIT)
    assert len(secret.read()) == SIZE_LIMIT


def test_a_missing_file_names_the_fix(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"No such file.*create .* with mode 0600"):
        SecretFile(tmp_path / "none").read()


def test_a_secret_that_is_no_text_is_not_shown(secret: SecretFile) -> None:
    secret.path.write_bytes(b"\xff\xfe hunter2")
    with pytest.raises(UnavailableError) as caught:
        secret.read_text()
    assert "hunter2" not in str(caught.value)


def test_a_created_file_is_private_even_with_an_open_umask(tmp_path: Path) -> None:
    secret = SecretFile(tmp_path / "keys" / "new")
    before = os.umask(0)
    try:
        assert secret.create(b"first")
    finally:
        os.umask(before)
    assert stat.S_IMODE(secret.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(secret.path.parent.stat().st_mode) == 0o700
    assert not secret.create(b"second")
    assert secret.read() == b"first"
    assert [item.name for item in secret.path.parent.iterdir()] == ["new"]


def test_when_many_create_a_key_all_read_the_same_one(tmp_path: Path) -> None:
    secret = SecretFile(tmp_path / "keys" / "new")
    barrier = threading.Barrier(8)
    seen = []

    def run(number: int) -> None:
        barrier.wait()
        seen.append(secret.read_or_create(f"key {number}".encode))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1


def test_a_variable_is_read_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = SecretVariable("A_SECRET")
    monkeypatch.setenv("A_SECRET", "hunter2")
    assert secret.read_text() == "hunter2"
    assert "hunter2" not in f"{secret!r} {secret}"
    for value in ("", None):
        if value is None:
            monkeypatch.delenv("A_SECRET")
        else:
            monkeypatch.setenv("A_SECRET", value)
        with pytest.raises(UnavailableError, match="'A_SECRET' holds no secret"):
            secret.read()

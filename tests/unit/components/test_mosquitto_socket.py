from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from penstock.components.mosquitto import find_listener, make_private_folder
from penstock.config.loader import check, read_text
from penstock.errors import UnavailableError
from penstock.gateway.broker import BrokerAddress


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = Path.cwd()
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(before)
        made.listen(1)
        yield made


def address(path: Path) -> BrokerAddress:
    text = f"broker: {{socket: '{path}'}}"
    config = check(read_text(text.encode(), "penstock.yaml"), {}, base=path.parent)
    return BrokerAddress.of(config.broker)


@pytest.mark.parametrize("folder", ["short", "with blanks", "long/" * 40])
def test_a_socket_is_found_wherever_it_is(tmp_path: Path, folder: str) -> None:
    path = tmp_path / folder / "s.sock"
    assert find_listener(path) is None
    with listening(path):
        found = find_listener(path)
        assert found is not None
        assert (found.pid, found.user) == (os.getpid(), os.geteuid())
        assert address(path).check() is None
    assert find_listener(path) is None
    assert address(path).check() == "the broker cannot be reached at its socket"


def test_a_listener_of_another_user_is_told_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"

    async def try_it() -> None:
        await address(path).connect(asyncio.Protocol)

    with listening(path) as foreign:
        foreign.settimeout(0)
        with patch("os.geteuid", return_value=os.geteuid() + 1):
            with pytest.raises(PermissionError, match="not we"):
                asyncio.run(try_it())
            assert find_listener(path) is None
        for _ in range(2):
            client, _ = foreign.accept()
            assert client.recv(100) == b""
            client.close()


def test_who_finds_the_queue_full_waits_for_room(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"

    async def try_it(foreign: socket.socket) -> int:
        waiting = [asyncio.create_task(address(path).connect(asyncio.Protocol)) for _ in range(9)]
        await asyncio.sleep(0.05)
        assert sum(it.done() for it in waiting) < len(waiting)
        for _ in waiting:
            client, _ = await asyncio.get_running_loop().sock_accept(foreign)
            client.close()
        return len(await asyncio.gather(*waiting))

    with listening(path) as foreign:
        foreign.settimeout(0)
        assert asyncio.run(try_it(foreign)) == 9


def test_folders_of_sockets_are_private(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "made")
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
    make_private_folder(tmp_path / "made")
    for mode in (0o750, 0o701, 0o777):
        (tmp_path / "made").chmod(mode)
        with pytest.raises(UnavailableError, match="others can enter"):
            make_private_folder(tmp_path / "made")
    (tmp_path / "made").chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "made")
    with pytest.raises(UnavailableError, match="is not ours"):
        make_private_folder(tmp_path / "link")
    with (
        patch("os.geteuid", return_value=os.geteuid() + 1),
        pytest.raises(UnavailableError, match="is not ours"),
    ):
        make_private_folder(tmp_path / "made")

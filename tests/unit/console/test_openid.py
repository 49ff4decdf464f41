"""What strangers can ask of an identity provider: a little at a time, and once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from penstock.config import load
from penstock.console.openid import _PLACES, OpenId
from penstock.errors import DeniedError, UnavailableError


class Provider:
    """Takes connections, and holds them or lets them go without an answer."""

    def __init__(self, *, holds: bool) -> None:
        self.asked = 0
        self._holds = holds
        self._held: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.asked += 1
                if self._holds:
                    self._held.append(connection)
                else:
                    connection.close()

    def stop(self) -> None:
        with contextlib.suppress(OSError):  # stopped before
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for it in self._held:
            it.close()


@pytest.fixture(params=[False, True], ids=["lets go", "holds"])
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    made = Provider(holds=request.param)
    yield made
    made.stop()


def open_for(provider: Provider, folder: Path) -> OpenId:
    openid = {
        "issuer": f"http://127.0.0.1:{provider.port}",
        "client_id": "penstock",
        "claim": "sub",
    }
    path = folder / "penstock.yaml"
    path.write_text(yaml.safe_dump({"console": {"openid": openid}}))
    return OpenId(load(path, {}))


@pytest.mark.parametrize("provider", [False], indirect=True)
def test_a_provider_that_is_away_is_left_alone_for_a_while(
    provider: Provider, tmp_path: Path
) -> None:
    openid = open_for(provider, tmp_path)

    async def ask() -> None:
        for _ in range(20):
            with pytest.raises(UnavailableError):
                await openid.begin("/")

    asyncio.run(ask())
    openid.close()
    assert provider.asked == 1


@pytest.mark.parametrize("provider", [True], indirect=True)
def test_few_wait_for_a_provider_that_is_slow(provider: Provider, tmp_path: Path) -> None:
    openid = open_for(provider, tmp_path)

    async def ask() -> None:
        waiting = [asyncio.create_task(openid.begin("/")) for _ in range(_PLACES)]
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="too many people sign in"):
            await openid.begin("/")
        provider.stop()
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(ended, UnavailableError)

    asyncio.run(ask())
    openid.close()


@pytest.mark.parametrize("provider", [False], indirect=True)
@pytest.mark.parametrize("state", ["é", "", "x" * 10_000])
def test_an_answer_that_nobody_awaits_asks_the_provider_nothing(
    provider: Provider, tmp_path: Path, state: str
) -> None:
    openid = open_for(provider, tmp_path)
    flow = openid._seal({"state": "awaited", "nonce": "n", "verifier": "v", "until": 4e12})
    with pytest.raises(DeniedError, match="not awaited"):
        asyncio.run(openid.finish("code", state, flow))
    openid.close()
    assert provider.asked == 0


@pytest.mark.parametrize("provider", [False], indirect=True)
def test_an_answer_is_taken_once(provider: Provider, tmp_path: Path) -> None:
    openid = open_for(provider, tmp_path)
    flow = openid._seal({"state": "awaited", "nonce": "n", "verifier": "v", "until": 4e12})
    with pytest.raises(UnavailableError):
        asyncio.run(openid.finish("code", "awaited", flow))
    for _ in range(5):
        with pytest.raises(DeniedError, match="taken before"):
            asyncio.run(openid.finish("code", "awaited", flow))
    openid.close()
    assert provider.asked == 1

"""Encrypted connections of our own client: to the right broker, and to one that is not."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.components import KafkaCluster
from penstock.errors import UnavailableError
from penstock.kafka import Cluster
from tests.support.gateway.certificates import Authority
from tests.support.kafka.officers import settings_for

pytestmark = pytest.mark.needs("java", "jars")


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()


@contextmanager
def encrypted(port: int, certificate: Path, key: Path) -> Iterator[int]:
    """Put TLS in front of a port of this machine, and give the port of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    loop = asyncio.new_event_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pass_on(reader, outer), _pass_on(inner, writer))

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()


def test_only_a_broker_with_the_right_certificate_is_spoken_to(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ours")
    plain = settings_for(kafka, tmp_path)
    with encrypted(kafka.nodes[0].client, *authority.issue("broker")) as port:
        settings = plain.model_copy(
            update={
                "bootstrap": f"127.0.0.1:{port}",
                "security": "sasl_ssl",
                "ca": authority.path,
            }
        )
        with Cluster(settings) as cluster:
            assert "admin" in cluster.users()
        stranger = Authority(tmp_path / "strange").path
        with pytest.raises(UnavailableError, match=r"(?i)certificate verify failed"):
            Cluster(settings.model_copy(update={"ca": stranger}))
        with pytest.raises(UnavailableError, match=r"not a Kafka broker, or wants TLS|broke off"):
            Cluster(settings.model_copy(update={"security": "sasl_plaintext"}))
    with pytest.raises(UnavailableError, match="cannot be reached"):
        Cluster(plain.model_copy(update={"security": "sasl_ssl", "ca": authority.path}))

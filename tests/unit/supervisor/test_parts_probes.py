import asyncio
import socket
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.supervisor import parts
from penstock.supervisor.parts import HttpProbe, Part, Probe, TcpProbe, in_order


def make(name: str, *after: str) -> Part:
    return Part(name, command=lambda _: ["true"], after=after)


def names(parts: list[Part]) -> list[str]:
    return [one.name for one in parts]


# Part number n may only come after lower numbers, so there is no circle.
graphs = st.integers(1, 8).flatmap(
    lambda size: st.tuples(*[st.sets(st.integers(-2, n - 1)) for n in range(size)])
)


@given(graphs, st.randoms(use_true_random=False))
def test_each_part_comes_after_those_it_needs(graph: tuple[set[int], ...], order: Random) -> None:
    parts = [make(f"p{n}", *(f"p{b}" for b in before)) for n, before in enumerate(graph)]
    order.shuffle(parts)
    sorted_names = names(in_order(parts))
    assert sorted(sorted_names) == sorted(names(parts))
    for n, before in enumerate(graph):
        for number in before & set(range(len(graph))):
            assert sorted_names.index(f"p{number}") < sorted_names.index(f"p{n}")


def test_what_is_not_configured_is_not_waited_for() -> None:
    assert names(in_order([make("gateway", "broker")])) == ["gateway"]


def test_a_circle_is_named() -> None:
    with pytest.raises(UsageError, match=r"wait for each other: .*a.*b"):
        in_order([make("a", "b"), make("b", "a")])


def ask_with_answer(answer: bytes, path: str = "/readyz") -> tuple[bool, bytes]:
    asked = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def main() -> bool:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await HttpProbe("127.0.0.1", port, path).ask()

    return asyncio.run(main()), asked


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 100_000, True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"HTTP/1.1 2000 x\r\n", False),
        (b"SSH-2.0 200 \r\n", False),
        (b"", False),
    ],
)
def test_http_is_ready_with_200_only(answer: bytes, *, ready: bool) -> None:
    found, asked = ask_with_answer(answer)
    assert found is ready
    assert asked.startswith(b"GET /readyz HTTP/1.0\r\n")


def test_tcp_is_ready_when_connections_are_accepted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert asyncio.run(TcpProbe("127.0.0.1", server.getsockname()[1]).ask())


@pytest.mark.parametrize("make", [TcpProbe, HttpProbe])
def test_nobody_listening_is_not_ready(make: type[TcpProbe | HttpProbe]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert not asyncio.run(make("127.0.0.1", bound.getsockname()[1]).ask())
        assert not asyncio.run(make("no host of this name", 1).ask())


def test_a_server_that_never_answers_does_not_hold_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "TRY_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        probe: Probe = HttpProbe("127.0.0.1", silent.getsockname()[1])
        assert not asyncio.run(probe.ask())

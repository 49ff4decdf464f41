"""The metrics of all parts on one page: nothing is lost, each sample says where it comes from."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import prometheus_client as prometheus
from prometheus_client.parser import text_string_to_metric_families

from penstock.supervisor.supervisor import OWN, SIZE_LIMIT, fetch, gather, merge
from penstock.telemetry import Endpoint, Health

SCRAPED = "penstock_part_scraped"


def make_page(count: int) -> str:
    registry = prometheus.CollectorRegistry()
    prometheus.Counter("jobs", "Jobs.", ["kind"], registry=registry).labels("a b").inc(count)
    prometheus.Gauge("size", 'A "size".', registry=registry).set(count)
    prometheus.Histogram("wait", "Waits.", buckets=(1, 2), registry=registry).observe(count)
    return prometheus.generate_latest(registry).decode()


def samples(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_each_sample_is_there_once_with_its_process() -> None:
    pages = [("gateway", make_page(1)), ("gateway-1", make_page(2)), ("rbac", make_page(3))]
    merged = merge(pages).decode()
    wanted = {
        (name, labels | {("process", process)}): value
        for process, page in pages
        for (name, labels), value in samples(page).items()
    }
    assert samples(merged) == wanted
    headers = [line for line in merged.splitlines() if line.startswith("# TYPE ")]
    assert len(headers) == len(set(headers))


@contextmanager
def answering(content: bytes) -> Iterator[int]:
    """Answer one request with whatever it is."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(content)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_what_is_no_page_of_metrics_is_left_out() -> None:
    head = b"HTTP/1.0 200 OK\r\n\r\n"
    for content in (
        b"",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.0 503 No\r\n\r\na 1\n",
        head + b"\xff\xfe",
        head + b"this is {no figure\n",
    ):
        with answering(content) as port:
            assert fetch(("127.0.0.1", port)) is None, content
    with answering(head + b"a 1\n") as port:
        assert fetch(("127.0.0.1", port)) == "a 1\n"
    assert SIZE_LIMIT < 1 << 24


def test_parts_that_do_not_answer_are_told_and_the_others_shown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    with Endpoint(Health(), render=lambda: make_page(7).encode()) as endpoint:
        monitors = {"gateway": [("127.0.0.1", endpoint.port)], "rbac": [("127.0.0.1", free)]}
        found = samples(gather(monitors).decode())
    assert found["size", frozenset({("process", "gateway")})] == 7
    for part, scraped in (("gateway", 1), ("rbac", 0)):
        assert found[SCRAPED, frozenset({("part", part), ("process", OWN)})] == scraped

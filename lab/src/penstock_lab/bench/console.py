"""The console: its first page, Live at a busy topic, and what open consoles cost the gateway.

Method:
- Broker, gateway and console run as `penstock up` runs them, each in a process of its own.
- `first_page`: a running browser, its cache switched off, opens the overview; what it loads is
  counted, and the time to its first paint is what Chromium says, with the CPU time that the browser
  took. Without Chromium, the time is that of the answer.
- `live`: a client publishes 5,000 messages a second on the topic that a page of Live shows. The
  browser is asked how long its main thread was busy at a time, and how late a timer of 50 ms came.
- `consoles`: the CPU time of the gateway under the same traffic, without and with 100 pages of the
  overview open, in turns.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import psutil
from argon2 import PasswordHasher

from penstock.components import find, processes
from penstock.config import load
from penstock.definitions import read_text
from penstock.errors import PenstockError
from penstock.mqtt import V5, Connect, Publish
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock_lab.bench.load.usage import cpu_seconds

PARTS: Final = ("first_page", "live", "consoles")
GOAL_MS: Final = 300.0
GOAL_KB: Final = 150.0
RATE: Final = 5_000
CONSOLES: Final = 100
QUIET_RATE: Final = 500
TOPIC: Final = "ward/7/vitals"
_BATCH: Final = 50
_USER: Final = "officer"
_PAYLOAD: Final = json.dumps({"patient": "p7", "heart_rate": 71, "temperature": 36.8}).encode()
_DEFINITIONS: Final = """
{kind: purpose, name: care}
---
{kind: reservation, name: "ward/#", allow: [care]}
---
{kind: right, name: officers, subjects: [user:officer], administer: true}
"""
_WATCH: Final = """
window.longest = 0; window.late = []; window.changes = 0;
new PerformanceObserver((list) => {
  for (const it of list.getEntries()) window.longest = Math.max(window.longest, it.duration);
}).observe({type: 'longtask', buffered: true});
let due = performance.now() + 50;
setInterval(() => { window.late.push(performance.now() - due); due = performance.now() + 50; }, 50);
new MutationObserver(() => { window.changes += 1; })
  .observe(document.querySelector('[data-live]'), {childList: true});
"""


def run(*, quick: bool, only: Sequence[str] = PARTS) -> dict[str, Any]:
    """Measure the parts that are asked for."""
    found: dict[str, Any] = {}
    with _installation() as place:
        if "first_page" in only:
            found["first_page"] = _measure_first_page(place, 3 if quick else 9)
        if "live" in only:
            found["live"] = _measure_live(place, 5.0 if quick else 30.0)
        if "consoles" in only:
            found["consoles"] = _measure_consoles(place, 2 if quick else 4, 5.0 if quick else 15.0)
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    mqtt: int
    console: int
    password: str
    session: str
    gateway: int
    """The process of the gateway."""
    pages: int
    """That of the console."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.console}"


@contextmanager
def _installation() -> Iterator[_Place]:
    ports = [processes.free_port() for _ in range(5)]
    password = secrets.token_urlsafe(12)
    settings = {
        "parts": ["broker", "gateway", "console"],
        "log": {"level": "warning"},
        "monitor": {"port": ports[0]},
        "gateway": {
            "listeners": {"mqtt": {"port": ports[1]}},
            "monitor_port": ports[2],
            "authentication": {"passwords": "keys/passwords"},
        },
        "console": {
            "listener": {"port": ports[3]},
            "monitor_port": ports[4],
            "limits": {"streams_per_user": 2 * CONSOLES, "connections": 1_000},
        },
    }
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        (folder / "penstock.yaml").write_text(json.dumps(settings))
        config = load(folder / "penstock.yaml", {})
        path = config.data / "keys" / "passwords"
        path.parent.mkdir(mode=0o700, parents=True)
        path.touch(mode=0o600)
        path.write_text(f"{_USER}:{PasswordHasher().hash(password)}\n")
        with Database.open(config.store.connection_url()) as database:
            CheckedDefinitions(Definitions(database)).apply(
                read_text(_DEFINITIONS).documents, actor="bench"
            )
        with (folder / "log").open("wb") as log:
            parts = subprocess.Popen(
                [sys.executable, "-m", "penstock", "up"], cwd=folder, stdout=log, stderr=log
            )
        try:
            end = time.monotonic() + 120
            while not all(map(processes.accepts, (ports[1], ports[3]))):
                if parts.poll() is not None or time.monotonic() > end:
                    told = (folder / "log").read_text(errors="replace")[-500:]
                    raise PenstockError("the parts did not start", fix=f"the log ends: {told}")
                time.sleep(0.1)
            yield _Place(
                ports[1],
                ports[3],
                password,
                _sign_in(ports[3], password),
                _find_part(parts.pid, "gateway"),
                _find_part(parts.pid, "console"),
            )
        finally:
            processes.stop(parts)


def _find_part(pid: int, word: str) -> int:
    for process in psutil.Process(pid).children():
        if word in process.cmdline():
            return process.pid
    raise PenstockError(f"no process runs the {word}", fix="see `penstock doctor`")


def _sign_in(port: int, password: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    host = f"127.0.0.1:{port}"
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://{host}"}
    connection.request(
        "POST", "/sign-in", urlencode({"user": _USER, "password": password}), {"Host": host, **form}
    )
    answer = connection.getresponse()
    cookie = answer.getheader("Set-Cookie", "")
    connection.close()
    return cookie.partition("=")[2].partition(";")[0]


# --- the first page ---


def _measure_first_page(place: _Place, rounds: int) -> dict[str, Any]:
    answers = [_ask(place, "/overview") for _ in range(rounds + 1)][1:]
    found: dict[str, Any] = {
        "answer_ms": _spread([it[0] for it in answers]),
        "page_kb": round(answers[0][1] / 1e3, 1),
        "goal_ms": GOAL_MS,
        "goal_kb": GOAL_KB,
    }
    with _browser() as browser:
        if browser is not None:
            paints, sizes, used = [], [], []
            with _page(browser, place) as page:
                page.goto(f"{place.url}/account")  # a browser has begun before one looks at a page
                session = page.context.new_cdp_session(page)
                session.send("Network.setCacheDisabled", {"cacheDisabled": True})
                loaded: list[int] = []
                page.on("response", lambda it: loaded.append(_size(it)))
                for _ in range(rounds):
                    loaded.clear()
                    before = _browser_cpu()
                    page.goto(f"{place.url}/overview")
                    page.locator("h1").wait_for()
                    used.append((_browser_cpu() - before) * 1e3)
                    paints.append(page.evaluate(_FIRST_PAINT))
                    sizes.append(sum(loaded))
            found |= {
                "first_paint_ms": _spread(paints),
                "browser_cpu_ms": _spread(used),
                "loaded_kb": round(max(sizes) / 1e3, 1),
            }
    return found


_FIRST_PAINT: Final = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"


def _browser_cpu() -> float:
    """Return the CPU seconds that Chromium has used: a loaded machine changes them little."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "chrom" in process.name():
                times = process.cpu_times()
                total += times.user + times.system
    return total


def _size(response: Any) -> int:
    if response.url.endswith((".live", "?")) or ".live" in response.url:
        return 0
    with contextlib.suppress(Exception):
        return len(response.body())
    return 0


def _ask(place: _Place, path: str) -> tuple[float, int]:
    """Return how long an answer took, in milliseconds, and how large it is."""
    connection = http.client.HTTPConnection("127.0.0.1", place.console, timeout=60)
    started = time.perf_counter()
    connection.request("GET", path, headers={"Cookie": f"penstock-session={place.session}"})
    size = len(connection.getresponse().read())
    took = time.perf_counter() - started
    connection.close()
    return took * 1e3, size


def _spread(values: Sequence[float], digits: int = 1) -> dict[str, float]:
    return {
        "least": round(min(values), digits),
        "median": round(statistics.median(values), digits),
        "most": round(max(values), digits),
    }


@contextmanager
def _browser() -> Iterator[Any]:
    """Give Chromium; None where there is none."""
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - a tool of developers
    except ImportError:
        yield None
        return
    chromium = find("chromium").path
    if chromium is None:
        yield None
        return
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=str(chromium), headless=True, args=["--no-sandbox", "--disable-gpu"]
        )
        yield opened
        opened.close()


@contextmanager
def _page(browser: Any, place: _Place) -> Iterator[Any]:
    context = browser.new_context()
    context.add_cookies(
        [
            {"name": "penstock-session", "value": place.session, "url": place.url},
            {"name": "penstock-tour", "value": "seen", "url": place.url},
        ]
    )
    context.set_default_timeout(120_000)
    yield context.new_page()
    context.close()


# --- Live at a busy topic ---


def _measure_live(place: _Place, seconds: float) -> dict[str, Any]:
    address = f"/live?{urlencode({'filter': TOPIC, 'purpose': 'care'})}"
    with _publishing(place, RATE) as sent, _browser() as browser:
        if browser is None:
            return _watch_stream(place, address, seconds) | {"goal_per_s": RATE}
        with _page(browser, place) as page:
            page.goto(place.url + address)
            page.locator(".messages li").first.wait_for()
            page.evaluate(f"() => {{ {_WATCH} }}")
            before, used = sent[0], cpu_seconds(place.pages)
            started = time.perf_counter()
            page.wait_for_timeout(seconds * 1e3)
            took = time.perf_counter() - started
            late = sorted(page.evaluate("window.late"))
            return {
                "published_per_s": round((sent[0] - before) / took, 1),
                "goal_per_s": RATE,
                "changes_per_s": round(page.evaluate("window.changes") / took, 2),
                "longest_task_ms": round(page.evaluate("window.longest"), 1),
                "timer_late_ms": {
                    "p50": round(late[len(late) // 2], 1),
                    "p99": round(late[int(len(late) * 0.99)], 1),
                    "most": round(late[-1], 1),
                },
                "console_cores": round((cpu_seconds(place.pages) - used) / took, 3),
                "shown": page.locator(".messages li").count(),
            }


def _watch_stream(place: _Place, address: str, seconds: float) -> dict[str, Any]:
    """Return how often a page would have changed; without a browser there is no more to say."""
    connection = _open_stream(place, address.replace("/live?", "/live.live?"))
    changes, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([connection], [], [], 0.2)[0]:
            changes += connection.recv(1 << 20).count(b"event: fragment")
    connection.close()
    return {"changes_per_s": round(changes / seconds, 2)}


@contextmanager
def _publishing(place: _Place, rate: int) -> Iterator[list[int]]:
    """Publish at a rate for as long as the block lasts; give the number so far."""
    sent, over = [0], threading.Event()
    connection = socket.create_connection(("127.0.0.1", place.mqtt))
    made = Connect(f"{_USER}:pump", username=_USER, password=place.password.encode(), keep_alive=0)
    connection.sendall(made.encode())
    connection.recv(1_024)
    batch = Publish.of(TOPIC, _PAYLOAD).encode(V5) * _BATCH

    def work() -> None:
        due = time.perf_counter()
        while not over.is_set():
            connection.sendall(batch)
            sent[0] += _BATCH
            due += _BATCH / rate
            time.sleep(max(0.0, due - time.perf_counter()))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()
        connection.close()


# --- what open consoles cost ---


def _measure_consoles(place: _Place, rounds: int, seconds: float) -> dict[str, Any]:
    without, with_, console = [], [], []
    with _publishing(place, QUIET_RATE):
        time.sleep(2.0)
        for _ in range(rounds):
            without.append(_use(place.gateway, seconds))
            with _open_consoles(place, CONSOLES):
                time.sleep(2.0)
                used = cpu_seconds(place.pages)
                with_.append(_use(place.gateway, seconds))
                console.append((cpu_seconds(place.pages) - used) / seconds)
    return {
        "consoles": CONSOLES,
        "messages_per_s": QUIET_RATE,
        "gateway_cores_without": _spread(without, 4),
        "gateway_cores_with": _spread(with_, 4),
        "gateway_cores_more": round(statistics.median(with_) - statistics.median(without), 4),
        "console_cores": _spread(console, 4),
    }


def _use(pid: int, seconds: float) -> float:
    before, started = cpu_seconds(pid), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.perf_counter() - started)


def _open_stream(place: _Place, path: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", place.console), timeout=60)
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{place.console}\r\n"
        f"Cookie: penstock-session={place.session}\r\n\r\n".encode()
    )
    answer = connection.recv(65_536)
    if b" 200 " not in answer[:20]:
        raise PenstockError(f"the console answered {answer[:100]!r}", fix="see its limits")
    return connection


@contextmanager
def _open_consoles(place: _Place, count: int) -> Iterator[None]:
    over = threading.Event()
    opened = [_open_stream(place, "/overview.live") for _ in range(count)]

    def drain() -> None:
        while not over.is_set():
            for it in select.select(opened, [], [], 0.2)[0]:
                it.recv(1 << 20)

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for it in opened:
            it.close()

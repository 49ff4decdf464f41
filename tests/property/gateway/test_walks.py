"""Random walks through a real gateway and a real broker, against the plain model.

A normal run takes about 1,200 steps, those of two gateways shared by lanes and none, a long one
(`make test-long`) more than 100,000.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.model.purposes import PurposeSet
from penstock.mqtt import V3, V5
from penstock.policy.purposes.settings import PurposeSettings
from tests.support.gateway.harness import GatewayThread, run_gateway, share
from tests.support.gateway.model import Client, Message, World
from tests.support.gateway.raw import RawClient
from tests.support.scale import scaled

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.timeout(1800)]

WALKS = scaled(10, long=2_550)
OF_TWO = scaled(5, long=2_550)
LANES = 3
STEPS = 40

PURPOSES = ["p", "p/q", "x", None]
FILTERS = ["#", "a/#", "a/+", "a/b", "+/b", "a", "b/#"]
TOPICS = ["a", "a/b", "a/b/c", "b", "b/b", "c/b"]
SETS = [
    PurposeSet.of(["p"]),
    PurposeSet.of(["p/q"]),
    PurposeSet.of(["p", "x"]),
    PurposeSet.of(["p"], ["p/q"]),
    PurposeSet.of([], ["p/q"]),
    PurposeSet(),
    None,
    None,
]
KINDS = {"old": (V3, True), "new": (V5, True), "brief": (V5, False)}
ACTIONS = (
    ["reserve"] * 6
    + ["subscribe"] * 6
    + ["publish"] * 10
    + ["unsubscribe"]
    + ["presubscribe"]
    + ["leave", "vanish", "come", "come", "take over"]
    + ["mode", "store", "strict"]
    + ["clear", "reset", "persist", "persist", "reload", "reload"]
)
MODES = {
    "publish": (b"false", b"false"),
    "subscribe": (b"true", b"false"),
    "hybrid": (b"false", b"true"),
}


Running = list[tuple[GatewayThread, frozenset[asyncio.Task[Any]]]]


KINDS_OF_GATEWAYS = [
    pytest.param((1, LANES), id="one gateway"),
    pytest.param((2, LANES), id="two gateways"),
    pytest.param((1, 0), id="one gateway without lanes"),
    pytest.param((2, 0), id="two gateways without lanes"),
]


@pytest.fixture(scope="module", params=KINDS_OF_GATEWAYS)
def gateways(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Run one gateway, or two on one store, before a broker."""
    folder = tmp_path_factory.mktemp("gateways")
    limits = {"limits": {"commands": 100_000, "state_commands": 1_000_000}}
    with ExitStack() as stack:
        broker = stack.enter_context(
            MosquittoServer(tmp_path_factory.mktemp("broker"), persistent=False)
        )
        running: Running = []
        count, lanes = request.param
        for number in range(count):
            place = folder / str(number)
            # A lease that outlasts a busy machine: nothing here is about leases.
            common = share(folder)
            common["store"]["lease"] = "60s"
            made = stack.enter_context(
                run_gateway(place, broker.port, {"lanes": lanes, **limits}, **common)
            )
            # What runs as long as the gateway does: the clock, the lease, detection and more.
            running.append((made, made.do(partial(_tasks, made))))
        yield running


def _tasks(running: GatewayThread) -> frozenset[asyncio.Task[Any]]:
    return running.gateway.background.tasks


class Walk:
    """One walk: the real thing and the model, step by step."""

    def __init__(self, running: Running, seed: int) -> None:
        self.choice = random.Random(seed)
        self.gateways = running
        self.root = f"w{seed}"
        self.trace: list[Any] = []
        self.world = World()
        self.real: dict[str, RawClient] = {}
        self.at: dict[str, GatewayThread] = {}
        self.admin = RawClient(self.any_gateway().port)
        self.admin.connect(f"{self.root}-admin")
        # It publishes at QoS 0 alone, so that it stays on its publish lane where there are any.
        self.sensor_at = self.any_gateway()
        self.sensor = RawClient(self.sensor_at.port)
        self.sensor.connect(f"{self.root}-sensor")
        self.payload = 0
        for command in ("CLEAR", "PERSIST"):
            self.command(f"!PBAC/{command}")
        for name, value in PurposeSettings().as_dict().items():
            self.command(f"!PBAC/SET/{name}", b"true" if value else b"false")
        for kind, (version, resumable) in KINDS.items():
            self.world.clients[self.id(kind)] = Client(version == V3, resumable)
            self.come(kind)

    def id(self, kind: str) -> str:
        return f"{self.root}-{kind}"

    def place(self, text: str) -> str:
        return f"{self.root}/{text}"

    def command(self, topic: str, payload: bytes = b"") -> None:
        answer = self.admin.publish(topic, payload, qos=1)
        assert answer.reason == 0, (topic, answer, self.trace)
        self.quiesce()

    def quiesce(self) -> None:
        """Wait until all gateways know all, and have told the broker all they had to."""
        deadline = time.monotonic() + 10
        newest = max(self.epoch(it) for it, _ in self.gateways)
        for running, lasting in self.gateways:
            while self.epoch(running) < newest or not running.do(
                partial(self.is_idle, running, lasting)
            ):
                assert time.monotonic() < deadline, self.trace

    @staticmethod
    def epoch(running: GatewayThread) -> int:
        return running.do(lambda: running.gateway.rules.epoch)

    @staticmethod
    def is_idle(running: GatewayThread, lasting: frozenset[asyncio.Task[Any]]) -> bool:
        gateway = running.gateway
        return gateway.background.tasks <= lasting and gateway.session_writer._running is None

    def any_gateway(self) -> GatewayThread:
        return self.choice.choice(self.gateways)[0]

    # --- steps ---

    def step(self) -> None:
        action = self.choice.choice(ACTIONS)
        getattr(self, action.replace(" ", "_"))(self.choice.choice(list(KINDS)))
        self.compare()

    def reserve(self, kind: str) -> None:
        del kind
        filter_, purposes = self.choice.choice(FILTERS), self.choice.choice(SETS)
        self.trace.append(("reserve", filter_, str(purposes)))
        place = self.place(filter_).replace("#", "HASH").replace("+", "PLUS")
        self.command(f"!RESERVE/{place}{'{}' if purposes is None else purposes}")
        self.world.reserve(self.place(filter_), purposes)

    def presubscribe(self, kind: str) -> None:
        filter_, ap = self.choice.choice(FILTERS), self.choice.choice(PURPOSES)
        self.trace.append(("presubscribe", kind, filter_, ap))
        place = self.place(filter_).replace("#", "HASH").replace("+", "PLUS")
        self.command(f"!PBAC/PRESUB/{self.id(kind)}/{place}{{{ap or ''}}}")
        key = (self.id(kind), self.place(filter_))
        self.world.presubscriptions.pop(key, None)
        if ap is not None:
            self.world.presubscriptions[key] = ap

    def subscribe(self, kind: str) -> None:
        if kind not in self.real:
            return
        filter_, ap = self.choice.choice(FILTERS), self.choice.choice(PURPOSES)
        qos = self.choice.choice([0, 1, 1])
        if ap is None and self.covered(kind, filter_):
            return
        self.trace.append(("subscribe", kind, filter_, ap, qos))
        place = self.place(filter_)
        text = f"!AP/{place}{{{ap}}}" if ap is not None else place
        answer = self.real[kind].subscribe(text, qos=qos)
        allowed = self.world.subscribe(self.id(kind), place, ap, qos)
        assert (answer.reasons[0] < 0x80) == allowed, (self.trace, answer)

    def covered(self, kind: str, filter_: str) -> bool:
        """Presubscriptions also speak for narrower filters; the model knows equal ones only."""
        place = self.place(filter_)
        return any(
            client == self.id(kind) and there != place
            for client, there in self.world.presubscriptions
        )

    def unsubscribe(self, kind: str) -> None:
        if kind not in self.real:
            return
        filter_ = self.choice.choice(FILTERS)
        self.trace.append(("unsubscribe", kind, filter_))
        self.real[kind].unsubscribe(self.place(filter_))
        self.world.clients[self.id(kind)].drop(self.place(filter_))

    def publish(self, kind: str) -> None:
        del kind
        topic, purposes = self.choice.choice(TOPICS), self.choice.choice([*SETS, None, None, None])
        retain = self.choice.random() < 0.2
        qos = self.choice.choice([0, 1, 1])
        self.payload += 1
        payload = b"%d" % self.payload
        self.trace.append(("publish", topic, str(purposes), "retained" if retain else "", qos))
        place = self.place(topic)
        text = place if purposes is None else f"!AIP/{place}{purposes}"
        publisher = self.admin if qos else self.sensor
        publisher.publish(text, payload, qos=qos, retain=retain)
        publisher.settle()
        self.world.publish(Message(place, payload, purposes, qos), retain=retain)

    def mode(self, kind: str) -> None:
        del kind
        mode = self.choice.choice(list(MODES))
        self.trace.append(("mode", mode))
        # Each step of the way must be one that the model takes too.
        on_subscribe, hybrid = MODES[mode]
        self.command("!PBAC/SET/filter_on_subscribe", on_subscribe)
        now_hybrid = self.world.mode == "hybrid" or self.hybrid_flag
        self.world.mode = (
            "subscribe" if on_subscribe == b"true" else "hybrid" if now_hybrid else "publish"
        )
        self.world.settle()
        self.command("!PBAC/SET/filter_hybrid", hybrid)
        self.hybrid_flag = hybrid == b"true"
        self.world.mode = mode
        self.world.settle()

    hybrid_flag = False

    def store(self, kind: str) -> None:
        """Stores and caches change the work, never an answer."""
        del kind
        name = self.choice.choice(["use_tree_store", "cache_reservations", "cache_subscriptions"])
        value = self.choice.choice([b"true", b"false"])
        self.trace.append(("store", name, value))
        self.command(f"!PBAC/SET/{name}", value)

    def strict(self, kind: str) -> None:
        del kind
        self.world.strict = self.choice.random() < 0.3
        self.trace.append(("strict", self.world.strict))
        value = b"false" if self.world.strict else b"true"
        self.command("!PBAC/SET/allow_without_reservation", value)
        self.world.settle()

    def clear(self, kind: str, word: str = "CLEAR") -> None:
        del kind
        self.trace.append((word,))
        self.command(f"!PBAC/{word}")
        self.world.clear()

    def reset(self, kind: str) -> None:
        """It clears, and the settings stay as they are."""
        self.clear(kind, "RESET")

    def persist(self, kind: str) -> None:
        del kind
        self.trace.append(("PERSIST",))
        self.command("!PBAC/PERSIST")
        self.world.persist()

    def reload(self, kind: str) -> None:
        del kind
        self.trace.append(("RELOAD",))
        self.command("!PBAC/RELOAD")
        self.world.reload()

    def leave(self, kind: str) -> None:
        if kind in self.real:
            self.trace.append(("leave", kind))
            self.real.pop(kind).close()
            self.gone(kind)

    def vanish(self, kind: str) -> None:
        if kind in self.real:
            self.trace.append(("vanish", kind))
            self.real.pop(kind).vanish()
            self.gone(kind)

    def gone(self, kind: str) -> None:
        deadline = time.monotonic() + 10
        there = self.at[kind]
        while there.do(lambda: self.id(kind) in there.gateway.clients):
            assert time.monotonic() < deadline, self.trace
        self.quiesce()
        time.sleep(0.01)  # the broker reads the end of the connection after the gateway's
        self.world.disconnect(self.id(kind))

    def come(self, kind: str) -> None:
        if kind not in self.real:
            self.trace.append(("come", kind))
            self.connect(kind)

    def take_over(self, kind: str) -> None:
        if kind in self.real and KINDS[kind][1]:
            self.trace.append(("take over", kind))
            old = self.real.pop(kind)
            self.world.disconnect(self.id(kind))
            self.connect(kind)
            old.wait_closed()

    def connect(self, kind: str) -> None:
        version, resumable = KINDS[kind]
        self.at[kind] = self.any_gateway()
        client = self.real[kind] = RawClient(self.at[kind].port, version=version)
        expiry = {"expiry": 600} if resumable and version == V5 else {}
        answer = client.connect(self.id(kind), clean=not resumable, **expiry)  # type: ignore[arg-type]
        assert answer.reason == 0, self.trace
        self.quiesce()
        self.world.connect(self.id(kind))

    def compare(self) -> None:
        for kind, client in self.real.items():
            client.settle()
            got = Counter(client.texts(quiet=0))
            model = self.world.clients[self.id(kind)]
            expected = Counter(model.received)
            model.received.clear()
            assert got == expected, f"{kind} got {got}, not {expected}, after {self.trace}"

    def uses_lane(self) -> bool:
        """Say whether what was published at QoS 0 has gone over a lane to the end."""
        there = self.sensor_at
        sensor = there.do(lambda: there.gateway.clients[f"{self.root}-sensor"])
        return sensor.lane is not None

    def close(self) -> None:
        for client in [*self.real.values(), self.admin, self.sensor]:
            client.close()


def test_walks(gateways: Running) -> None:
    lanes = gateways[0][0].gateway.lanes._lanes
    first = int(os.environ.get("PENSTOCK_SEED", "0"))
    for seed in range(first, first + (WALKS if len(gateways) == 1 else OF_TWO)):
        walk = Walk(gateways, seed)
        for _ in range(STEPS):
            walk.step()
        assert walk.uses_lane() == bool(lanes)
        walk.close()

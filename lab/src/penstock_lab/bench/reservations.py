"""How fast purposes are decided, and how much memory reservations take.

Method:
- Reservations of a car-sharing fleet in five shapes, exact and with wildcards, for the 16
  sets of purposes that drivers can agree to. Topics are drawn at random from the fleet's:
  nothing that a decision needs is likely to be in the processor's caches.
- A decision is what the gateway asks: may this subscription receive from this topic.
- The sizes take turns within a round, so that a slow moment falls on all of them; a figure
  is the best of its rounds in CPU time of the thread, a ratio compares figures of one run.
- Bytes are what tracemalloc counts for everything a store holds, texts and sets included.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.model.purposes import PurposeSet
from penstock.model.topics import SubscribedFilter, matches
from penstock.policy.purposes.engine import PurposeEngine
from penstock.policy.purposes.reservations import CACHE_LIMIT, Reservations
from penstock.policy.purposes.settings import PurposeSettings
from penstock.policy.purposes.subscriptions import Subscription

SIZES = (100, 10_000, 1_000_000)
QUICK_SIZES = (100, 1_000, 20_000)
GOALS = {"uncached_growth": 2.0, "bytes_per_reservation": 600, "cached_ns": 500}
SHAPES = ("location/#", "location/#", "location/gps", "+/speed", "tyres/+/#")
LEAVES = ("location/gps", "location/cell", "engine/speed", "tyres/left/pressure")
AP = "operational/billing"
OPTIONS = ("marketing", "research", "routing", "insurance")
# What drivers agree to: the operation always, and any of four further purposes.
SETS = [
    PurposeSet.of(
        ["operational", *(option for place, option in enumerate(OPTIONS) if n >> place & 1)],
        [f"{option}/individualized" for place, option in enumerate(OPTIONS) if n >> place & 1],
    )
    for n in range(2 ** len(OPTIONS))
]


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure all sizes."""
    # Whether the collector happens to run within a figure is not the question.
    gc.collect()
    gc.disable()
    try:
        figures = _measure_speed(quick=quick)
    finally:
        gc.enable()
    size = (QUICK_SIZES if quick else SIZES)[-1]
    figures["bytes_per_reservation"] = {
        "fleet": _measure_memory(_reservations(size)),
        "no path shared": _measure_memory(
            (f"fleet/car{n}/part{n}/sensor{n}", SETS[n % len(SETS)]) for n in range(size)
        ),
        "no path and no set shared": _measure_memory(
            (f"fleet/car{n}/part{n}/sensor{n}", PurposeSet.of([f"p{n}"])) for n in range(size)
        ),
    }
    return figures


def _measure_speed(*, quick: bool) -> dict[str, Any]:
    sizes = QUICK_SIZES if quick else SIZES
    rounds, draws = (3, 2_000) if quick else (9, 20_000)
    engines = {size: _fill(size, tree=True) for size in sizes}
    topics = {size: _draw_topics(size, draws) for size in sizes}
    uncached = _interleave(engines, topics, rounds)
    for engine in engines.values():
        engine.configure(engine.settings.change("cache_reservations", value=True))
    misses = _interleave(engines, topics, 1)
    # As many topics for each size: how many are cached must not count as growth.
    few = {size: drawn[: 4 * sizes[0]] * 50 for size, drawn in topics.items()}
    _interleave(engines, few, 1)
    cached = _interleave(engines, few, rounds)
    largest = sizes[-1]
    return {
        "goals": GOALS,
        "uncached_ns": uncached,
        "uncached_growth": uncached[largest] / uncached[sizes[0]],
        "cached_ns": cached,
        "cached_growth": cached[largest] / cached[sizes[0]],
        "first_decision_ns": misses,
        "changes": _measure_changes(engines[largest]),
        "flat_uncached_ns": _measure_flat(sizes[:2]),
        "subscribe_to_all_ms": _measure_survey(engines[largest]),
    }


def _name(number: int) -> str:
    return f"country{number % 10}/area{number // 10 % 100}/vehicle{number}"


def _reservations(size: int) -> Iterator[tuple[str, PurposeSet]]:
    for number in range(size):
        yield f"{_name(number)}/{SHAPES[number % len(SHAPES)]}", SETS[number * 7 % len(SETS)]


def _fill(size: int, *, tree: bool) -> PurposeEngine:
    engine = PurposeEngine(PurposeSettings(use_tree_store=tree, cache_reservations=False))
    engine.replace_reservations(_reservations(size))
    return engine


def _draw_topics(size: int, draws: int) -> list[str]:
    choice = random.Random(size)
    return [f"{_name(choice.randrange(size))}/{choice.choice(LEAVES)}" for _ in range(draws)]


def _time_each(engine: PurposeEngine, topics: list[str]) -> float:
    subscription = Subscription("client", SubscribedFilter("#", "#"), AP, 0)
    permits = engine.permits
    started = time.thread_time_ns()
    for topic in topics:
        permits(subscription, topic)
    return (time.thread_time_ns() - started) / len(topics)


def _interleave(
    engines: dict[int, PurposeEngine], topics: dict[int, list[str]], rounds: int
) -> dict[int, float]:
    best = dict.fromkeys(engines, float("inf"))
    for _ in range(rounds):
        for size, engine in engines.items():
            best[size] = min(best[size], _time_each(engine, topics[size]))
    return best


def _measure_flat(sizes: tuple[int, ...]) -> dict[int, float]:
    return {size: _time_each(_fill(size, tree=False), _draw_topics(size, 20)) for size in sizes}


def _measure_changes(engine: PurposeEngine) -> dict[str, dict[str, float]]:
    """Change reservations that meet one, many and all topics of a full cache."""
    everywhere = _draw_topics(len(engine.reservations), 4 * CACHE_LIMIT)
    changes = {
        "one topic": everywhere[-100:],
        "one area": [f"country3/area{n}/#" for n in range(50)],
        "one country": ["country4/#"],
        "everything": ["#"],
    }
    figures = {}
    for label, filters in changes.items():
        _time_each(engine, everywhere)
        kept = set(everywhere[-CACHE_LIMIT:])
        met = sum(matches(filter_, topic) for filter_ in filters for topic in kept)
        started = time.thread_time_ns()
        for filter_ in filters:
            engine.reserve(filter_, SETS[0])
        spent = (time.thread_time_ns() - started) / 1e3
        figures[label] = {"us": spent / len(filters), "cached_topics": met / len(filters)}
    return figures


def _measure_survey(engine: PurposeEngine) -> dict[str, float]:
    """Subscribe to everything while filtering on subscribe: the dearest decision there is."""
    engine.configure(engine.settings.change("filter_on_subscribe", value=True))
    figures = {}
    for label, ap in (("accepted", AP), ("refused", "research")):
        started = time.thread_time_ns()
        engine.subscribe("client", "#", ap)
        figures[label] = (time.thread_time_ns() - started) / 1e6
    return figures


def _measure_memory(reservations: Iterable[tuple[str, PurposeSet]]) -> float:
    gc.collect()
    tracemalloc.start()
    store = Reservations(cached=False)
    store.replace_all(reservations)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / len(store)

"""How much k-anonymity of a stream loses, and what it costs per record.

Method:
- Loss: the Adult records in their order, six numeric quasi-identifiers, at twelve settings of
  k and delta, compared with CASTLE's published figures. PENSTOCK_ADULT names the file; records
  with a "?" are left out. A suppressed record counts as lost entirely.
- Shards: the same records, divided by a hash of their person, each shard with its share of
  delta; what all of them publish is judged together.
- The judge: what was published, as text, is given to pycanon, which knows nothing of how it
  was made; without pycanon, groups of equal text are counted here.
- Speed: made-up records with Adult's spikes, one process. The time of making them is not
  counted. Figures are per record of the last tenth of the stream, so that a cost which grows
  with the stream's length would show.
"""

from __future__ import annotations

import csv
import importlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import UnavailableError
from penstock.masks.anonymity import (
    CategoryDomain,
    Closeness,
    Distance,
    DistinctDiversity,
    GroupRule,
    NumberDomain,
    Release,
    StreamAnonymizer,
    StreamParameters,
    aggregate_tuples,
    aggregate_values,
)
from penstock.masks.anonymity.domains import Floats, Integers
from penstock.masks.anonymity.publication import Algorithm
from penstock.masks.anonymity.stream import TupleAnonymizer, open_stream

FIELDS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
PUBLISHED = {
    (50, 5_000): 0.168,
    (50, 10_000): 0.128,
    (50, 20_000): 0.112,
    (50, 30_000): 0.093,
    (100, 5_000): 0.24,
    (100, 10_000): 0.172,
    (100, 20_000): 0.147,
    (100, 30_000): 0.130,
    (200, 5_000): 0.32,
    (200, 10_000): 0.247,
    (200, 20_000): 0.188,
    (200, 30_000): 0.168,
}
SHARDS = (1, 2, 4, 8, 16)
SHARDED_K, SHARDED_DELTA = (50, 100), 10_000
BATCH = 10_000
ILLNESSES = CategoryDomain.flat("illness", [f"illness {number}" for number in range(12)])


def run(*, quick: bool = False, data: str | None = None) -> dict[str, Any]:
    """Measure loss on Adult, if its file is named, and speed on made-up streams."""
    results: dict[str, Any] = {"load_before": round(os.getloadavg()[0], 2)}
    source = data or os.environ.get("PENSTOCK_ADULT")
    if source:
        results["adult"] = measure_adult(Path(source), quick=quick)
    else:
        results["adult"] = {"missing": "PENSTOCK_ADULT names no file with the Adult records"}
    lengths = [100_000, 1_000_000] if quick else [100_000, 1_000_000, 10_000_000]
    results["stream"] = {str(length): measure_stream(length) for length in lengths}
    results["variants_of_100000"] = {
        "ten records per person": measure_stream(100_000, persons=10_000),
        "3-diverse": measure_stream(100_000, rule="diversity"),
        ".2-close": measure_stream(100_000, rule="closeness"),
        "castle": measure_stream(100_000, algorithm="castle"),
    }
    results["microaggregation"] = measure_microaggregation()
    return results


def read_adult(source: Path) -> Floats:
    """Read the six fields of all complete records, as (fields, records)."""
    try:
        with source.open(newline="") as file:
            records = [
                [float(record[field]) for field in FIELDS]
                for record in csv.DictReader(file)
                if not any(value.strip() == "?" for value in record.values())
            ]
    except (OSError, KeyError, ValueError) as error:
        raise UnavailableError(
            f"{source} cannot be read as Adult records: {error}",
            fix=f"let PENSTOCK_ADULT name a CSV file with the columns {', '.join(FIELDS)}",
        ) from error
    return np.array(records).T.copy()


def measure_adult(source: Path, *, quick: bool) -> dict[str, Any]:
    """Compare the loss with the published figures at each of the twelve points."""
    codes = read_adult(source)
    domains = [
        NumberDomain(field, line.min(), line.max())
        for field, line in zip(FIELDS, codes, strict=True)
    ]
    persons = np.arange(codes.shape[1])
    points = []
    for (k, delta), published in PUBLISHED.items():
        stream = StreamAnonymizer(StreamParameters(domains, k=k, delta=delta))
        wall, cpu = time.perf_counter(), time.process_time()
        releases = [
            stream.feed(codes[:, begin : begin + BATCH], persons[begin : begin + BATCH])
            for begin in range(0, persons.size, BATCH)
        ]
        release = Release.join(len(domains), [*releases, stream.flush()])
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        loss = release.total_loss() / persons.size
        points.append(
            {
                "k": k,
                "delta": delta,
                "loss": round(loss, 4),
                "published_loss": published,
                "ratio": round(loss / published, 3),
                "suppressed": int(release.suppressed.sum()),
                "reused": int(release.reused.sum()),
                "records_per_second": round(persons.size / wall),
                "records_per_cpu_second": round(persons.size / cpu),
                **judge(stream.parameters, release, use_pycanon=not quick or delta == BATCH),
            }
        )
    return {
        "records": int(persons.size),
        "points": points,
        "shards": [
            measure_shards(codes, domains, k, shards, use_pycanon=not quick)
            for k in SHARDED_K
            for shards in SHARDS
        ],
        "all_at_or_below": all(point["ratio"] <= 1.0 for point in points),
        "all_k_hold": all(point["judged_k"] >= point["k"] for point in points),
    }


def measure_shards(
    codes: Floats, domains: list[NumberDomain], k: int, shards: int, *, use_pycanon: bool
) -> dict[str, Any]:
    """Return the loss where persons are divided into shards, which share delta."""
    persons = np.arange(codes.shape[1])
    # Spark places them by a hash; this draws as evenly, and the same each time.
    homes = np.random.default_rng(7).integers(shards, size=persons.size)
    delta = max(k, -(-SHARDED_DELTA // shards))
    parameters = StreamParameters(domains, k=k, delta=delta)
    releases = []
    for shard in range(shards):
        stream = StreamAnonymizer(StreamParameters(domains, k=k, delta=delta, seed=shard))
        own = homes == shard
        releases += [stream.feed(codes[:, own], persons[own]), stream.flush()]
    release = Release.join(len(domains), releases)
    return {
        "k": k,
        "shards": shards,
        "delta_of_each": delta,
        "loss": round(release.total_loss() / persons.size, 4),
        "suppressed": int(release.suppressed.sum()),
        **judge(parameters, release, use_pycanon=use_pycanon),
    }


def judge(parameters: StreamParameters, release: Release, *, use_pycanon: bool) -> dict[str, Any]:
    """Say how large the smallest group of what was published is, from its text alone."""
    labels = parameters.space.labels(release.boxes.lows, release.boxes.highs)
    places = release.places[~release.suppressed]
    rows = list(zip(*([column[place] for place in places] for column in labels), strict=True))
    if use_pycanon:
        try:
            pycanon = importlib.import_module("pycanon.anonymity")
            pandas = importlib.import_module("pandas")
        except ImportError:
            pass
        else:
            frame = pandas.DataFrame(rows, columns=list(FIELDS))
            return {"judged_k": int(pycanon.k_anonymity(frame, list(FIELDS))), "judge": "pycanon"}
    return {"judged_k": min(Counter(rows).values()), "judge": "count of equal rows"}


def make_records(generator: np.random.Generator, count: int) -> Floats:
    """Make records with Adult's spikes: most have no gain, no loss, and work 40 hours."""

    def seldom(share: float, values: Floats) -> Floats:
        return np.where(generator.random(count) < share, values, 0.0)

    off = seldom(0.53, generator.normal(1, 18, count).round())
    return np.array(
        [
            generator.gamma(6, 4, count).round().clip(0, 73) + 17,
            generator.lognormal(12, 0.55, count).round().clip(13_769, 1_484_705),
            generator.choice([9, 10, 13, 14, 11, 7, 12, 4], count).astype(np.float64),
            seldom(0.084, generator.lognormal(8.6, 0.8, count).round().clip(1, 99_999)),
            seldom(0.047, generator.normal(1870, 370, count).round().clip(1, 4356)),
            (40 + off).clip(1, 99),
        ]
    )


def make_parameters(
    rule: str | None = None, algorithm: Algorithm = "partition"
) -> StreamParameters:
    """Return the parameters that speed is promised for."""
    bounds = [(17, 90), (13_769, 1_484_705), (1, 16), (0, 99_999), (0, 4356), (1, 99)]
    rules: dict[str | None, list[GroupRule]] = {
        None: [],
        "diversity": [DistinctDiversity(0, ILLNESSES, 3)],
        "closeness": [Closeness(0, ILLNESSES, 0.2, Distance.EQUAL)],
    }
    return StreamParameters(
        [NumberDomain(field, *ends) for field, ends in zip(FIELDS, bounds, strict=True)],
        k=100,
        delta=10_000,
        beta=50,
        mu=100,
        sensitive=[ILLNESSES],
        rules=rules[rule],
        algorithm=algorithm,
    )


def measure_stream(
    length: int,
    *,
    persons: int | None = None,
    rule: str | None = None,
    algorithm: Algorithm = "partition",
) -> dict[str, Any]:
    """Feed a made-up stream, and time its last tenth."""
    generator = np.random.default_rng(7)
    parameters = make_parameters(rule, algorithm)
    stream = open_stream(parameters)
    largest_state = 0
    loss = 0.0
    spent: list[tuple[float, float]] = []
    for begin in range(0, length, BATCH):
        codes = make_records(generator, BATCH)
        illnesses: Integers = generator.integers(0, 12, (1, BATCH))
        who = np.arange(begin, begin + BATCH)
        if persons is not None:
            who = generator.integers(persons, size=BATCH)
        wall, cpu = time.perf_counter(), time.process_time()
        release = stream.feed(codes, who, illnesses)
        spent.append((time.perf_counter() - wall, time.process_time() - cpu))
        loss += release.total_loss()
        if begin % (length // 10) == 0:
            full = fill(parameters, stream.to_bytes(), codes, who, illnesses)
            largest_state = max(largest_state, len(full.to_bytes()))
    loss += stream.flush().total_loss()
    last = np.array(spent[-max(1, len(spent) // 10) :]).sum(axis=0) / max(1, len(spent) // 10)
    return {
        "records_per_second": round(BATCH / last[0]),
        "us_per_record": round(last[0] / BATCH * 1e6, 2),
        "cpu_us_per_record": round(last[1] / BATCH * 1e6, 2),
        "state_bytes": largest_state,
        "loss": round(loss / length, 4),
    }


def fill(
    parameters: StreamParameters,
    state: bytes,
    codes: Floats,
    persons: Integers,
    sensitive: Integers,
) -> TupleAnonymizer:
    """Return a copy that holds nearly delta more records: the state at its largest."""
    copy = open_stream(parameters, state)
    room = parameters.delta - 1 - copy.held_positions.size
    copy.feed(codes[:, :room], persons[:room], sensitive[:, :room])
    return copy


def measure_microaggregation() -> dict[str, Any]:
    """Time both kinds on windows of 10,000."""
    codes = make_records(np.random.default_rng(7), 10_000)
    results = {}
    for k in (5, 100):
        start = time.perf_counter()
        aggregate_values(codes[1], k)
        middle = time.perf_counter()
        aggregate_tuples(codes, k)
        results[f"k={k}"] = {
            "values_per_second": round(10_000 / (middle - start)),
            "tuples_per_second": round(10_000 / (time.perf_counter() - middle)),
        }
    return results

"""`penstock forecast`: who may soon be worse, as advice to the staff.

Rules that hold here:
- Who opted out of the purpose is left out of what is read of a stream; without a purpose, who
  opted out of anything.
- Forecasts are messages like others: published by a user who may, read by those who may.
  Nothing else follows from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from penstock.cli.output import json_option, show, table
from penstock.cli.plugins import SIMULATIONS, load_plugin
from penstock.cli.session import (
    ANSWER_SECONDS,
    configuration,
    connect,
    disconnect,
    open_database,
    open_definitions,
    parse_address,
)
from penstock.errors import UsageError, quote

if TYPE_CHECKING:
    from penstock.pipeline.forecasting import Hours, Quality
    from penstock.pipeline.session import Session

TOPIC = "forecast/worsening"
HOUSE = "nursing-home"
"""The simulation that a model is trained on where no stream is named."""
MOST_SEED = 2**62
MOST_HOUSES = 20
SEED_STEP = 1_000_003
"""How far apart the seeds of houses are that a model is trained and measured on."""


@click.group("forecast")
def command() -> None:
    """Forecast deteriorating vital signs: advice to the staff that never grants access."""


_purposes = click.option(
    "--purpose", "purposes", multiple=True,
    help="A purpose of the forecast; repeatable. People who opted out of it are left out; "
    "without it, people who opted out of anything.",
)  # fmt: skip


@command.command()
@click.option("--patients", type=click.IntRange(10, 10_000), default=300, show_default=True)
@click.option("--days", type=click.IntRange(3, 365), default=30, show_default=True)
@click.option("--seed", type=click.IntRange(0, MOST_SEED), default=0, show_default=True)
@click.option(
    "--houses", type=click.IntRange(1, MOST_HOUSES), default=3, show_default=True,
    help="How many other simulated houses the quality is measured on.",
)  # fmt: skip
@click.option(
    "--stream", help="Train on this stream of the event log instead of a simulated house."
)
@click.option(
    "--model", "path", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="The JSON file to write the model to.",
)  # fmt: skip
@_purposes
@json_option
def train(
    *,
    patients: int,
    days: int,
    seed: int,
    houses: int,
    stream: str | None,
    path: Path,
    purposes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train a model, and measure it on people whom it has not seen.

    Trained on a simulated nursing home, it is measured on others, with seeds that nobody looked
    at when the model was designed. That quality shows that the method works on simulated signs;
    it says nothing about real patients. Trained on a stream, it is measured on every
    fourth person of that stream, who is left out of the training.
    """
    from penstock.pipeline import forecasting
    from penstock.pipeline.forecasting import split_people

    if stream is None:
        _load_house()  # where no simulation is installed, that is an error before Spark is started
    with _open_spark() as spark:
        if stream is not None:
            learned, unseen = split_people(_read_stream(spark, stream, purposes).cache())
            others = {f"every fourth person of {stream}": unseen}
        else:
            learned = _simulate(spark, patients, days, seed)
            seeds = [seed + SEED_STEP * (number + 1) for number in range(houses)]
            others = {f"seed {it}": _simulate(spark, patients, days, it) for it in seeds}
        model = forecasting.train(learned)
        warns, rule = forecasting.warns_by_model(model), forecasting.warns_by_rule()
        trained_on = forecasting.measure(learned, warns)
        each = {name: forecasting.measure(signs, warns) for name, signs in others.items()}
        plain = [forecasting.measure(signs, rule) for signs in others.values()]
    model.save(path)
    found = Found(trained_on, each, reduce(add, plain), simulated=stream is None)
    data = {"model": str(path), "threshold": model.threshold, **found.as_dict()}
    show(as_json, data, lambda out: _render_quality(out, path, found))


@dataclass(frozen=True, slots=True)
class Found:
    """How good a model is, and a plain rule for comparison."""

    trained_on: Quality
    each: dict[str, Quality]
    plain: Quality
    simulated: bool

    @property
    def unseen(self) -> Quality:
        """The quality for all people whom the model has not seen."""
        return reduce(add, self.each.values())

    def as_dict(self) -> dict[str, Any]:
        """Return all as JSON data."""
        return {
            "simulated": self.simulated,
            "quality": self.unseen.as_dict(),
            "plain_rule": self.plain.as_dict(),
            "trained_on": self.trained_on.as_dict(),
            "each": {name: it.as_dict() for name, it in self.each.items()},
        }


def _render_quality(out: Console, path: Path, found: Found) -> None:
    people = "simulated people" if found.simulated else "people"
    shown = table(f"{people} whom the model has not seen", "model", "plain rule", "trained on")
    sides = (found.unseen, found.plain, found.trained_on)
    for about, name in (
        ("hours of patients with a forecast", "hours"),
        ("hours within 12 h before a worsening", "followed"),
        ("hours with a warning", "warned"),
        ("worsenings", "onsets"),
    ):
        shown.add_row(about, *(f"{getattr(it, name):,}" for it in sides))
    for about, name in (
        ("precision: warnings that a worsening followed", "precision"),
        ("recall: hours before a worsening with a warning", "recall"),
        ("foresight: worsenings with a warning before", "foresight"),
    ):
        shown.add_row(about, *(f"{getattr(it, name):.1%}" for it in sides))
    out.print(shown)
    for name, it in found.each.items():
        figures = (
            f"precision {it.precision:.1%}, recall {it.recall:.1%}, foresight {it.foresight:.1%}"
        )
        out.print(f"{name}: {figures}", style="dim")
    unknown = "; its quality for real patients is unknown" if found.simulated else ""
    out.print(f"the model is in {path}{unknown}", style="dim")


@command.command()
@click.option(
    "--model", "path", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
)  # fmt: skip
@click.option(
    "--signs", type=click.Path(exists=True, path_type=Path),
    help="Vital signs as JSON lines: patient, hour, temperature, respiratory, saturation.",
)  # fmt: skip
@click.option("--stream", help="Take the vital signs from this stream of the event log.")
@click.option("--to", metavar="mqtt://HOST:PORT", help="Publish through this gateway.")
@click.option("--user", default="forecaster", show_default=True, help="Who publishes.")
@click.option(
    "--password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file that holds the user's password; nobody else may be able to read it.",
)  # fmt: skip
@_purposes
@json_option
def run(
    *,
    path: Path,
    signs: Path | None,
    stream: str | None,
    to: str | None,
    user: str,
    password_file: Path | None,
    purposes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Forecast who may deteriorate within 12 hours of the last hour known, and publish it."""
    from penstock.config.secrets import SecretFile
    from penstock.pipeline import forecasting
    from penstock.pipeline.forecasting import read_lines

    if (signs is None) == (stream is None):
        raise UsageError("vital signs come from one place", fix="give either --signs or --stream")

    model = forecasting.Model.load(path)
    address = parse_address(to) if to is not None else None
    with _open_spark() as spark:
        if stream is not None:
            hours = _read_stream(spark, stream, purposes)
        else:
            assert signs is not None  # noqa: S101 - one of both is there
            hours = read_lines(spark, signs)
        found = list(forecasting.forecast(hours, model))
    published = 0
    if address is not None and found:
        word = SecretFile(password_file).read_text().strip() if password_file else None
        published = _publish(address, user, word, found)
        if published < len(found):
            raise UsageError(
                f"the gateway refused {len(found) - published} of {len(found)} forecasts",
                fix=f"a policy must let {user} write to {TOPIC}",
            )

    def render(out: Console) -> None:
        shown = table("patient", "risk within 12 h")
        for it in found:
            shown.add_row(it["pid"], f"{it['risk']:.1%}")
        out.print(shown if found else "nobody has a risk to be warned of")

    show(as_json, {"forecasts": found, "published": published}, render)


def _publish(
    address: tuple[str, int], user: str, password: str | None, found: list[dict[str, Any]]
) -> int:
    """Publish forecasts one by one; return how many the gateway took."""
    from penstock.client import RefusedError

    published = 0
    client = connect(address, user, password, fix="give --user and --password-file")
    try:
        for it in found:
            with suppress(RefusedError):
                client.send(TOPIC, json.dumps(it).encode(), qos=1).wait(ANSWER_SECONDS)
                published += 1
    finally:
        disconnect(client)
    return published


@contextmanager
def _open_spark() -> Iterator[Session]:
    from penstock.pipeline.records.parser import use_keys
    from penstock.pipeline.session import open_session

    spark = open_session(configuration().pipeline)
    use_keys(configuration())
    try:
        yield spark
    finally:
        spark.stop()


def _load_house() -> type:
    return load_plugin(SIMULATIONS, HOUSE, type)


def _simulate(spark: Session, patients: int, days: int, seed: int) -> Hours:
    import pandas as pd

    from penstock.pipeline.forecasting import COLUMNS

    names = [column.split()[0] for column in COLUMNS.split(", ")]
    house = _load_house()(patients, days, seed)
    rows = pd.DataFrame(house.signs(), columns=names)
    return spark.createDataFrame(rows, schema=COLUMNS)


def _read_stream(spark: Session, name: str, purposes: tuple[str, ...]) -> Hours:
    from penstock.eventlog.registry import SchemaRegistry
    from penstock.model.kinds import Purpose, Stream
    from penstock.pipeline.forecasting import read_stream
    from penstock.pipeline.sources.source import open_source
    from penstock.store.consent import ConsentBook

    config = configuration()
    with open_definitions() as store:
        definitions = store.current()[1]
    known, declared = definitions.of(Stream), definitions.of(Purpose)
    for it in purposes:
        if it not in declared:
            fix = f"purposes are {', '.join(declared) or 'none yet'}"
            raise UsageError(f"there is no purpose {quote(it)}", fix=fix)
    if name not in known:
        fix = f"streams are {', '.join(known) or 'none yet'}"
        raise UsageError(f"there is no stream {quote(name)}", fix=fix)
    stream = known[name]
    kafka = stream.source.kafka if stream.source else None
    schemas = SchemaRegistry(kafka.registry) if kafka and kafka.registry else None
    source = open_source(stream, config.pipeline, config.kafka)
    with open_database(config) as database:
        chosen = ConsentBook.open(database, config.consent.key).opt_outs()
    refusing = chosen.refusing(purposes) if purposes else chosen.refusing_any()
    return read_stream(spark, stream, source, schemas, refusing)

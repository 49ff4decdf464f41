"""`penstock forecast`: who may soon be worse, as advice to the staff.

Rules that hold here:
- Forecasts are messages like others: published by a user who may, read by those who may.
  Nothing else follows from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from penstock.cli.output import json_option, show, table
from penstock.cli.session import configuration
from penstock.cli.simulate import parse_address
from penstock.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.forecasting import Quality

TOPIC = "forecast/worsening"
MOST_SEED = 2**63 - 2


@click.group("forecast")
def command() -> None:
    """Foresee a worsening of vital signs; advice to the staff that opens nothing."""


@command.command()
@click.option("--patients", type=click.IntRange(10, 10_000), default=300, show_default=True)
@click.option("--days", type=click.IntRange(3, 365), default=30, show_default=True)
@click.option("--seed", type=click.IntRange(0, MOST_SEED), default=0, show_default=True)
@click.option(
    "--model", "path", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="The JSON file to write the model to.",
)  # fmt: skip
@json_option
def train(*, patients: int, days: int, seed: int, path: Path, as_json: bool) -> None:
    """Train a model on a simulated nursing home, and measure it on another.

    The quality is that on simulated people. It says that the way from signs to forecasts
    works; it says nothing about real patients.
    """
    from penstock.pipeline import forecasting

    with _open_spark() as spark:
        learned = _simulate(spark, patients, days, seed)
        model = forecasting.train(learned)
        unseen = _simulate(spark, patients, days, seed + 1)
        quality = forecasting.measure(unseen, forecasting.warns_by_model(model))
        plain = forecasting.measure(unseen, forecasting.warns_by_rule())
    model.save(path)
    data = {
        "model": str(path),
        "threshold": model.threshold,
        "quality": quality.as_dict(),
        "plain_rule": plain.as_dict(),
    }
    show(as_json, data, lambda out: _render_quality(out, path, quality, plain))


def _render_quality(out: Console, path: Path, model: Quality, plain: Quality) -> None:
    shown = table("on simulated people whom the model has not seen", "model", "plain rule")
    for about, name in (
        ("hours of patients with a forecast", "hours"),
        ("hours within 12 h before a worsening", "followed"),
        ("hours with a warning", "warned"),
        ("worsenings", "onsets"),
    ):
        shown.add_row(about, f"{getattr(model, name):,}", f"{getattr(plain, name):,}")
    for about, name in (
        ("precision: warnings that a worsening followed", "precision"),
        ("recall: hours before a worsening with a warning", "recall"),
        ("foresight: worsenings with a warning before", "foresight"),
    ):
        shown.add_row(about, f"{getattr(model, name):.1%}", f"{getattr(plain, name):.1%}")
    out.print(shown)
    out.print(f"the model is in {path}; its quality for real patients is unknown", style="dim")


@command.command()
@click.option(
    "--model", "path", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
)  # fmt: skip
@click.option(
    "--signs", required=True, type=click.Path(exists=True, path_type=Path),
    help="Vital signs as JSON lines: patient, hour, temperature, respiratory, saturation.",
)  # fmt: skip
@click.option("--to", metavar="mqtt://HOST:PORT", help="Publish through this gateway.")
@click.option("--user", default="forecaster", show_default=True, help="Who publishes.")
@click.option(
    "--password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file that holds the user's password; nobody else may read it.",
)  # fmt: skip
@json_option
def run(
    *,
    path: Path,
    signs: Path,
    to: str | None,
    user: str,
    password_file: Path | None,
    as_json: bool,
) -> None:
    """Tell who may be worse within 12 hours of the last hour known, and publish it."""
    from penstock.config.secrets import SecretFile
    from penstock.pipeline import forecasting

    model = forecasting.Model.load(path)
    address = parse_address(to) if to is not None else None
    with _open_spark() as spark:
        found = list(forecasting.forecast(_read(spark, signs), model))
    published = 0
    if address is not None:
        from penstock.demo.nursing_home.clients import Clients

        word = SecretFile(password_file).read_text().strip() if password_file else None
        with Clients(*address, lambda _: word) as clients:
            published = sum(clients.publish(user, TOPIC, it) for it in found)
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


@contextmanager
def _open_spark() -> Iterator[SparkSession]:
    from penstock.pipeline.session import open_session

    spark = open_session(configuration().pipeline)
    try:
        yield spark
    finally:
        spark.stop()


COLUMNS = "patient string, hour bigint, temperature double, respiratory double, saturation double"


def _simulate(spark: SparkSession, patients: int, days: int, seed: int) -> DataFrame:
    import pandas as pd

    from penstock.generate.nursing_home import House

    names = [column.split()[0] for column in COLUMNS.split(", ")]
    rows = pd.DataFrame(House(patients, days, seed).signs(), columns=names)
    return spark.createDataFrame(rows, schema=COLUMNS)


def _read(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.schema(COLUMNS).json(str(path)).dropna()

"""Forecasts of a worsening: who may soon be short of breath or of oxygen.

    records: who, when, some sign ──▶ the worst of each hour ──▶ patient, hour, three signs
    vital signs, hour by hour ──▶ features of the last hours ──▶ risk within 12 hours

Rules that hold here:
- Of an hour the worst reading of each sign counts, so that no threshold is missed. An hour
  in which a sign was not measured is left out. Records that are none, that are about nobody,
  or that do not tell when they happened count as not measured.
- Who opted out of what a forecast is for is neither learned from nor forecast; where nobody says
  what it is for, who opted out of anything.
- A forecast is advice. It is published to the staff and bound to no event type: it opens
  nothing, and closes nothing.
- A forecast is made only for who has crossed no threshold for a day: the others are known.
- Quality is told for people whom neither the model nor its authors have seen, beside that of
  a plain rule and that for the people it was trained on, and by rows as well as by worsenings
  that were foreseen.
- The model is a list of weights in JSON: anybody can read what it looks at.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark.ml.classification import LogisticRegression
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users call it
from pyspark.sql.window import Window

from penstock.errors import UnavailableError, UsageError, quote
from penstock.model.kinds import Stream
from penstock.pipeline.records.avro import FindSchema
from penstock.pipeline.records.columns import PROBLEM, TIME
from penstock.pipeline.records.opt_outs import OptedOut, mark_refused
from penstock.pipeline.records.parser import parse_records
from penstock.pipeline.sources.source import Source

Hours: TypeAlias = DataFrame
"""The signs of people, hour by hour, with the columns of `COLUMNS`."""

COLUMNS: Final = (
    "patient string, hour bigint, temperature double, respiratory double, saturation double"
)
WORST: Final = {"temperature": F.max, "respiratory": F.max, "saturation": F.min}
HOUR: Final = 3_600_000
_NUMBERS: Final = frozenset({"int", "long", "float", "double"})
_SHARES: Final = 4


def read_lines(spark: SparkSession, path: Path) -> Hours:
    """Return the hours of a file of JSON lines."""
    return spark.read.schema(COLUMNS).json(str(path)).dropna()


def read_stream(
    spark: SparkSession,
    stream: Stream,
    source: Source,
    find_schema: FindSchema | None = None,
    refusing: OptedOut | None = None,
) -> Hours:
    """Return the hours of all records that a stream has now, but of those who refuse."""
    subject = _check_stream(stream)
    parsed = parse_records(source.read(spark), stream, find_schema)
    parsed = mark_refused(parsed, stream, refusing or OptedOut())
    told = parsed.where(F.col(f"`{PROBLEM}`").isNull()).select(
        F.col(f"`{subject}`").cast("string").alias("patient"),
        F.floor(F.col(f"`{TIME}`") / HOUR).alias("hour"),
        *(F.col(sign).cast("double").alias(sign) for sign in WORST),
    )
    worst = [function(sign).alias(sign) for sign, function in WORST.items()]
    return told.groupBy("patient", "hour").agg(*worst).dropna()


def split_people(signs: Hours) -> tuple[Hours, Hours]:
    """Return the hours of three of four people, and those of the others.

    Who is where depends on the name alone, so that it is the same each time.
    """
    held_out = F.pmod(F.xxhash64("patient"), F.lit(_SHARES)) == 0
    return signs.where(~held_out), signs.where(held_out)


def _check_stream(stream: Stream) -> str:
    """Refuse a stream without vital signs; return the field that tells the patient."""
    types = {field.name: field.type for field in stream.fields}
    lacking = [sign for sign in WORST if types.get(sign) not in _NUMBERS]
    if lacking:
        raise UsageError(
            f"the stream {quote(stream.name)} has no number {quote(lacking[0])}",
            fix=f"name a stream with the fields {', '.join(WORST)}",
        )
    if stream.subject is None:
        raise UsageError(
            f"the stream {quote(stream.name)} does not say whom records are about",
            fix="add subject to its definition",
        )
    return stream.subject


VERSION: Final = 1
HORIZON: Final = 12
"""How many hours ahead."""
QUIET: Final = 24
"""For how many hours no threshold may have been crossed."""
RECENT: Final = (3, 6, 12)
"""Hours over which means and trends are taken."""
SIGNS: Final = ("temperature", "respiratory", "saturation")
MOST_BREATHS: Final = 25.0
LEAST_OXYGEN: Final = 95.0
BUCKETS: Final = 1000
MODEL_BYTES: Final = 1 << 20
LEAST_CASES: Final = 20
ROUNDS: Final = 30
SMOOTHING: Final = 1e-3
"""Keeps weights small of features that say the same."""

USUAL_BREATHS: Final = 18.0
USUAL_OXYGEN: Final = 97.0

FEATURES: Final = (
    *(f"{what}_{sign}_{it}" for it in RECENT for sign in SIGNS for what in ("mean", "trend")),
    # How far breath and oxygen are beyond what is usual: within it they tell nothing.
    *(f"beyond_{sign}_{it}" for it in RECENT for sign in ("respiratory", "saturation")),
    *(f"last_{sign}" for sign in SIGNS),
)


@dataclass(frozen=True, slots=True)
class Model:
    """Weights of the features, and from which risk on to warn."""

    weights: dict[str, float]
    intercept: float
    threshold: float

    def risk(self) -> Column:
        """Return the risk as a column over the features."""
        total = F.lit(self.intercept)
        for name, weight in self.weights.items():
            total = total + F.col(name) * F.lit(weight)
        return 1 / (1 + F.exp(-total))

    def save(self, path: Path) -> None:
        """Write the model as JSON."""
        path.write_text(json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Model:
        """Read a model; refuse what is none."""
        try:
            with path.open("rb") as file:
                data = json.loads(file.read(MODEL_BYTES))
            _check_model(data)
        except OSError as error:
            raise UnavailableError(
                f"{quote(path)} cannot be read: {error.strerror}", fix="name a model"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f"{quote(path)} is not a model of this version", fix="`penstock forecast train`"
            ) from None
        return cls(data["weights"], data["intercept"], data["threshold"])


def _check_model(data: Any) -> None:
    numbers = [*data["weights"].values(), data["intercept"], data["threshold"]]
    known = data["version"] == VERSION and set(data["weights"]) == set(FEATURES)
    if not known or not all(isinstance(it, int | float) and math.isfinite(it) for it in numbers):
        raise ValueError(data["version"])


@dataclass(frozen=True, slots=True)
class Quality:
    """How good forecasts are."""

    hours: int
    """Hours of patients for which there was a forecast."""
    followed: int
    """Those that a worsening followed within the horizon."""
    warned: int
    right: int
    onsets: int
    foreseen: int

    @property
    def precision(self) -> float:
        """The share of warnings that a worsening followed."""
        return self.right / self.warned if self.warned else 0.0

    @property
    def recall(self) -> float:
        """The share of hours before a worsening with a warning."""
        return self.right / self.followed if self.followed else 0.0

    @property
    def foresight(self) -> float:
        """The share of worsenings with at least one warning before."""
        return self.foreseen / self.onsets if self.onsets else 0.0

    def __add__(self, other: Quality) -> Quality:
        """Return the quality for both together."""
        pairs = zip(asdict(self).items(), asdict(other).values(), strict=True)
        return Quality(**{name: one + more for (name, one), more in pairs})

    def as_dict(self) -> dict[str, Any]:
        """Return counts and shares as JSON data."""
        shares = {name: round(getattr(self, name), 4)
                  for name in ("precision", "recall", "foresight")}  # fmt: skip
        return {**asdict(self), **shares}


def add_features(signs: DataFrame) -> DataFrame:
    """Add features to hours of patients: columns patient, hour, and the three signs.

    Hours for which no forecast is made are left out.
    """
    by_patient = Window.partitionBy("patient").orderBy("hour")
    quiet = by_patient.rangeBetween(-QUIET + 1, 0)
    at = F.col("hour").cast("double")
    made = {
        "known": F.max(_is_crossed().cast("int")).over(quiet),
        **{f"last_{sign}": F.col(sign) for sign in SIGNS},
    }
    for hours in RECENT:
        recent = by_patient.rangeBetween(-hours + 1, 0)
        spread = F.var_pop(at).over(recent)
        for sign in SIGNS:
            trend = F.try_divide(F.covar_pop(at, F.col(sign)).over(recent), spread)
            made[f"mean_{sign}_{hours}"] = F.avg(sign).over(recent)
            made[f"trend_{sign}_{hours}"] = F.coalesce(trend, F.lit(0.0))
    beyond = {}
    for hours in RECENT:
        breaths = F.col(f"mean_respiratory_{hours}") - USUAL_BREATHS
        oxygen = F.lit(USUAL_OXYGEN) - F.col(f"mean_saturation_{hours}")
        beyond[f"beyond_respiratory_{hours}"] = F.greatest(F.lit(0.0), breaths)
        beyond[f"beyond_saturation_{hours}"] = F.greatest(F.lit(0.0), oxygen)
    told = signs.withColumns(made).where("known = 0").withColumns(beyond)
    return told.dropna(subset=list(FEATURES))


def add_outcome(signs: DataFrame) -> DataFrame:
    """Add to features what came: `onset` is the hour of the next worsening in the horizon."""
    by_patient = Window.partitionBy("patient").orderBy("hour")
    ahead = by_patient.rangeBetween(1, HORIZON)
    last = F.max("hour").over(Window.partitionBy("patient"))
    onset = F.min(F.when(_is_crossed(), F.col("hour"))).over(ahead)
    told = signs.withColumn("onset", onset).withColumn("last", last)
    # Of the last hours nobody knows yet what followed.
    return add_features(told).where(
        F.col("onset").isNotNull() | (F.col("hour") + HORIZON <= F.col("last"))
    )


def _is_crossed() -> Column:
    return (F.col("respiratory") > MOST_BREATHS) | (F.col("saturation") < LEAST_OXYGEN)


def train(signs: DataFrame) -> Model:
    """Fit a model; warn from where precision and recall are best together."""
    known = add_outcome(signs).withColumn("label", F.col("onset").isNotNull().cast("double"))
    assembled = VectorAssembler(inputCols=list(FEATURES), outputCol="features").transform(known)
    assembled = assembled.select("features", "label", *FEATURES).cache()
    try:
        cases = assembled.where("label = 1").count()
        if cases < LEAST_CASES:
            raise UsageError(
                f"only {cases} hours before a worsening are known",
                fix="train on more patients or more days",
            )
        fitted = LogisticRegression(maxIter=ROUNDS, regParam=SMOOTHING).fit(assembled)
        weights = dict(zip(FEATURES, map(float, fitted.coefficients), strict=True))
        model = Model(weights, float(fitted.intercept), 0.5)
        return Model(weights, model.intercept, _choose_threshold(model, assembled))
    finally:
        assembled.unpersist()


def _choose_threshold(model: Model, known: DataFrame) -> float:
    """Return the risk from which on warnings have the best harmonic mean of both shares."""
    bucket = F.floor(model.risk() * BUCKETS).alias("bucket")
    rows = known.groupBy(bucket).agg(F.count("*").alias("all"), F.sum("label").alias("right"))
    counted = {row["bucket"]: (row["all"], row["right"]) for row in rows.collect()}
    followed = sum(right for _, right in counted.values())
    best = (0.0, 1.0)
    warned = found = 0.0
    for place in sorted(counted, reverse=True):
        warned += counted[place][0]
        found += counted[place][1]
        best = max(best, (2 * found / (warned + followed), place / BUCKETS))
    return best[1]


def measure(signs: DataFrame, warns: Column) -> Quality:
    """Measure warnings on hours whose outcome is known; `warns` is over the features."""
    known = add_outcome(signs).withColumn("warned", warns.cast("int"))
    followed = F.col("onset").isNotNull()
    right = followed & (F.col("warned") == 1)
    row = known.agg(
        F.count("*").alias("hours"),
        F.sum(followed.cast("int")).alias("followed"),
        F.sum("warned").alias("warned"),
        F.sum(right.cast("int")).alias("right"),
        F.countDistinct(F.when(followed, F.struct("patient", "onset"))).alias("onsets"),
        F.countDistinct(F.when(right, F.struct("patient", "onset"))).alias("foreseen"),
    ).first()
    counts = row.asDict() if row is not None else {}
    return Quality(**{name: int(counts.get(name) or 0) for name in Quality.__slots__})


def warns_by_model(model: Model) -> Column:
    """Return whether a model warns."""
    return model.risk() >= model.threshold


def warns_by_rule() -> Column:
    """Return whether a plain rule warns: one sign is already half on its way."""
    return (F.col("last_respiratory") >= 21) | (F.col("last_saturation") <= 96.5)  # noqa: PLR2004


def forecast(signs: DataFrame, model: Model) -> Iterator[dict[str, Any]]:
    """Yield the present forecasts: who has a risk to be warned of, in the last hour known."""
    now = signs.agg(F.max("hour")).first()
    if now is None or now[0] is None:
        return
    rows = (
        add_features(signs)
        .where(F.col("hour") == now[0])
        .withColumn("risk", model.risk())
        .where(F.col("risk") >= model.threshold)
        .orderBy(F.desc("risk"), "patient")
        .select("patient", "risk")
    )
    for row in rows.toLocalIterator():
        yield {"pid": row["patient"], "risk": round(row["risk"], 3), "hours": HORIZON}

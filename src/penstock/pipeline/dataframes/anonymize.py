"""`anonymize`: the records of a stream as a DataFrame in, the records of a view out.

Rules that hold here:
- What comes out has the fields of the view and no others: nothing of the frame passes that the
  definitions do not let pass.
- What cannot work, or would silently work otherwise than defined, is refused before Spark runs.
- Records that do not get into the view are dropped, or come with the reason and without fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.config.secrets import SecretFile
from penstock.definitions import DefinitionSet, read_paths
from penstock.definitions.views import schema_of
from penstock.errors import UsageError, quote
from penstock.model.kinds import Stream
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.dataframes.shard_step import ORDER
from penstock.pipeline.dataframes.shards import REASON
from penstock.pipeline.dataframes.view import PROVIDER, ROCKSDB, count_shards, make_view, named
from penstock.pipeline.records.columns import (
    OFFSET,
    PERSON,
    PROBLEM,
    TIME,
    place_in_time,
    refuse_time,
    tell_time,
)
from penstock.pipeline.records.opt_outs import OptedOut, mark_refused

_ZONE: Final = "spark.sql.session.timeZone"


def anonymize(
    frame: DataFrame,
    *,
    view: str,
    definitions: DefinitionSet | str | Path | Sequence[str | Path],
    key: bytes | str | Path,
    position: str | None = None,
    arrival: str | None = None,
    rejected: str | None = None,
    shards: int | None = None,
    opted_out: OptedOut | None = None,
) -> DataFrame:
    """Return the records of a view, of a batch or of a stream.

    frame: the records of the view's stream, a column for each field, of its type. It may stream.
    view: the name of the view.
    definitions: files or folders of definitions, or a set of them.
    key: what pseudonyms, tokens and noise are made with; a file of mode 0600, or the key itself.
    position: a column of type bigint that says where a record stands in its source, for good. Masks
        that draw chance draw by it; rejected records come with it.
    arrival: a column of type timestamp that says when a record arrived, by the word of who keeps
        the source and not of who wrote the record. The stream's time is held against it, or
        against the moment of reading where it is left out.
    rejected: the name of a column for the reason why a record is not in the view. Without it,
        only records of the view come out.
    shards: how many groups of persons are worked on side by side, in views that hold records
        back. Left out: as many as the cluster has cores.
    opted_out: people whose records stay out.
    """
    blueprint = Blueprint.find(_read_definitions(definitions), view)
    secret = key if isinstance(key, bytes) else SecretFile(Path(key)).read()
    _check(frame, blueprint, position, arrival, rejected)
    records = _mark(frame, blueprint, position, arrival, opted_out)
    number = count_shards(frame.sparkSession, blueprint, shards)
    made = make_view(records, blueprint, secret, shards=number, located=bool(position))
    return _finish(made, blueprint, position, rejected)


def _read_definitions(
    given: DefinitionSet | str | Path | Sequence[str | Path],
) -> DefinitionSet:
    if isinstance(given, DefinitionSet):
        return given
    paths = [given] if isinstance(given, str | Path) else given
    reading = read_paths(map(str, paths))
    empty = DefinitionSet.empty()
    return empty.change(reading.documents, locate=reading.locate, problems=reading.problems)


def _check(
    frame: DataFrame,
    blueprint: Blueprint,
    position: str | None,
    arrival: str | None,
    rejected: str | None,
) -> None:
    """Refuse what would go wrong later, or silently otherwise than defined."""
    session = frame.sparkSession
    zone = session.conf.get(_ZONE)
    if zone != "UTC":
        raise UsageError(
            f"the session's time zone is {quote(zone)}; dates would be taken for other days",
            fix=f'spark.conf.set("{_ZONE}", "UTC")',
        )
    if position is not None and dict(frame.dtypes).get(position) != "bigint":
        raise UsageError(
            f"there is no column {quote(position)} of type bigint", fix="cast it to bigint"
        )
    if arrival is not None and dict(frame.dtypes).get(arrival) != "timestamp":
        raise UsageError(
            f"there is no column {quote(arrival)} of type timestamp", fix="cast it to timestamp"
        )
    taken = {name.lower() for name in blueprint.plan.output}
    for name in (rejected, position if rejected is not None else None):
        if name is not None and name.lower() in taken:
            raise UsageError(
                f"the view has a field {quote(name)} of its own", fix="give the column another name"
            )
    if not blueprint.plan.stateful or not frame.isStreaming:
        return
    if blueprint.view.window is not None and blueprint.stream.time is None:
        raise UsageError(
            f"the stream {quote(blueprint.stream.name)} does not say which field is its time",
            fix="add time: FIELD to the stream",
        )
    if session.conf.get(PROVIDER, "") != ROCKSDB:
        raise UsageError(
            "Spark keeps state of this kind in RocksDB only, and the session has another store",
            fix=f'spark.conf.set("{PROVIDER}", "{ROCKSDB}")',
        )


def _mark(
    frame: DataFrame,
    blueprint: Blueprint,
    position: str | None,
    arrival: str | None,
    opted_out: OptedOut | None,
) -> DataFrame:
    """Add what the rest needs to know of a record, before masks change its fields."""
    stream = blueprint.stream
    fields = [named(name) for name in schema_of(stream)]
    order = named(position) if position else F.xxhash64(*fields)
    offset = order if position else F.lit(None).cast("bigint")
    subject = named(stream.subject) if stream.subject else None
    person = offset if subject is None else F.when(subject.isNotNull(), F.xxhash64(subject))
    happened, problem = _time(stream, arrival)
    marked = frame.select(
        *fields,
        offset.alias(OFFSET),
        person.alias(PERSON),
        happened.alias(TIME),
        order.alias(ORDER),
        problem.alias(PROBLEM),
    )
    return mark_refused(marked, stream, opted_out) if opted_out else marked


def _time(stream: Stream, arrival: str | None) -> tuple[Column, Column]:
    """Return when a record happened, and why that is not believed."""
    if stream.time is None:
        return F.lit(None).cast("bigint"), F.lit(None).cast("string")
    told = tell_time(named(stream.time), schema_of(stream)[stream.time].type)
    # Of a stream, Spark takes the moment at which a micro-batch was planned, also after a kill.
    arrived = F.unix_millis(F.current_timestamp() if arrival is None else named(arrival))
    # What is read today may have arrived long ago.
    behind = None if arrival is None else stream.behind
    return place_in_time(told, arrived), refuse_time(told, arrived, stream.ahead, behind)


def _finish(
    records: DataFrame, blueprint: Blueprint, position: str | None, rejected: str | None
) -> DataFrame:
    fields = [named(name) for name in blueprint.plan.output]
    reason = named(REASON)
    if rejected is None:
        return records.where(reason.isNull()).select(*fields)
    # Where a published record stood would tell which one it was.
    where = [F.when(reason.isNotNull(), named(OFFSET)).alias(position)] if position else []
    return records.select(*fields, *where, reason.alias(rejected))

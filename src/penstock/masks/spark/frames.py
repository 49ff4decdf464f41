"""Lays a chain of masks over a frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.errors import InvalidError, Problem, quote
from penstock.masks.chain import NO_IDENTITY, Chain, missing_reason, type_reason
from penstock.masks.fields import DATES, Field, FieldType, count_microseconds
from penstock.masks.generalization import Suppression
from penstock.masks.spark.column_builder import ColumnBuilder, spark_type
from penstock.masks.spark.columns import build_columns

_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY = date.min.toordinal() - _EPOCH
_LAST_DAY = date.max.toordinal() - _EPOCH
_FIRST = count_microseconds(datetime.min.replace(tzinfo=UTC))
_LAST = count_microseconds(datetime.max.replace(tzinfo=UTC))

COLUMN: Final = "penstock:column"
REASON: Final = "penstock:reason"


def mask_frame(
    frame: DataFrame,
    chain: Chain,
    *,
    identity: Column | None = None,
    carry: Sequence[str] = (),
    rejection: str = "rejected",
) -> DataFrame:
    """Return the fields of the view, the columns to carry along, and the reason of a rejection.

    The frame may stream. It has a column of the right type for each field of the chain's
    schema. `identity` is text that names a record for good; chance is drawn from it. The
    columns in `carry` pass as they are, so that a caller can keep rejected originals.
    """
    masks = RowMasks(frame.sparkSession, chain, identity=identity, carry=carry, rejection=rejection)
    return masks.apply(frame)


class RowMasks:
    """What `mask_frame` does, built once for many frames: to build it costs time with each."""

    def __init__(
        self,
        session: SparkSession,
        chain: Chain,
        *,
        identity: Column | None = None,
        carry: Sequence[str] = (),
        rejection: str = "rejected",
    ) -> None:
        self._chain, self._identity = chain, identity
        self._carry, self._rejection = tuple(carry), rejection
        columns = {name: _named(name) for name in chain.schema}
        self._builder = builder = ColumnBuilder(session, columns, identity)
        builder.reasons.extend(_conform_all(builder.columns, chain))
        _lay(chain, builder)
        (reason,) = builder.keep(F.coalesce(*builder.reasons, _none()))
        fields = [
            F.when(reason.isNull(), builder.columns[name]).alias(name) for name in chain.output
        ]
        self._made = [*fields, *map(_named, self._carry), reason.alias(rejection)]

    def apply(self, frame: DataFrame) -> DataFrame:
        """Return the fields of the view, what is carried along, and the reason of a rejection."""
        _check_frame(frame, self._chain, self._identity, self._carry, self._rejection)
        return self._builder.apply(frame).select(*self._made)


@dataclass(frozen=True, slots=True)
class ChainLayout:
    """Where a chain's fields stand in a frame of several chains, and why rows are rejected."""

    columns: tuple[str, ...]
    """The columns of the chain's output, in its order; only for rows without a reason."""
    reason: str


class JointMasks:
    """Several chains over one frame, next to each other; what they share stands once.

    All chains have the schema of the frame. A row with a problem is rejected by all of them.
    Unlike `mask_frame` this leaves the fields of rejected rows as they are: the caller takes
    from each chain the rows without a reason, and no others.
    """

    def __init__(
        self, session: SparkSession, chains: Sequence[Chain], *, identity: Column, problem: Column
    ) -> None:
        first = chains[0]
        self._chains = tuple(chains)
        self._identity = identity
        columns = {name: _named(name) for name in first.schema}
        self._builder = builder = ColumnBuilder(session, columns, identity)
        shared = dict(builder.columns)
        (common,) = builder.keep(F.coalesce(problem, *_conform_all(shared, first), _none()))
        self._made: list[Column] = []
        self.layouts = []
        for chain in chains:
            builder.columns, builder.reasons = dict(shared), [common]
            _lay(chain, builder)
            reason = common if len(builder.reasons) == 1 else F.coalesce(*builder.reasons)
            fields = tuple(self._place(builder.columns[name]) for name in chain.output)
            self.layouts.append(ChainLayout(fields, self._place(reason)))

    def _place(self, column: Column) -> str:
        """Return the name of a column, the same for the same column."""
        # Columns cannot be compared by themselves: that would make a column.
        for place, found in enumerate(self._made):
            if found is column:
                return f"{COLUMN}{place}"
        self._made.append(column)
        return f"{COLUMN}{len(self._made) - 1}"

    def apply(self, frame: DataFrame, carry: Sequence[str] = ()) -> DataFrame:
        """Return the columns of all chains, as `layouts` says, and those to carry along."""
        for chain in self._chains:
            _check_frame(frame, chain, self._identity, carry, REASON)
        made = [column.alias(f"{COLUMN}{place}") for place, column in enumerate(self._made)]
        return self._builder.apply(frame).select(*made, *(_named(name) for name in carry))


def _lay(chain: Chain, builder: ColumnBuilder) -> None:
    """Lay the masks of a chain over the columns of a workbench."""
    if chain.needs_identity:
        absent = ~F.coalesce(F.is_valid_utf8(builder.identity), F.lit(col=False))
        builder.reasons.append(F.when(absent, F.lit(NO_IDENTITY)))
    for mask, stage in chain.stages:
        made = build_columns(mask, stage, builder)
        # Constants need no step of their own: each costs time with every batch.
        kept = list(made.values())
        if not isinstance(mask, Suppression):
            kept = builder.keep(*kept)
        for name, column in zip(made, kept, strict=True):
            if mask.refusal:
                refused = builder.columns[name].isNotNull() & column.isNull()
                builder.reasons.append(F.when(refused, F.lit(mask.reason(name))))
            builder.columns[name] = column


def _none() -> Column:
    return F.lit(None).cast("string")


def _escape(name: str) -> str:
    return name.replace("`", "``")


def _named(name: str) -> Column:
    return F.col(f"`{_escape(name)}`")


def _check_frame(
    frame: DataFrame, chain: Chain, identity: Column | None, carry: Sequence[str], rejection: str
) -> None:
    problems = []
    found = {field.name: field.dataType for field in frame.schema.fields}
    for name, field in chain.schema.items():
        wanted = spark_type(field.type)
        if name not in found:
            problems.append(Problem(name, f"the frame has no such column for {field.type}"))
        elif found[name] != wanted:
            message = f"the column is {found[name].simpleString()}"
            problems.append(Problem(name, message, f"cast it to {wanted.simpleString()}"))
    problems += [
        Problem(name, "there is no such column to carry") for name in carry if name not in found
    ]
    names = [name.lower() for name in (*chain.output, *carry, rejection)]
    for name in sorted({name for name in names if names.count(name) > 1}):
        message = f"two columns of the result would be called {quote(name)}"
        problems.append(Problem(name, message, "give rejection or the carried column another name"))
    if chain.needs_identity and identity is None:
        problems.append(
            Problem("identity", "the masks draw chance, and need the records' identity")
        )
    if problems:
        raise InvalidError("columns of the frame", problems)


def _conform_all(columns: Mapping[str, Column], chain: Chain) -> Iterator[Column]:
    for name, found in chain.schema.items():
        yield from _conform(columns[name], name, found)


def _conform(column: Column, name: str, found: Field) -> Iterator[Column]:
    """Yield the reasons for which a row does not conform to the schema."""
    if not found.optional:
        yield F.when(column.isNull(), F.lit(missing_reason(name)))
    wrong = F.lit(type_reason(name, found.type))
    if found.type is FieldType.STRING:
        yield F.when(~F.is_valid_utf8(column), wrong)
    elif found.type is FieldType.DATE:
        yield F.when(~F.unix_date(column).between(_FIRST_DAY, _LAST_DAY), wrong)
    elif found.type in DATES:
        yield F.when(~F.unix_micros(column).between(_FIRST, _LAST), wrong)

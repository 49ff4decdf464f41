"""Lays a chain of masks over a frame: each by a function here or in `column_builder`.

Rules that hold here:
- Pseudonyms are native columns. FF1 and vaults run in Arrow batches: workers get parameters
  and keys within the serialized function, and build ciphers once.
- Generalization looks into an array of small maps, and the checksum of the value (CRC-32,
  the same in Python and Spark) tells which: Spark looks for a key in a map one entry after
  the other.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.errors import InvalidError, Problem, quote
from penstock.lang.spark import column
from penstock.masks.chain import NO_IDENTITY, Chain, missing_reason, type_reason
from penstock.masks.fields import DATES, Field, FieldType, Schema, count_microseconds
from penstock.masks.generalization import BLUR_SYMBOL, Blurring, Generalization, Suppression
from penstock.masks.mask import Mask, Stage, Target, fit
from penstock.masks.spark.column_builder import (
    ColumnBuilder,
    add_noise,
    bucketize,
    spark_type,
    write_text,
)
from penstock.masks.substitution import BITS, ROOT, ConditionalSubstitution, Substitution
from penstock.masks.tokenization import TOKEN, Tokenization, make_token

_DAY: Final = 86_400_000_000
_ARROW: Final[Mapping[FieldType, Any]] = {
    FieldType.STRING: pa.string(),
    FieldType.INT: pa.int32(),
    FieldType.LONG: pa.int64(),
    FieldType.FLOAT: pa.float32(),
    FieldType.DOUBLE: pa.float64(),
    FieldType.BOOLEAN: pa.bool_(),
    FieldType.DATE: pa.date32(),
}


def substitute(mask: Substitution, stage: Stage, builder: ColumnBuilder) -> dict[str, Column]:
    """Return substitutes, chosen by value or by record."""
    made = {}
    for key in mask.keys:
        found, value = stage.schema[key], builder.columns[key]
        message = builder.identity if mask.random else write_text(found.type, value)
        secret = mask.key(stage.target(key))
        chosen = _choose(mask.substitution_list, mask.output(found), builder, secret, message)
        made[key] = F.when(value.isNotNull(), chosen)
    return made


def _choose(
    substitutes: tuple[Any, ...], found: Field, builder: ColumnBuilder, key: bytes, message: Column
) -> Column:
    values = builder.constant(fit(substitutes, found), _ARROW[found.type])
    index = builder.draw(key, message, BITS) % len(substitutes)
    return F.get(values, index.cast("int"))


def substitute_where(
    mask: ConditionalSubstitution, stage: Stage, builder: ColumnBuilder
) -> dict[str, Column]:
    """Return substitutes where the condition is met or has no answer, else the values."""
    inputs = {ROOT: _read_fields(stage.schema, builder.columns)}
    expressions = {key: mask.condition(key, stage.schema) for key in mask.keys}
    texts = list(dict.fromkeys(made.text for made in expressions.values()))
    by_text = {made.text: made for made in expressions.values()}
    asked = builder.keep(
        *(F.coalesce(column(by_text[text], inputs), F.lit(col=True)) for text in texts)
    )
    met = dict(zip(texts, asked, strict=True))
    made = {}
    for key in mask.keys:
        found, value = stage.schema[key], builder.columns[key]
        output = mask.output(found)
        if mask.needs_keys:
            message = F.coalesce(write_text(found.type, value), F.lit(""))
            secret = mask.key(stage.target(key))
            chosen = _choose(mask.substitution_list, output, builder, secret, message)
        else:
            values = builder.constant(fit(mask.substitution_list, output), _ARROW[output.type])
            chosen = F.get(values, F.lit(0))
        rest = write_text(found.type, value) if mask.as_ else value
        made[key] = F.when(met[expressions[key].text], chosen).otherwise(rest)
    return made


def _read_fields(schema: Schema, columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns in the types that expressions take."""
    return {name: _read_field(columns[name], found.type) for name, found in schema.items()}


def _read_field(value: Column, kind: FieldType) -> Column:
    match kind:
        case FieldType.INT:
            return value.cast("bigint")
        case FieldType.FLOAT:
            return value.cast("double")
        case FieldType.DATE:
            return F.timestamp_micros(F.unix_date(value).cast("bigint") * F.lit(_DAY))
        case _:
            return value


def generalize(mask: Generalization, stage: Stage, builder: ColumnBuilder) -> dict[str, Column]:
    """Return general values; null where a value is unknown and there is no default."""
    made = {}
    for key in mask.keys:
        target = stage.target(key)
        text = write_text(target.field.type, builder.columns[key])
        begins = text if mask.beginning is None else F.substring(text, 1, mask.beginning)
        found = _look_up(mask.table(target), begins, builder)
        if mask.default is not None:
            found = F.when(text.isNotNull(), F.coalesce(found, F.lit(mask.default)))
        made[key] = found
    return made


def _look_up(table: dict[str, str], text: Column, builder: ColumnBuilder) -> Column:
    count = max(1, len(table))
    slots: list[list[tuple[str, str]]] = [[] for _ in range(count)]
    for entry in table.items():
        slots[zlib.crc32(entry[0].encode()) % count].append(entry)
    array = builder.constant(slots, pa.map_(pa.string(), pa.string()))
    slot = F.get(array, (F.crc32(text.cast("binary")) % count).cast("int"))
    return F.try_element_at(slot, text)


def tokenize(mask: Tokenization, stage: Stage, builder: ColumnBuilder) -> dict[str, Column]:
    """Return tokens; null where a value does not have the format of FF1."""
    made = {}
    for key in mask.keys:
        target, value = stage.target(key), builder.columns[key]
        text = write_text(target.field.type, value)
        if mask.method == "pseudonym":
            made[key] = F.substring(builder.hash(mask.key(target), text), 1, TOKEN)
        elif mask.method == "vault":
            made[key] = _store(mask, target)(text)
        else:
            made[key] = _encrypt(mask, target)(value)
    return made


def _encrypt(mask: Tokenization, target: Target) -> Callable[[Column], Column]:
    kind = target.field.type
    cached: dict[str, Any] = {}

    def encrypt(batch: pa.Array) -> pa.Array:
        if not cached:
            cached["format"] = mask.format(target)  # ciphers cannot be serialized
        cipher = cached["format"].encrypt
        made = [None if value is None else cipher(value) for value in batch.to_pylist()]
        return pa.array(made, _ARROW[kind])

    return _arrow_udf(encrypt, spark_type(kind).simpleString())


def _store(mask: Tokenization, target: Target) -> Callable[[Column], Column]:
    key, name = mask.key(target), str(mask.vault)

    def store(batch: pa.Array) -> pa.Array:
        seal, vault = mask.seal(target), target.supplies.require_vault()
        texts = batch.to_pylist()
        tokens = [None if text is None else make_token(key, text) for text in texts]
        pairs = {token: text for token, text in zip(tokens, texts, strict=True) if token}
        vault.put(name, {token: seal.close(token, text) for token, text in pairs.items()})
        return pa.array(tokens, pa.string())

    return _arrow_udf(store, "string")


def _arrow_udf(function: Callable[[pa.Array], pa.Array], kind: str) -> Callable[[Column], Column]:
    # The type hints of `function` say that it is an Arrow function; the stubs of pyspark
    # do not know this way to call it.
    made: Callable[[Column], Column] = F.arrow_udf(function, kind)  # type: ignore[attr-defined]
    return made


Builder: TypeAlias = Callable[[Any, Stage, ColumnBuilder], dict[str, Column]]
"""Returns the masked column of each key; null for a value that the mask cannot take."""


def suppress(mask: Suppression, stage: Stage, _: ColumnBuilder) -> dict[str, Column]:
    """Return constants."""
    return {
        key: F.lit(mask.replacement(stage.schema[key])).cast(
            spark_type(mask.output(stage.schema[key]).type)
        )
        for key in mask.keys
    }


def blur(mask: Blurring, stage: Stage, builder: ColumnBuilder) -> dict[str, Column]:
    """Return texts with Xs."""
    made = {}
    for key in mask.keys:
        text = write_text(stage.schema[key].type, builder.columns[key])
        length = F.length(text)
        count = length if mask.n_fields is None else F.least(length, F.lit(mask.n_fields))
        rest = length - count
        hidden = F.repeat(F.lit(BLUR_SYMBOL), count) if mask.keep_length else F.lit(BLUR_SYMBOL)
        if mask.from_ == "start":
            parts = (hidden, F.substring(text, count + 1, rest))
        else:
            parts = (F.substring(text, F.lit(1), rest), hidden)
        made[key] = F.when(text.isNotNull(), F.concat(*parts))
    return made


_BUILDERS: Final[Mapping[str, Builder]] = {
    "suppression": suppress,
    "blurring": blur,
    "substitution": substitute,
    "tokenization": tokenize,
    "generalization": generalize,
    "bucketizing": bucketize,
    "noise": add_noise,
    "conditional_substitution": substitute_where,
}


def build_columns(mask: Mask, stage: Stage, builder: ColumnBuilder) -> dict[str, Column]:
    """Return the masked column of each key."""
    return _BUILDERS[mask.name](mask, stage, builder)


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
        for name, values in zip(made, kept, strict=True):
            if mask.refusal:
                refused = builder.columns[name].isNotNull() & values.isNull()
                builder.reasons.append(F.when(refused, F.lit(mask.reason(name))))
            builder.columns[name] = values


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

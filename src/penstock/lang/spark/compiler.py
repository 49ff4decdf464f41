"""From the typed tree to a Column; to an Arrow UDF where there is no native form: patterns, zones.

Rules that hold here:
- The column's tree is about as deep as the expression's: a chain of `&&` is balanced.
- java.util.regex backtracks and reads patterns differently, so `matches` runs RE2 in an
  Arrow UDF; so do days of time zones, because the JVM has a database of its own. Spark allows
  no Python inside a lambda, so a quantifier around one runs as a whole in one, in its
  generated form: operands of lambdas hold Python, never their bodies.
- Workers get trees and texts, and compile them once per process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from operator import and_, or_
from typing import Any, TypeAlias, assert_never

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.lang import tree
from penstock.lang.expression import Expression
from penstock.lang.operations import SET_OPERATIONS, ZONED
from penstock.lang.python import generate
from penstock.lang.scalars import EPOCH, MICROSECOND, Regex, compile_regex, read_date, read_moment
from penstock.lang.spark.operations import (
    LOOSE,
    MEMBERS,
    ONCE,
    REPEATED,
    read_double,
    set_operation,
)
from penstock.lang.spark.values import (
    REPEATABLE,
    ColumnValue,
    Inputs,
    bigint,
    bring_in,
    bring_out,
    clean,
    let,
    solidify,
    take_path,
)
from penstock.lang.types import DURATION, TIMESTAMP, ListOf, MapOf, RecordType, Scalar, Type

ArrowUdf: TypeAlias = Callable[[Column], Column]


def column(expression: Expression, inputs: Inputs) -> Column:
    """Return an expression as a Column over its inputs.

    An input is a struct column for a root, or a mapping from its fields to columns. The
    columns have the types of `spark_type`; `check_inputs` tells whether they do.
    """
    compiler = _Compiler(inputs)
    return bring_out(compiler.compile(expression.tree), expression.type)


class _Compiler:
    """Makes the column of a tree."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.elements: dict[int, ColumnValue] = {}

    def compile(self, node: tree.Node) -> ColumnValue:  # noqa: C901, PLR0911, PLR0912 - one case per node
        match node:
            case tree.Constant():
                return _constant(node.value)
            case tree.Root():
                return ColumnValue(take_path(self.inputs, (node.name,)))
            case tree.Variable():
                return self.elements[node.slot]
            case tree.Field():
                return self._field(node)
            case tree.Entry():
                entries, key = self.compile(node.operand), self.compile(node.key)
                taken = F.try_element_at(entries.column, key.column)
                return bring_in(taken, node.type, entries.weight + key.weight + 1)
            case tree.Element():
                items, index = self.compile(node.operand), self.compile(node.index)
                taken = F.get(items.column, index.column.try_cast("int"))
                return bring_in(taken, node.type, items.weight + index.weight + 2)
            case tree.Apply(operation="in_list"):
                return self._member(*node.arguments)
            case tree.Apply() if node.operation in ZONED:
                return self._apply_zoned(node)
            case tree.Apply() if node.operation in SET_OPERATIONS:
                return self._combine(node)
            case tree.Apply():
                return self._apply(node)
            case tree.Matches():
                operand = self.compile(node.operand)
                return ColumnValue(search_udf(node.pattern)(operand.column), operand.weight + 1)
            case tree.Logic():
                terms = [self.compile(term) for term in node.terms]
                return _join(terms, and_ if node.kind == "and" else or_)
            case tree.Choice():
                return self._choice(node)
            case tree.Has():
                operand = solidify(self.compile(node.operand))
                return ColumnValue(operand.column.isNotNull(), operand.weight + 1)
            case tree.Quantifier():
                return self._quantify(node)
            case tree.MakeList():
                parts = [self._made(item) for item in node.items]
                return ColumnValue(F.array(*(part.column for part in parts)), _weigh(parts))
            case tree.MakeMap():
                parts = [self._made(value) for _, value in node.entries]
                keys = [F.lit(key) for key, _ in node.entries]
                pairs = [
                    it for key, part in zip(keys, parts, strict=True) for it in (key, part.column)
                ]
                return ColumnValue(F.create_map(*pairs), _weigh(parts))
            case _:
                assert_never(node)

    def _made(self, node: tree.Node) -> ColumnValue:
        """Return a part of a list or map; records become alike, field by field."""
        value = self.compile(node)
        return ColumnValue(bring_out(value, node.type), value.weight + 6)

    def _field(self, node: tree.Field) -> ColumnValue:
        path = tree.find_path(node)
        if path is not None:
            return bring_in(take_path(self.inputs, path), node.type, len(path))
        record = self.compile(node.operand)
        return bring_in(record.column.getField(node.name), node.type, record.weight + 1)

    def _apply(self, node: tree.Apply) -> ColumnValue:
        values = [self.compile(argument) for argument in node.arguments]
        operation = node.operation
        if operation in LOOSE:
            result = LOOSE[operation](*(value.column for value in values))
            return ColumnValue(result, _weigh(values), finite=False)
        values = [solidify(value) for value in values]
        if operation == "div_double":
            dividend, divisor = values
            return ColumnValue(
                F.try_divide(dividend.column, divisor.column), _weigh(values), finite=False
            )
        if operation == "double_from_string":
            return let(values, read_double, finite=False)
        if operation in REPEATED:
            return let(values, REPEATED[operation])
        return ColumnValue(ONCE[operation](*(value.column for value in values)), _weigh(values) + 4)

    def _apply_zoned(self, node: tree.Apply) -> ColumnValue:
        given, zone = node.arguments
        if not isinstance(zone, tree.Constant):
            raise TypeError("the checker let a time zone pass that is no constant")
        operand = self.compile(given)
        made = zone_udf(node.operation, str(zone.value))(operand.column)
        return ColumnValue(made, operand.weight + 1)

    def _combine(self, node: tree.Apply) -> ColumnValue:
        kind = node.arguments[0].type
        if not isinstance(kind, ListOf):
            raise TypeError(f"the checker let {kind} pass as a list")
        values = [self.compile(argument) for argument in node.arguments]
        # Each list is looked at several times, so that it is bound where it is large.
        return let(values, set_operation(node.operation, kind.element))

    def _member(self, item: tree.Node, items: tree.Node) -> ColumnValue:
        one = solidify(self.compile(item))
        if isinstance(items, tree.MakeList):
            parts = [solidify(self.compile(part)) for part in items.items]
            if all(isinstance(part, tree.Constant) for part in items.items):
                found = one.column.isin(*(part.column for part in parts))
                return ColumnValue(found, one.weight + len(parts))
            return let(
                [one, *parts],
                lambda a, *rest: _balance([a == b for b in rest], or_),
            )
        return let([one, self.compile(items)], MEMBERS[item.type])

    def _choice(self, node: tree.Choice) -> ColumnValue:
        condition = self.compile(node.condition)
        if isinstance(node.type, Scalar):
            yes, no = self.compile(node.yes), self.compile(node.no)
        else:
            yes, no = self._made(node.yes), self._made(node.no)
        weight = _weigh([condition, yes, no])
        finite = yes.finite and no.finite
        if condition.weight <= REPEATABLE:
            # CASE takes a NULL condition for false, so that both have to be asked.
            chosen = F.when(condition.column, yes.column).when(~condition.column, no.column)
            return ColumnValue(chosen, weight + condition.weight, finite)
        pair = F.array(no.column, yes.column)
        return ColumnValue(F.get(pair, condition.column.cast("int")), weight, finite)

    def _quantify(self, node: tree.Quantifier) -> ColumnValue:
        if any(_runs_in_python(part) for part in tree.walk(node.body)):
            return self._quantify_in_python(node)
        quantifier = F.exists if node.kind == "exists" else F.forall
        kind = node.operand.type
        if not isinstance(kind, ListOf):
            raise TypeError(f"the checker let {kind} pass as a list")

        weights = []

        def body(element: Column) -> Column:
            self.elements[node.slot] = bring_in(element, kind.element, 1)
            asked = self.compile(node.body)
            weights.append(asked.weight)
            return asked.column

        made = let(
            [self.compile(node.operand)],
            lambda items: F.when(F.array_size(items) <= node.limit, quantifier(items, body)),
        )
        return made._replace(weight=made.weight + weights[0])

    def _quantify_in_python(self, node: tree.Quantifier) -> ColumnValue:
        references = list_references(node)
        # Moments travel as numbers: Python cannot hold the first and last in every zone.
        given = [
            clean(take_path(self.inputs, path), kind, lambda value, _: value.column)
            for path, kind in references
        ]
        parts = [part.alias(f"p{index}") for index, part in enumerate(given)]
        # A struct has at least one field, also where the expression reads nothing.
        row = F.struct(F.lit(0).alias("nothing"), *parts)
        return ColumnValue(evaluation_udf(node)(row), 4 * len(parts) + 2)


def _runs_in_python(node: tree.Node) -> bool:
    return isinstance(node, tree.Matches) or (
        isinstance(node, tree.Apply) and node.operation in ZONED
    )


def _weigh(values: Iterable[ColumnValue]) -> int:
    return 1 + sum(value.weight for value in values)


def _constant(value: object) -> ColumnValue:
    if isinstance(value, datetime):
        return ColumnValue(bigint((value - EPOCH) // MICROSECOND))
    if isinstance(value, timedelta):
        return ColumnValue(bigint(value // MICROSECOND))
    if isinstance(value, int) and not isinstance(value, bool):
        return ColumnValue(bigint(value))
    return ColumnValue(F.lit(value))


def _balance(columns: list[Column], join: Callable[[Column, Column], Column]) -> Column:
    """Join columns as a balanced tree: a long chain would be too deep for Spark."""
    while len(columns) > 1:
        pairs = [join(*columns[at : at + 2]) for at in range(0, len(columns) - 1, 2)]
        columns = pairs + columns[len(pairs) * 2 :]
    return columns[0]


def _join(terms: list[ColumnValue], join: Callable[[Column, Column], Column]) -> ColumnValue:
    return ColumnValue(_balance([term.column for term in terms], join), _weigh(terms))


# Arrow UDFs


def search_udf(pattern: Regex) -> ArrowUdf:
    """Return the search for a pattern as a function of a string column."""
    text = pattern.text

    def search(batch: pa.Array) -> pa.Array:
        find = _load_pattern(text).search
        found = [None if value is None else find(value) for value in batch.to_pylist()]
        return pa.array(found, pa.bool_())

    return _arrow_udf(search)


def zone_udf(operation: str, zone: str) -> ArrowUdf:
    """Return an operation of a time zone as a function of a column; moments are microseconds."""

    def read_moments(batch: pa.Array) -> pa.Array:
        found = [None if it is None else read_moment(it, zone) for it in batch.to_pylist()]
        micros = [None if it is None else (it - EPOCH) // MICROSECOND for it in found]
        return pa.array(micros, pa.int64())

    def read_dates(batch: pa.Array) -> pa.Array:
        found = [
            None if it is None else read_date(EPOCH + it * MICROSECOND, zone)
            for it in batch.to_pylist()
        ]
        return pa.array(found, pa.int64())

    return _arrow_udf(read_moments if operation == "moment_in_zone" else read_dates, "bigint")


def evaluation_udf(node: tree.Node) -> ArrowUdf:
    """Return a node as a function of a struct with one field per reference."""

    def evaluate(batch: pa.Array) -> pa.Array:
        function = _load_function(node)
        return pa.array([function(row) for row in batch.to_pylist()], pa.bool_())

    return _arrow_udf(evaluate)


def list_references(node: tree.Node) -> list[tuple[tuple[str, ...], Type]]:
    """Return the paths that a node reads, with their types; none lies within another."""
    kinds = {path: part.type for part in tree.walk(node) if (path := tree.find_path(part))}
    paths: list[tuple[str, ...]] = []
    for path in sorted(set(tree.find_references(node))):  # a path comes before those within it
        if not paths or path[: len(paths[-1])] != paths[-1]:
            paths.append(path)
    return [(path, kinds[path]) for path in paths]


def _arrow_udf(function: Callable[[pa.Array], pa.Array], result: str = "boolean") -> ArrowUdf:
    # The type hints of `function` say that it is an Arrow function; the stubs of pyspark
    # do not know this way to call it.
    made: ArrowUdf = F.arrow_udf(function, result)  # type: ignore[attr-defined]
    return made


@lru_cache(maxsize=256)
def _load_pattern(text: str) -> Regex:
    return compile_regex(text)


@lru_cache(maxsize=256)
def _load_function(node: tree.Node) -> Callable[[Mapping[str, Any]], Any]:
    """Return the generated form of a node over a row with one value per reference."""
    references = list_references(node)
    names = sorted({path[0] for path, _ in references})
    function = generate(node, names).function

    def evaluate(row: Mapping[str, Any]) -> Any:
        roots: dict[str, Any] = {}
        for index, (path, kind) in enumerate(references):
            record = roots
            for name in path[:-1]:
                record = record.setdefault(name, {})
            record[path[-1]] = _plain(row[f"p{index}"], kind)
        return function(*(roots[name] for name in names))

    return evaluate


def _plain(value: Any, kind: Type) -> Any:
    """Return a value as it came through Arrow: maps are pairs, moments are numbers."""
    if value is None:
        return None
    match kind:
        case ListOf(element=element):
            return [_plain(item, element) for item in value]
        case MapOf(value=inner):
            return {key: _plain(item, inner) for key, item in value}
        case RecordType(fields=fields):
            return {name: _plain(value[name], inner) for name, inner in fields}
        case _ if kind in {TIMESTAMP, DURATION}:
            span = value * MICROSECOND
            return EPOCH + span if kind == TIMESTAMP else span
    return value

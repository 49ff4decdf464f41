"""From the typed tree to a Column.

Rules that hold here:
- The column's tree is about as deep as the expression's: a chain of `&&` is balanced.
- Only operands of lambdas hold Python (see `batches`), never their bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from operator import and_, or_
from typing import assert_never

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.lang import tree
from penstock.lang.expression import Expression
from penstock.lang.moments import EPOCH, MICROSECOND
from penstock.lang.spark.batches import evaluate_in_batches, list_references, search_in_batches
from penstock.lang.spark.operations import LOOSE, MEMBERS, ONCE, REPEATED, read_double
from penstock.lang.spark.schema import Inputs, take_path
from penstock.lang.spark.values import (
    REPEATABLE,
    Value,
    bigint,
    bring_in,
    bring_out,
    clean,
    let,
    solidify,
)
from penstock.lang.types import ListOf, Scalar


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
        self.elements: dict[int, Value] = {}

    def compile(self, node: tree.Node) -> Value:  # noqa: C901, PLR0911, PLR0912 - one case per node
        match node:
            case tree.Constant():
                return _constant(node.value)
            case tree.Root():
                return Value(take_path(self.inputs, (node.name,)))
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
            case tree.Apply():
                return self._apply(node)
            case tree.Matches():
                operand = self.compile(node.operand)
                return Value(search_in_batches(node.pattern)(operand.column), operand.weight + 1)
            case tree.Logic():
                terms = [self.compile(term) for term in node.terms]
                return _join(terms, and_ if node.kind == "and" else or_)
            case tree.Choice():
                return self._choice(node)
            case tree.Has():
                operand = solidify(self.compile(node.operand))
                return Value(operand.column.isNotNull(), operand.weight + 1)
            case tree.Quantifier():
                return self._quantify(node)
            case tree.MakeList():
                parts = [self._made(item) for item in node.items]
                return Value(F.array(*(part.column for part in parts)), _weigh(parts))
            case tree.MakeMap():
                parts = [self._made(value) for _, value in node.entries]
                keys = [F.lit(key) for key, _ in node.entries]
                pairs = [
                    it for key, part in zip(keys, parts, strict=True) for it in (key, part.column)
                ]
                return Value(F.create_map(*pairs), _weigh(parts))
            case _:
                assert_never(node)

    def _made(self, node: tree.Node) -> Value:
        """Return a part of a list or map; records become alike, field by field."""
        value = self.compile(node)
        return Value(bring_out(value, node.type), value.weight + 6)

    def _field(self, node: tree.Field) -> Value:
        path = tree.find_path(node)
        if path is not None:
            return bring_in(take_path(self.inputs, path), node.type, len(path))
        record = self.compile(node.operand)
        return bring_in(record.column.getField(node.name), node.type, record.weight + 1)

    def _apply(self, node: tree.Apply) -> Value:
        values = [self.compile(argument) for argument in node.arguments]
        operation = node.operation
        if operation in LOOSE:
            result = LOOSE[operation](*(value.column for value in values))
            return Value(result, _weigh(values), finite=False)
        values = [solidify(value) for value in values]
        if operation == "div_double":
            dividend, divisor = values
            return Value(
                F.try_divide(dividend.column, divisor.column), _weigh(values), finite=False
            )
        if operation == "double_from_string":
            return let(values, read_double, finite=False)
        if operation in REPEATED:
            return let(values, REPEATED[operation])
        return Value(ONCE[operation](*(value.column for value in values)), _weigh(values) + 4)

    def _member(self, item: tree.Node, items: tree.Node) -> Value:
        one = solidify(self.compile(item))
        if isinstance(items, tree.MakeList):
            parts = [solidify(self.compile(part)) for part in items.items]
            if all(isinstance(part, tree.Constant) for part in items.items):
                found = one.column.isin(*(part.column for part in parts))
                return Value(found, one.weight + len(parts))
            return let(
                [one, *parts],
                lambda a, *rest: _balance([a == b for b in rest], or_),
            )
        return let([one, self.compile(items)], MEMBERS[item.type])

    def _choice(self, node: tree.Choice) -> Value:
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
            return Value(chosen, weight + condition.weight, finite)
        pair = F.array(no.column, yes.column)
        return Value(F.get(pair, condition.column.cast("int")), weight, finite)

    def _quantify(self, node: tree.Quantifier) -> Value:
        if any(isinstance(part, tree.Matches) for part in tree.walk(node.body)):
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

    def _quantify_in_python(self, node: tree.Quantifier) -> Value:
        references = list_references(node)
        # Moments travel as numbers: Python cannot hold the first and last in every zone.
        given = [
            clean(take_path(self.inputs, path), kind, lambda value, _: value.column)
            for path, kind in references
        ]
        parts = [part.alias(f"p{index}") for index, part in enumerate(given)]
        # A struct has at least one field, also where the expression reads nothing.
        row = F.struct(F.lit(0).alias("nothing"), *parts)
        return Value(evaluate_in_batches(node)(row), 4 * len(parts) + 2)


def _weigh(values: Iterable[Value]) -> int:
    return 1 + sum(value.weight for value in values)


def _constant(value: object) -> Value:
    if isinstance(value, datetime):
        return Value(bigint((value - EPOCH) // MICROSECOND))
    if isinstance(value, timedelta):
        return Value(bigint(value // MICROSECOND))
    if isinstance(value, int) and not isinstance(value, bool):
        return Value(bigint(value))
    return Value(F.lit(value))


def _balance(columns: list[Column], join: Callable[[Column, Column], Column]) -> Column:
    """Join columns as a balanced tree: a long chain would be too deep for Spark."""
    while len(columns) > 1:
        pairs = [join(*columns[at : at + 2]) for at in range(0, len(columns) - 1, 2)]
        columns = pairs + columns[len(pairs) * 2 :]
    return columns[0]


def _join(terms: list[Value], join: Callable[[Column, Column], Column]) -> Value:
    return Value(_balance([term.column for term in terms], join), _weigh(terms))

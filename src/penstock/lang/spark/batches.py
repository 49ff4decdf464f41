"""Python in Arrow batches, for what has no native form: RE2 patterns.

Rules that hold here:
- java.util.regex backtracks and reads patterns differently, so `matches` runs RE2 here
  as well. Spark allows no Python inside a lambda, so a quantifier around it runs here
  as a whole, in its generated form.
- Workers get trees and texts, and compile them once per process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.lang import tree
from penstock.lang.moments import EPOCH, MICROSECOND
from penstock.lang.patterns import Pattern, compile_pattern
from penstock.lang.python import generate
from penstock.lang.types import DURATION, TIMESTAMP, ListOf, MapOf, Record, Type

Batches = Callable[[Column], Column]


def search_in_batches(pattern: Pattern) -> Batches:
    """Return the search for a pattern as a function of a string column."""
    text = pattern.text

    def search(batch: pa.Array) -> pa.Array:
        find = _load_pattern(text).search
        found = [None if value is None else find(value) for value in batch.to_pylist()]
        return pa.array(found, pa.bool_())

    return _arrow_udf(search)


def evaluate_in_batches(node: tree.Node) -> Batches:
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


def _arrow_udf(function: Callable[[pa.Array], pa.Array]) -> Batches:
    # The type hints of `function` say that it is an Arrow function; the stubs of pyspark
    # do not know this way to call it.
    made: Batches = F.arrow_udf(function, "boolean")  # type: ignore[attr-defined]
    return made


@lru_cache(maxsize=256)
def _load_pattern(text: str) -> Pattern:
    return compile_pattern(text)


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
        case Record(fields=fields):
            return {name: _plain(value[name], inner) for name, inner in fields}
        case _ if kind in {TIMESTAMP, DURATION}:
            span = value * MICROSECOND
            return EPOCH + span if kind == TIMESTAMP else span
    return value

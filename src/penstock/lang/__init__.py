"""Expressions: one syntax tree, three forms (Python function, Spark Column, interpreter).

    text → tokens → parser → syntax tree → checker → typed tree ┬→ interpreter
                                                                ├→ python (generated)
                                                                └→ spark  (Column)

`spark` is imported by those who have Spark, and by nothing here.
"""

from penstock.lang.errors import ExpressionError, Span
from penstock.lang.expression import Expression, compile_expression
from penstock.lang.types import (
    BOOL,
    DOUBLE,
    DURATION,
    INT,
    STRING,
    TIMESTAMP,
    Declaration,
    ListOf,
    MapOf,
    RecordType,
    Scalar,
    Scope,
    Type,
    build_scope,
    parse_record,
    parse_type,
)
from penstock.lang.values import Evaluation, prepare

__all__ = [
    "BOOL",
    "DOUBLE",
    "DURATION",
    "INT",
    "STRING",
    "TIMESTAMP",
    "Declaration",
    "Evaluation",
    "Expression",
    "ExpressionError",
    "ListOf",
    "MapOf",
    "RecordType",
    "Scalar",
    "Scope",
    "Span",
    "Type",
    "build_scope",
    "compile_expression",
    "parse_record",
    "parse_type",
    "prepare",
]

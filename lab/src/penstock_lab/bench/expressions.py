"""How fast expressions are: generated Python, interpreter, compilation, Spark.

Method:
- Each expression is called in a plain loop; the figure is the best round, in nanoseconds
  of processor time per call, loop and call included. An empty function called the same
  way is `call_ns`, the floor of the figures. Rounds of all expressions take turns.
- `ratio` is the interpreter's time by the generated form's, of the same run.
- `goal_ns` is what the design asks of the example of the design, `design`.
- Spark filters one frame, cached in memory, with native columns and with a pattern that
  runs RE2 in Arrow batches; `count` alone is the floor. Rounds take turns as well.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.components import find_java
from penstock.lang import (
    BOOL,
    Expression,
    build_scope,
    compile_expression,
    prepare,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOAL_NS = 500
DESIGN = 'o.patientId in s.pSet && t.topic.contains("temperature")'
PATTERN = 't.topic.matches("^ward/[0-9]+/temp")'

SCOPE = build_scope(
    s={"pSet": "list(string)", "roles": "list(string)"},
    o={"patientId": "string"},
    payload={"temperature": "double", "samples": "list(int)"},
)
EXPRESSIONS = {
    "design": DESIGN,
    "compare": "t.payload.temperature > 38.5",
    "topic level": 't.topic.level(2) == "temperature"',
    "roles": 's.roles.exists(r, r == "physician") || e.purpose == "care"',
    "time": "e.time.hour() >= 8 && e.time.hour() < 20 && e.time.dayOfWeek() <= 5",
    "arithmetic": "(t.payload.temperature - 32.0) * 5.0 / 9.0 < 40.0",
    "list of 20": "t.payload.samples.all(v, v >= 0 && v < 1000)",
    "pattern": PATTERN,
    "missing": "has(e.place) && e.place == s.roles[0]",
}


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure all forms; Spark only if Java and pyspark are there."""
    rounds, calls = (5, 2_000) if quick else (25, 20_000)
    return {
        "goal_ns": GOAL_NS,
        "python": _measure_python(rounds, calls),
        "compile_us": _measure_compilation(20 if quick else 200),
        "spark": _measure_spark(rows=200_000 if quick else 1_000_000, rounds=2 if quick else 4),
    }


def _inputs(*, found: bool, prepared: bool) -> tuple[dict[str, Any], ...]:
    patients = frozenset(f"patient-{number}" for number in range(50))
    subject = {"pSet": patients, "roles": ["staff", "nurse", "physician"]}
    record = SCOPE.root("s")
    return (
        prepare(subject, record) if prepared and record is not None else subject,
        {"patientId": "patient-7" if found else "nobody"},
        {"time": datetime(2026, 3, 2, 8, 30, tzinfo=UTC), "purpose": "care"},
        {
            "topic": "ward/12/temperature",
            "payload": {"temperature": 38.9, "samples": list(range(20))},
        },
    )


def _measure_python(rounds: int, calls: int) -> dict[str, Any]:
    expressions = {
        name: compile_expression(text, SCOPE, BOOL) for name, text in EXPRESSIONS.items()
    }
    usual = _inputs(found=True, prepared=True)
    subjects: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
        "call": (lambda _s, _o, _e, _t: None, usual, calls)
    }
    for name, expression in expressions.items():
        subjects[name] = (expression.function, usual, calls)
        subjects[f"{name}, interpreter"] = (_interpreter(expression), usual, calls // 20)
    design = expressions["design"].function
    for name, found, prepared in (
        ("design, plain set", True, False),
        ("design, not found", False, True),
        ("design, plain set, not found", False, False),
    ):
        subjects[name] = (design, _inputs(found=found, prepared=prepared), calls)
    best = dict.fromkeys(subjects, float("inf"))
    for _ in range(rounds):
        for name, (function, inputs, times) in subjects.items():
            best[name] = min(best[name], _time_calls(function, inputs, times))
    figures: dict[str, Any] = {"call_ns": round(best["call"])}
    for name, text in EXPRESSIONS.items():
        generated, plain = best[name], best[f"{name}, interpreter"]
        figures[name] = {
            "text": text,
            "generated_ns": round(generated),
            "interpreter_ns": round(plain),
            "ratio": round(plain / generated, 1),
        }
    for name in ("plain set", "not found", "plain set, not found"):
        figures["design"][f"generated_ns, {name}"] = round(best[f"design, {name}"])
    return figures


def _interpreter(expression: Expression) -> Callable[..., Any]:
    evaluate = expression.evaluate
    return lambda s, o, e, t: evaluate(s=s, o=o, e=e, t=t)


def _time_calls(function: Callable[..., Any], inputs: tuple[Any, ...], calls: int) -> float:
    s, o, e, t = inputs
    start = time.process_time_ns()
    for _ in range(calls):
        function(s, o, e, t)
    return (time.process_time_ns() - start) / calls


def _measure_compilation(times: int) -> dict[str, float]:
    checked, generated = [], []
    for _ in range(times):
        start = time.process_time_ns()
        expression = compile_expression(DESIGN, SCOPE, BOOL)
        middle = time.process_time_ns()
        _ = expression.function
        checked.append(middle - start)
        generated.append(time.process_time_ns() - middle)
    return {
        "parse_and_check": round(statistics.median(checked) / 1000, 1),
        "generate": round(statistics.median(generated) / 1000, 1),
    }


def _measure_spark(*, rows: int, rounds: int) -> dict[str, Any]:
    java = find_java()
    if java.path is None:
        return {"missing": java.fix}
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - a JVM only where it is measured
    except ImportError:
        return {"missing": "install penstock[spark]"}
    os.environ.setdefault("JAVA_HOME", str(java.path.resolve().parent.parent))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .appName("penstock-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        return _measure_filters(session, rows, rounds)
    finally:
        session.stop()


def _measure_filters(session: SparkSession, rows: int, rounds: int) -> dict[str, Any]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from penstock.lang.spark import column  # noqa: PLC0415

    number = F.col("id") % 100
    patients = F.array(*(F.lit(f"patient-{index}") for index in range(50)))
    frame = (
        session.range(rows, numPartitions=2)
        .select(
            F.concat(F.lit("patient-"), number).alias("patientId"),
            F.concat(F.lit("ward/"), number, F.lit("/temperature")).alias("topic"),
            F.struct((number / 2.0).alias("temperature")).alias("payload"),
        )
        .cache()
    )
    frame.count()
    inputs = {
        "s": {"pSet": patients},
        "o": {"patientId": F.col("patientId")},
        "t": {"topic": F.col("topic"), "payload": F.col("payload")},
    }
    filters = {"count": F.lit(1) == F.lit(1)} | {
        name: column(compile_expression(EXPRESSIONS[name], SCOPE, BOOL), inputs)
        for name in ("design", "compare", "topic level", "pattern")
    }
    best = dict.fromkeys(filters, float("inf"))
    for _ in range(rounds):
        for name, condition in filters.items():
            start = time.perf_counter()
            frame.where(condition).count()
            best[name] = min(best[name], time.perf_counter() - start)
    return {
        "rows": rows,
        "cores": 2,
        "rows_per_s": {name: round(rows / seconds) for name, seconds in best.items()},
    }

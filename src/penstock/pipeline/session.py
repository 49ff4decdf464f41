"""The Spark session, on this machine by default, on a cluster where the settings say so.

Rules that hold here:
- Whoever talks to the driver proves that it belongs to the application (`spark.authenticate`). On
  this machine, on YARN and on Kubernetes Spark makes the secret itself; a standalone cluster
  shares one, which the settings name.
- No secret stands on a command line, where everybody on the machine could read it.

Spark collects garbage in a Python process that runs tasks after each of them. With all the
modules that are loaded there, this takes some tens of milliseconds of a processor, more than
a small batch itself: tasks call `freeze_loaded` first. And it names a zip of pyspark first on
their path, which each process compiles anew, for most of a second: `choose_python`.
"""

from __future__ import annotations

import gc
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from penstock.components import JAR_SETS, find_java
from penstock.components.finders import find_master_trouble
from penstock.config.installation import PipelineSettings
from penstock.config.secrets import Secret
from penstock.errors import UnavailableError
from penstock.telemetry import get_logger

Session: TypeAlias = SparkSession
_log = get_logger("pipeline")

LOG: Final = ".spark.log"
STANDARD_ERROR: Final = 2
LOOPBACK: Final = "127.0.0.1"
FILES_MEMORY: Final = "512m"
CONNECTOR: Final = "spark-kafka"
AUTHENTICATE: Final = "spark.authenticate"
SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
PYTHON: Final = "PYSPARK_PYTHON"
_MAKES_SECRET: Final = re.compile(r"local(\[.*\])?$|yarn$|k8s://")
"""Masters under which Spark makes a secret of its own for each application."""
# Settings that the meaning of views depends on; nothing may override them.
FIXED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.ui.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "false",
    # What a connection to Kafka is made with stands in no plan and no log.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|keystore|jaas",
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token|keystore|jaas",
    # What several views share is kept for a moment only: to compress it would cost more.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Queries here have no joins to adapt, and planning them once is enough.
    "spark.sql.adaptive.enabled": "false",
}


def open_session(settings: PipelineSettings, *, cores: int = 2) -> SparkSession:
    """Start Spark, or return the session that runs."""
    _find_java()
    trouble = find_master_trouble(settings.master)
    if trouble is not None:
        raise UnavailableError(
            f"the Spark master cannot be reached ({trouble})",
            fix="check pipeline.master, and that the master runs",
        )
    builder = SparkSession.builder.appName("penstock").master(settings.master)
    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        builder = builder.config("spark.driver.host", LOOPBACK)
        builder = builder.config("spark.driver.bindAddress", LOOPBACK)
    builder = builder.config("spark.driver.memory", settings.memory)
    builder = builder.config("spark.executor.memory", settings.executor_memory)
    builder = builder.config("spark.sql.shuffle.partitions", str(cores))
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    jars = connector_jars()
    if jars:
        builder = builder.config("spark.jars", jars)
    for name, value in FIXED.items():
        builder = builder.config(name, value)
    shared = _MAKES_SECRET.match(settings.master) is None
    if not shared or settings.secret is not None:
        builder = builder.config(AUTHENTICATE, "true")
    settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        _workers_on(choose_python(settings.folder, settings.master)),
        _messages_to(settings.folder / LOG),
        _submitting(settings.secret if shared else None),
    ):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if session.sparkContext.getConf().get(AUTHENTICATE, "false") != "true":
        _log.warning("the Spark cluster authenticates nobody: set pipeline.secret")
    return session


def _find_java() -> None:
    """Let pyspark start the Java that we know."""
    java = find_java()
    if java.path is None:
        raise UnavailableError("Spark needs Java, which is missing", fix=java.fix)
    os.environ.setdefault("JAVA_HOME", str(java.path.resolve().parent.parent))


@contextmanager
def _submitting(secret: Secret | None) -> Iterator[None]:
    """Give the Java process that starts meanwhile the secret of a cluster, in a file of ours."""
    if secret is None:
        yield
        return
    before = os.environ.get(SUBMIT)
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        file = Path(folder) / "secret.properties"
        file.touch(mode=0o600)
        escaped = secret.read_text().replace("\\", "\\\\")
        file.write_text(f"spark.authenticate.secret={escaped}\n")
        named = f"--load-spark-defaults --properties-file {shlex.quote(str(file))}"
        os.environ[SUBMIT] = f"{named} {before or 'pyspark-shell'}"
        try:
            yield
        finally:
            if before is None:
                del os.environ[SUBMIT]
            else:
                os.environ[SUBMIT] = before


def choose_python(folder: Path, master: str) -> str:
    """Return the Python that Spark's processes run on: ours, or what the environment names.

    On this machine it comes through a script in a folder of ours, which takes Spark's zips off the
    path: pyspark is installed, and compiled.
    """
    named = os.environ.get(PYTHON, sys.executable)
    if PYTHON in os.environ or not master.startswith("local"):
        return named
    script = folder / ".python"
    partial = folder / f".python.{os.getpid()}"
    shortened = "PYTHONPATH=${PYTHONPATH#*/py4j-*-src.zip:}"
    partial.write_text(f'#!/bin/sh\n{shortened} exec {shlex.quote(named)} "$@"\n')
    partial.chmod(0o700)
    partial.replace(script)
    # Not everything on a disk may be run: where that is so, a process starts later.
    return str(script) if os.access(script, os.X_OK) else named


@contextmanager
def _workers_on(python: str) -> Iterator[None]:
    """Let a session that starts meanwhile run its Python processes on this one."""
    before = os.environ.get(PYTHON)
    os.environ[PYTHON] = python
    try:
        yield
    finally:
        if before is None:
            del os.environ[PYTHON]


@contextmanager
def _messages_to(path: Path) -> Iterator[None]:
    """Let the Java process that starts meanwhile write its messages to a file.

    What Spark says of its inner life is of use to operators, not to those who read what a
    command prints; and it may quote records, so that only we may read it.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    kept = os.dup(STANDARD_ERROR)
    try:
        os.dup2(file, STANDARD_ERROR)
        yield
    finally:
        os.dup2(kept, STANDARD_ERROR)
        os.close(kept)
        os.close(file)


def connect_java() -> tuple[Any, Any]:
    """Return the Java process that Spark runs in, or would, and what it knows of Hadoop."""
    context: Any = SparkContext._active_spark_context  # noqa: SLF001 - Spark has no public way
    if context is not None:
        return context._jvm, context._jsc.hadoopConfiguration()  # noqa: SLF001
    return _start_java()


@cache
def _start_java() -> tuple[Any, Any]:
    """Start a Java process without a session, for those who only read and write files."""
    _find_java()
    conf = SparkConf().set("spark.driver.memory", FILES_MEMORY)
    jars = connector_jars()
    conf = conf.set("spark.jars", jars) if jars else conf
    with _messages_to(Path(os.devnull)):
        SparkContext._ensure_initialized(conf=conf)  # noqa: SLF001
    java: Any = SparkContext._jvm  # noqa: SLF001
    return java, java.org.apache.spark.deploy.SparkHadoopUtil.get().conf()


def connector_jars() -> str:
    """Return the jars of Spark's connectors, as far as they were fetched."""
    for jars in JAR_SETS:
        if jars.name == CONNECTOR and jars.version():
            return ",".join(str(path) for path in sorted(jars.folder.glob("*.jar")))
    return ""


@cache
def freeze_loaded() -> None:
    """Let the garbage collector look no more at what is loaded by now; once for a process."""
    gc.freeze()

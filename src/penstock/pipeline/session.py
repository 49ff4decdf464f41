"""The Spark session: on this machine by default, on a cluster where the settings say so."""

from __future__ import annotations

import os
import sys
from typing import Final

from pyspark.sql import SparkSession

from penstock.components import JAR_SETS, find_java
from penstock.config.sections.pipeline import PipelineSettings
from penstock.errors import UnavailableError

LOOPBACK: Final = "127.0.0.1"
CONNECTOR: Final = "spark-kafka"
# Settings that the meaning of views depends on; nothing may override them.
FIXED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.ui.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "false",
}


def open_session(settings: PipelineSettings, *, cores: int = 2) -> SparkSession:
    """Start Spark, or return the session that runs."""
    java = find_java()
    if java.path is None:
        raise UnavailableError("Spark needs Java, which is missing", fix=java.fix)
    os.environ.setdefault("JAVA_HOME", str(java.path.resolve().parent.parent))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("penstock").master(settings.master)
    if settings.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        builder = builder.config("spark.driver.host", LOOPBACK)
        builder = builder.config("spark.driver.bindAddress", LOOPBACK)
    builder = builder.config("spark.driver.memory", settings.memory)
    builder = builder.config("spark.sql.shuffle.partitions", str(cores))
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    jars = _find_jars()
    if jars:
        builder = builder.config("spark.jars", jars)
    for name, value in FIXED.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _find_jars() -> str:
    """Return the jars of Spark's connectors, as far as they were fetched."""
    for jars in JAR_SETS:
        if jars.name == CONNECTOR and jars.version():
            return ",".join(str(path) for path in sorted(jars.folder.glob("*.jar")))
    return ""

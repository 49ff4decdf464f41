"""Fixtures that every test may use: real servers, one Spark session, and what needs them.

A test says what it needs: `@pytest.mark.needs("postgresql")`. Where that is missing the
test is skipped with the reason; with CI=true it fails, so that nothing hides there.

`--long` runs the same tests with more walks, kills and examples: see `tests.support.scale`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from penstock.components import Component, KafkaCluster, MosquittoServer, PostgresServer, find
from tests.support import progress, scale
from tests.support.store import postgres_databases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A JVM of a test ends before the optimizing compiler has earned what it costs. Spark and Kafka
# read these variables, also in the processes that tests start.
_JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_JVM_VARIABLES = ("SPARK_SUBMIT_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS")

# Databases, logs of Kafka and brokers' files live for a test. In memory, bringing them to the
# disk takes no time; that they are brought there is shown by processes that are killed.
_MEMORY = Path("/dev/shm")  # noqa: S108 - the machine's own, and `tempfile` makes private folders
_MEMORY_BYTES = 8 << 30

_found: dict[str, Component] = {}


def _look_for(name: str) -> Component:
    if name not in _found:
        _found[name] = find(name)
    return _found[name]


def _has_memory() -> bool:
    """Tell whether temporary files fit into memory; in containers there is often little."""
    usable = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)
    return usable and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "run the series: ten times as many walks, kills and examples, and more"
    parser.addoption("--long", action="store_true", help=about)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("long"):
        os.environ[scale.VARIABLE] = "long"
    for name in _JVM_VARIABLES:
        os.environ.setdefault(name, _JVM_OPTIONS)
    if "TMPDIR" not in os.environ and _has_memory():
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # asked for again, by all that follows
    settings.register_profile(
        "penstock",
        deadline=None,
        print_blob=True,
        derandomize=os.environ.get("CI") == "true" and not scale.is_long(),
        max_examples=scale.scaled(100),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    settings.load_profile("penstock")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    progress.register(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from tests.support.schedule import FileScheduling  # noqa: PLC0415 - where xdist is in use

    return FileScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        from tests.support.schedule import order  # noqa: PLC0415 - where xdist is in use

        items.sort(key=order)
    if scale.is_long():
        for item in items:
            mark = item.get_closest_marker("timeout")
            seconds = mark.args[0] if mark and mark.args else int(config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(scale.scaled(seconds)), append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            component = _look_for(name)
            if component.found:
                continue
            reason = f"needs {name}, which is missing: {component.fix}"
            if os.environ.get("CI") == "true":
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests of this process; mark them needs("postgresql")."""
    # In a folder of its own: pytest clears old temporary folders of other runs.
    with PostgresServer() as server:
        yield server


@pytest.fixture
def empty_postgres_url(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> Iterator[str]:
    """Give the address of a database of this test's own, without tables."""
    with postgres_databases.lend(postgres_server, request.node.nodeid) as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the address of a store of this test's own, as it is when it was made."""
    template = postgres_databases.make_template(postgres_server)
    with postgres_databases.lend(postgres_server, request.node.nodeid, template) as url:
        yield url


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[MosquittoServer]:
    """Run a broker for this test alone; mark the test needs("mosquitto")."""
    with MosquittoServer(tmp_path / "mosquitto") as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One Kafka broker for all tests of this process; mark them needs("java", "jars")."""
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One lazy Spark session for all tests of this process; mark them needs("java")."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - a JVM only for those who ask

    from penstock.pipeline.session import choose_python, connector_jars  # noqa: PLC0415

    java = _look_for("java").path
    if java is not None and "JAVA_HOME" not in os.environ:
        os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
    # Java is told of it here: what is set later holds in this process alone.
    os.environ["PYSPARK_PYTHON"] = choose_python(tmp_path_factory.mktemp("spark"), "local[2]")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .appName("penstock-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", connector_jars())
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()

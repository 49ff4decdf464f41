"""The programs Penstock stands on: where they are, how to get them, how to start them.

Rules that hold here:
- Only the standard library is imported, so that the set-up script can use these
  finders before any package is installed.
- A finder never raises: what is missing is a `Component` without a path, whose `fix`
  says how to get it.
- A server listens on loopback only and is ended by the process id that we started.
"""

from penstock.components.finders import (
    COMPONENTS,
    JAR_SETS,
    Component,
    JarSet,
    find,
    find_chromium,
    find_jars,
    find_java,
    find_maven,
    find_mosquitto,
    find_postgresql,
)
from penstock.components.kafka import KafkaCluster
from penstock.components.mosquitto import MosquittoServer
from penstock.components.postgresql import PostgresServer

__all__ = [
    "COMPONENTS",
    "JAR_SETS",
    "Component",
    "JarSet",
    "KafkaCluster",
    "MosquittoServer",
    "PostgresServer",
    "find",
    "find_chromium",
    "find_jars",
    "find_java",
    "find_maven",
    "find_mosquitto",
    "find_postgresql",
]

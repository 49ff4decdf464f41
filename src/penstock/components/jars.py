"""The Maven artifacts Penstock uses, and the cache folders that hold them.

Rules that hold here:
- The `*.pom.xml` files beside this module are the one list of artifacts and versions;
  Maven resolves what they depend on. Each has a folder of its own: the broker's
  libraries must not meet Spark's.
- A folder is named after the content of its list: a changed list never meets old
  jars, and several checkouts share one download.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JarSet:
    """One artifact with all it depends on."""

    name: str
    artifact: str

    @property
    def pom(self) -> Path:
        """The file that lists it."""
        return Path(__file__).with_name(f"{self.name}.pom.xml")

    @property
    def folder(self) -> Path:
        """The cache folder that holds its jars."""
        chosen = os.environ.get("PENSTOCK_JARS")
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        root = Path(chosen) if chosen else cache / "penstock" / "jars"
        digest = hashlib.sha256(self.pom.read_bytes()).hexdigest()[:12]
        return root / f"{self.name}-{digest}"

    def version(self) -> str | None:
        """Return the version that the folder holds, if it holds the artifact."""
        held = sorted(self.folder.glob(f"{self.artifact}-[0-9]*.jar"))
        return held[-1].stem.removeprefix(f"{self.artifact}-") if held else None

    def maven_command(self, maven: Path, folder: Path) -> list[str]:
        """Return the command that copies the jars into `folder`."""
        return [
            str(maven),
            "--batch-mode",
            "--quiet",
            "--file",
            str(self.pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={folder}",
            "-DincludeScope=runtime",
        ]


JAR_SETS = (
    JarSet("spark-kafka", "spark-sql-kafka-0-10_2.13"),
    JarSet("kafka-broker", "kafka_2.13"),
)

"""Which worker of xdist runs which tests: a file is run by one, and so are all that share a JVM.

Rules that hold here:
- Tests of a file share its fixtures: a broker or a gateway per module starts once.
- All files that use Spark run in one worker, and all others that use Kafka in one, so that
  each JVM starts and warms up once. These two take longest, so they begin.
- `--dist loadgroup` of xdist would do this by marks; with pytest 9.2 it ignores them.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

JVMS: Final = ("spark", "kafka")
"""The fixtures that start a JVM; the first one that a file asks for is its group."""


@functools.cache
def group_of(file: Path) -> str:
    """Return the JVM that the tests of a file share; where they share none, an empty text."""
    text = file.read_text()
    return next((it for it in JVMS if re.search(rf"\b{it}: \w*(Session|Cluster)\b", text)), "")


def order(item: pytest.Item) -> int:
    """Return a key that sorts the tests of each JVM to the front."""
    group = group_of(item.path)
    return JVMS.index(group) if group else len(JVMS)


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out files, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return group_of(self.config.rootpath / file) or file

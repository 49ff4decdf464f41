"""The console: each batch as a table, for those who look at what `penstock views run` does.

The records stand in Parquet files as well; the console shows the first of each batch, once,
and nothing of a batch whose process was stopped before it came to that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.sinks.files import ParquetSink
from penstock.pipeline.sinks.published import read_file

ROWS: Final = 20


class ConsoleSink(ParquetSink):
    """Parquet files, shown as they come."""

    def __init__(self, title: str, target: Console | None = None) -> None:
        super().__init__()
        self._title = title
        self._target = target or Console()

    @override
    def deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        if again or not files:
            return
        found = itertools.chain.from_iterable(read_file(path) for path in files)
        records = list(itertools.islice(found, ROWS + 1))
        more = ", the first of them" if len(records) > ROWS else ""
        shown = Table()
        for name in records[0]:
            shown.add_column(Text(name))
        for record in records[:ROWS]:
            shown.add_row(*(Text("" if item is None else str(item)) for item in record.values()))
        title = f"{self._title}, batch {commit.sequence}{more}"
        self._target.print(Text(title, style="bold"), shown, sep="\n")

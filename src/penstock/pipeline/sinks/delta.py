"""A Delta table in the view's folder: its Parquet files, and Delta's log beside them.

Rules that hold here:
- Delta's own record of transactions says which batches the table has, and changes with the
  files of a batch in one step.
- A table has one schema. A view whose fields change needs a folder of its own.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
from typing_extensions import override

from penstock.errors import UnavailableError, UsageError, quote
from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.sinks.files import ParquetSink

APPLICATION: Final = "penstock"


class DeltaSink(ParquetSink):
    """Parquet files that are made known to readers of Delta tables."""

    def __init__(self) -> None:
        super().__init__()
        if importlib.util.find_spec("deltalake") is None:
            raise UnavailableError(
                "Delta tables need the package deltalake, which is missing",
                fix="pip install deltalake, or choose format: parquet",
            )

    @override
    def deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        if not files:
            return
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction  # noqa: PLC0415
        from deltalake.transaction import create_table_with_add_actions  # noqa: PLC0415

        folder = str(files[0].parent)
        there = DeltaTable.is_deltatable(folder)
        if there:
            # Before the files are looked at: once they are in the table, erasure may rename them.
            known = DeltaTable(folder).transaction_version(APPLICATION)
            if known is not None and known >= commit.sequence:
                return
        schema = Schema.from_arrow(_schema_of(files[0]))
        actions = [_describe(path) for path in files]
        mark = CommitProperties(app_transactions=[Transaction(APPLICATION, commit.sequence)])
        if not there:
            create_table_with_add_actions(
                folder, schema, actions, mode="error", commit_properties=mark
            )
            return
        table = DeltaTable(folder)
        if table.schema() != schema:
            raise UsageError(
                f"the fields of the Delta table in {quote(folder)} differ from the view's",
                fix="give the view another name, or move the folder away",
            )
        table.create_write_transaction(actions, "append", schema, commit_properties=mark)


def _schema_of(path: Path) -> pa.Schema:
    """Return the fields of a file; those that Spark wrote do not say that moments are UTC."""
    moment = pa.timestamp("us", tz="UTC")
    return pa.schema(
        (field.name, moment if pa.types.is_timestamp(field.type) else field.type)
        for field in pyarrow.parquet.read_schema(path)
    )


def _describe(path: Path) -> Any:
    from deltalake.transaction import AddAction  # noqa: PLC0415 - loaded where it is used

    state = path.stat()
    rows = pyarrow.parquet.read_metadata(path).num_rows
    return AddAction(
        path=path.name,
        size=state.st_size,
        partition_values={},
        modification_time=state.st_mtime_ns // 1_000_000,
        data_change=True,
        stats=json.dumps({"numRecords": rows}),
    )

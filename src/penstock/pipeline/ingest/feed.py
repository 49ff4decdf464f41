"""Feeds files into the event log: their rows become records of a stream.

Rules that hold here:
- Only streams of JSON values in the event log are fed: nobody would read it elsewhere.
- A file must have every field that the stream requires, and no line that is none, else
  nothing of it is fed. Columns that the stream does not have are left out.
- A cell that is no value of its field's type goes on as text, so that its record becomes a
  dead letter of each view, with the reason, and is not dropped here.
- Memory is bounded by a block of the file, whatever its size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]

from penstock.definitions.avro import avro_names
from penstock.errors import UsageError, quote
from penstock.eventlog import Topic
from penstock.model.kinds import Stream
from penstock.pipeline.sources.blocks import ENDINGS, Survey, read_block, survey
from penstock.pipeline.sources.values import NO_TEXT

ROWS: Final = 50_000
ENCODE: Final = "save the file in UTF-8, such as with `iconv -f latin1 -t utf8`"
FIXES: Final = {
    "csv": "give every line as many cells as the first",
    "json": "write one object a line",
}


def feed(path: Path, stream: Stream, topic: Topic) -> int:
    """Append the records of a file to a topic; return how many."""
    if stream.source is not None:
        files = stream.source.files
        raise UsageError(
            f"the stream {quote(stream.name)} "
            f"{'reads files by itself' if files else 'is read from Kafka'}",
            fix=f"put the file into {files.folder}" if files else "use `penstock connect`",
        )
    if stream.format != "json":
        raise UsageError(
            f"the values of the stream {quote(stream.name)} are {stream.format}, and rows of "
            "files are fed as JSON",
            fix="feed a stream of format json",
        )
    form = ENDINGS.get(path.suffix)
    if form is None:
        fix = f"files end in {', '.join(ENDINGS)}"
        raise UsageError(f"what {quote(path.name)} holds is not known", fix=fix)
    try:
        found = survey(path, form)
    except OSError as error:
        raise UsageError(
            f"{quote(path)} cannot be read: {error.strerror}", fix="name a readable file"
        ) from None
    _check(found, form, stream, path)
    fed = 0
    for block in found.blocks:
        rows = read_block(path, form, found.header, block, stream.fields)
        wrong = rows.problems.drop_null()
        if len(wrong):
            raise UsageError(
                f"{quote(path.name)} holds rows that cannot be read, of {len(wrong)} the first: "
                f"{wrong[0]}; {fed} records were fed",
                fix=f"{ENCODE if wrong[0].as_py() == NO_TEXT else 'mend the file'}"
                f"{', and feed the rest' if fed else ''}",
            )
        fed += _append(topic, rows.values)
    return fed


def _append(topic: Topic, values: pa.Array) -> int:
    starts = range(0, len(values), ROWS)
    return sum(len(topic.append(values.slice(start, ROWS).to_pylist())) for start in starts)


def _check(found: Survey, form: str, stream: Stream, path: Path) -> None:
    if found.problem is not None or found.wrong:
        raise UsageError(
            f"{quote(path.name)} cannot be fed: "
            f"{found.problem or f'{found.wrong} of its lines are no records'}",
            fix=FIXES.get(form, "check the file"),
        )
    if form == "json":
        return
    names = set(found.header)
    if form == "avro":
        called = avro_names(field.name for field in stream.fields)
        names |= {ours for ours, theirs in called.items() if theirs in names}
    missing = [it.name for it in stream.fields if not it.optional and it.name not in names]
    if missing:
        raise UsageError(
            f"{quote(path.name)} has no column {quote(missing[0])}, which the stream requires",
            fix=f"columns there are {', '.join(found.header[:20]) or 'none'}",
        )

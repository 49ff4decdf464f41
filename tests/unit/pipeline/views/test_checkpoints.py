"""Checkpoints as Spark writes them: whose they are, damage, copies for views that leave."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import UnavailableError, UsageError
from penstock.pipeline.sinks.commits import Batch, Commit, ViewWriter
from penstock.pipeline.views.checkpoints import (
    Checkpoint,
    Owner,
    Place,
    find_batch,
    give_copy,
    read_place,
    remove_unused,
    write_place,
)

OWNER = Owner("patients", "eventlog:patients")


def _make(folder: Path, batches: int, *, committed: int | None = None) -> Checkpoint:
    made = Checkpoint.make(folder / "checkpoints", OWNER)
    for kind, count in (("offsets", batches), ("commits", committed or batches)):
        (made.folder / kind).mkdir()
        for number in range(count):
            lines = ["v1", "{}", json.dumps({"offset": number + 1})]
            (made.folder / kind / str(number)).write_text("\n".join(lines))
            (made.folder / kind / f".{number}.crc").write_bytes(b"")
    return made


def _view(folder: Path, name: str, place: Place, batch: Batch | None = None) -> Path:
    view = folder / "views" / name
    writer = ViewWriter(view)
    writer.open()
    if batch is not None:
        writer.stage()
        writer.commit(Commit(0, "p", batch))
    writer.close()
    write_place(view, place)
    return view


def test_how_far_it_goes_is_what_spark_noted(tmp_path: Path) -> None:
    checkpoint = _make(tmp_path, 4, committed=3)
    assert (checkpoint.planned, checkpoint.committed) == (3, 2)
    assert checkpoint.offsets(3) == '{"offset": 4}'
    checkpoint.check(OWNER)
    empty = Checkpoint.make(tmp_path / "checkpoints", OWNER)
    empty.check(OWNER)
    assert (empty.planned, empty.committed) == (-1, -1)


@pytest.mark.parametrize(
    ("owner", "told"),
    [
        (Owner("others", OWNER.source), "belongs to the stream 'patients', and not to the stream"),
        (Owner("patients", OWNER.source, "mean"), "and not to the view 'mean'"),
        (Owner("patients", "files:csv:/a"), "which had another source"),
    ],
)
def test_one_of_others_is_refused(owner: Owner, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        _make(tmp_path, 2).check(owner)


def test_damage_is_told(tmp_path: Path) -> None:
    checkpoint = _make(tmp_path, 4)
    shutil.rmtree(checkpoint.folder / "offsets")
    with pytest.raises(UnavailableError, match="has offsets up to -1, commits up to 3"):
        checkpoint.check(OWNER)
    checkpoint = _make(tmp_path, 4)
    (checkpoint.folder / "offsets" / "3").write_text("v1\n{}\n{torn")
    with pytest.raises(UnavailableError, match="offsets of batch 3 that cannot be read"):
        checkpoint.check(OWNER)
    (checkpoint.folder / "penstock.json").write_text("{")
    with pytest.raises(UnavailableError, match="does not say whose it is"):
        checkpoint.check(OWNER)
    shutil.rmtree(checkpoint.folder)
    with pytest.raises(UnavailableError, match="is not there"):
        checkpoint.check(OWNER)


def test_a_view_that_missed_a_batch_gets_a_copy_that_ends_before_it(tmp_path: Path) -> None:
    checkpoint = _make(tmp_path, 6, committed=5)
    place = Place(checkpoint.name)
    view = _view(tmp_path, "late", place, Batch(checkpoint.name, 3, '{"offset": 4}'))
    assert find_batch(view, checkpoint.name) == 3
    give_copy(checkpoint, view)
    moved = read_place(view)
    assert moved is not None
    assert moved.batch == 3
    copy = Checkpoint(checkpoint.folder.parent / moved.checkpoint)
    copy.check(OWNER)
    assert (copy.planned, copy.committed) == (3, 3)
    assert find_batch(view, copy.name) == 3, "its commit tells of the other checkpoint"
    ids = {(copy.folder / "metadata").read_text()}
    assert ids != {"{}"}
    # Spark had not noted the newest batch yet, but the view has it.
    ahead = _view(tmp_path, "ahead", place, Batch(checkpoint.name, 5, '{"offset": 6}'))
    give_copy(checkpoint, ahead)
    moved = read_place(ahead)
    assert moved is not None
    assert Checkpoint(checkpoint.folder.parent / moved.checkpoint).committed == 5


def test_a_view_without_a_batch_begins_anew(tmp_path: Path) -> None:
    checkpoint = _make(tmp_path, 1)
    view = _view(tmp_path, "new", Place(checkpoint.name))
    assert find_batch(view, checkpoint.name) == -1
    give_copy(checkpoint, view)
    assert read_place(view) is None


def test_a_view_that_came_from_another_checkpoint_begins_where_it_came(tmp_path: Path) -> None:
    checkpoint = _make(tmp_path, 1)
    owner = replace(OWNER, start='{"offset": 7}')
    checkpoint.claim(owner)
    view = _view(tmp_path, "moved", Place(checkpoint.name))
    give_copy(checkpoint, view)
    moved = read_place(view)
    assert moved is not None
    assert moved.checkpoint != checkpoint.name
    copy = Checkpoint(checkpoint.folder.parent / moved.checkpoint)
    assert (copy.owner, copy.planned, moved.batch) == (owner, -1, -1)


def test_what_no_view_goes_by_is_removed(tmp_path: Path) -> None:
    used, unused = _make(tmp_path, 1), _make(tmp_path, 1)
    view = _view(tmp_path, "one", Place(used.name))
    remove_unused(used.folder.parent, tmp_path / "views")
    assert used.folder.exists()
    assert not unused.folder.exists()
    (view / "place.json").write_text("{")
    with pytest.raises(UnavailableError, match=r"place\.json' cannot be read"):
        read_place(view)


def test_files_tell_where_a_query_stands(tmp_path: Path) -> None:
    places = []
    for order in (("a", "b"), ("b", "a"), ("a", "c")):
        checkpoint = _make(tmp_path, 2)
        (checkpoint.folder / "offsets" / "1").write_text('v1\n{}\n{"logOffset":1}')
        noted = checkpoint.folder / "sources" / "0"
        noted.mkdir(parents=True)
        for number, name in enumerate(order):
            entry = {"path": f"file:///in/{name}.csv", "timestamp": 1, "batchId": number}
            (noted / str(number)).write_text(f"v1\n{json.dumps(entry)}")
        places.append(checkpoint.position(1))
    assert places[0] == places[1] != places[2]


def test_a_batch_that_nobody_has_is_planned_anew(tmp_path: Path) -> None:
    checkpoint = _make(tmp_path, 3, committed=2)
    noted = checkpoint.folder / "sources" / "0"
    noted.mkdir(parents=True)
    # Where Kafka's source begins stands there, too.
    (noted / "0").write_text('v1\n{"patients":{"0":0}}')
    (checkpoint.folder / "state").mkdir()
    checkpoint.forget_planned()
    assert (checkpoint.planned, checkpoint.committed) == (1, 1)
    assert not (checkpoint.folder / "offsets" / ".2.crc").exists()
    assert (noted / "0").read_text() == 'v1\n{"patients":{"0":0}}'
    assert (checkpoint.folder / "state").exists()
    # Nothing was done at all: Spark wants to begin with no state then.
    first = Checkpoint.make(tmp_path / "checkpoints", OWNER)
    for kind in ("offsets", "state"):
        (first.folder / kind).mkdir()
    (first.folder / "offsets" / "0").write_text('v1\n{}\n{"offset": 1}')
    first.forget_planned()
    assert first.planned == -1
    assert not (first.folder / "state").exists()

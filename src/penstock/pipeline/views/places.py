"""Which checkpoint a view goes by: one of its own, one that it shares, or a new one.

Rules that hold here:
- Views that begin together share a checkpoint, and so do row-wise views that came apart and stand
  at the same place again. One that missed a batch gets a copy that ends before it.
- A stateful view has a checkpoint of its own. Where that does not fit any more (it is row-wise by
  now, or wants another number of partitions), it goes on at the same place in a new one.
- A view that cannot know where it goes on, whose state is gone, or whose records are gone, does not
  run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.errors import UnavailableError, quote
from penstock.model.kinds import Stream
from penstock.pipeline.sources.event_log import Position
from penstock.pipeline.sources.source import Source
from penstock.pipeline.views.checkpoints import (
    Checkpoint,
    Owner,
    Place,
    find_batch,
    give_copy,
    read_place,
    write_place,
)
from penstock.pipeline.views.stateful_query import choose_partitions
from penstock.pipeline.views.view_runner import ViewRunner


class Places:
    """The checkpoints of one stream's queries."""

    def __init__(
        self, spark: SparkSession, stream: Stream, source: Source, checkpoints: Path
    ) -> None:
        self.behind: dict[str, int] = {}
        """Checkpoint → how much of the source was not read when Spark told last."""
        self._spark = spark
        self._stream = stream
        self._source = source
        self._folder = checkpoints

    def find(
        self, view: ViewRunner, identity: str, waiting: Iterable[ViewRunner] = ()
    ) -> Checkpoint:
        """Return the checkpoint that a view goes by: its own, a new one, or one to share.

        A new one is shared with those of the views that wait that begin, too.
        """
        place = read_place(view.folder)
        owner = Owner(self._stream.name, identity)
        if view.alone:
            partitions = choose_partitions(self._spark, view.blueprint) if view.stateful else 0
            owner = replace(owner, view=view.name, partitions=partitions)
        if place is None:
            if view.batch.number >= 0:
                raise UnavailableError(
                    f"where the view {quote(view.name)} goes on is not known: its place is gone",
                    fix="restore place.json in its folder, or move the folder away",
                )
            return self._begin(view, owner, waiting)
        checkpoint = Checkpoint(self._folder / place.checkpoint)
        if is_replaced(checkpoint.owner, owner):
            self._check_read(view, checkpoint)
            return self._begin(view, owner, waiting)
        before = checkpoint.owner
        if not view.held and self._needs_another(view, before, owner):
            if not view.batch.place:
                return self._begin(view, owner, waiting)
            return self._go_on(view, owner, Position(checkpoint.folder, view.batch.place))
        checkpoint.check(replace(owner, view=view.name if before.view else owner.view))
        if before.view is not None:
            self._check_state(view, checkpoint)
        if find_batch(view.folder, checkpoint.name) < checkpoint.committed:
            # It missed a batch, and a kill came before it got a copy.
            give_copy(checkpoint, view.folder)
            return self.find(view, identity)
        return checkpoint

    def check_records(self, view: ViewRunner, checkpoint: Checkpoint) -> None:
        """Raise if records that a view lacks are not there any more, or not as they were."""
        batch = find_batch(view.folder, checkpoint.name)
        place = checkpoint.offsets(batch) if batch >= 0 else checkpoint.owner.start
        self._source.check(Position(checkpoint.folder, place))

    def _needs_another(self, view: ViewRunner, before: Owner, now: Owner) -> bool:
        """Whether a view that holds nothing back goes on better with a new checkpoint."""
        if (before.stream, before.source) != (now.stream, now.source):
            return False
        if before.view not in {None, view.name}:
            return False
        if (before.view is None) != (now.view is None):
            return True
        # Budgets stay where they are: figures are the same with any number of partitions.
        return before.partitions != now.partitions and view.blueprint.figures is None

    def _check_state(self, view: ViewRunner, checkpoint: Checkpoint) -> None:
        if view.held and not (checkpoint.folder / "state").exists():
            raise UnavailableError(
                f"the view {quote(view.name)} held {view.held} records back, and they are gone",
                fix=f"bring {checkpoint.folder / 'state'} back, or begin the view anew",
            )
        if not checkpoint.committed < find_batch(view.folder, checkpoint.name):
            checkpoint.forget_planned()

    def _go_on(self, view: ViewRunner, owner: Owner, position: Position) -> Checkpoint:
        """Return a new checkpoint that begins where the view stands in another."""
        made = Checkpoint.make(self._folder, owner)
        made.claim(replace(owner, start=self._source.hand_over(position, made.folder)))
        write_place(view.folder, Place(made.name))
        return made

    def _begin(self, view: ViewRunner, owner: Owner, waiting: Iterable[ViewRunner]) -> Checkpoint:
        """Return a checkpoint at the beginning of the source, shared by those who begin now."""
        # What others were given has to be there for it, too.
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            self._source.check(Position(folder, ""))
        for other in waiting:
            place = read_place(other.folder) if other is not view else None
            if place is not None and place.batch < 0:
                found = Checkpoint(self._folder / place.checkpoint)
                if found.owner == owner and found.planned < 0:
                    break
        else:
            found = Checkpoint.make(self._folder, owner)
        write_place(view.folder, Place(found.name))
        return found

    def _check_read(self, view: ViewRunner, checkpoint: Checkpoint) -> None:
        """Raise unless the view had all records of a topic that was deleted."""
        if self.behind.get(checkpoint.name) != 0:
            raise UnavailableError(
                f"the topic {quote(self._stream.topic)} was deleted and made again; whether the "
                f"view {quote(view.name)} had all records that went with it is not known",
                fix="feed them again, and give the view another name, or move its folder away",
            )

    def merge(self, groups: dict[str, list[ViewRunner]]) -> dict[str, list[ViewRunner]]:
        """Put row-wise views together that stand at the same place in different checkpoints."""
        found: dict[str, list[ViewRunner]] = {}
        standing: dict[str, str] = {}
        for name, views in groups.items():
            checkpoint = Checkpoint(self._folder / name)
            position = "" if views[0].alone else stand(checkpoint, views)
            into = standing.setdefault(position, name) if position else name
            if into != name:
                batch = Checkpoint(self._folder / into).committed
                for view in views:
                    write_place(view.folder, Place(into, batch))
            found.setdefault(into, []).extend(views)
        return found


def stand(checkpoint: Checkpoint, views: Sequence[ViewRunner]) -> str:
    """Return where all views of a checkpoint stand; nothing, while a batch is on its way."""
    last = checkpoint.committed
    if last < 0 or checkpoint.planned != last:
        return ""
    still = all(find_batch(view.folder, checkpoint.name) == last for view in views)
    return checkpoint.position(last) if still else ""


def is_replaced(before: Owner, now: Owner) -> bool:
    """Whether the topic of a checkpoint was deleted and made again."""
    (name, _, first), (again, _, second) = (it.source.rpartition(":") for it in (before, now))
    return name.startswith("kafka:") and name == again and first != second

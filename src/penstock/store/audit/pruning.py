"""Prunes old entries, and leaves what proves that it was us and that the rest is whole.

    0 … … … … … before … … … … … … … … … size
    └─ pruned, but for survivors ─┘└─ all there, "audit.pruned" among them ─┘

A log ends with a signed head, and one head speaks for everything before it. To go on proving
that of the kept entries, the tree needs the hashes of the largest subtrees before the cut (its
peaks), and nothing else of what is gone.

Rules that hold here:
- Pruning is one transaction: the entry that says what was pruned, signed with the next head as
  every entry is; the hashes that stay; the rows that go. A crash leaves all of it or nothing.
- The entry names the cut, the root of the tree before it, and the number and a digest of the
  *survivors*: entries before the cut that stay, and of the hashes kept. So nobody can cut more,
  or drop a survivor.
- What is about to go is compared with the signed head first: evidence of tampering is not
  cleared away.
- Denials and all other entries have an age and a number each. A flood of denials pushes out
  denials alone; grants, commands and changes have their own room. What readers cause by reading,
  notes of messages that were changed for them, counts with denials.
- A survivor stays provable: the siblings on its way up to a peak are kept, unless they stand
  beside other survivors. So do heads that are known to be kept elsewhere (`witnesses`): what
  connects them with the log stays.
- What was recorded within the last hour stays in any case. Processes that hold the log open
  look at it more often than that (`AuditKeeper`), so that each can connect what it saw.
- It goes in steps, so that no writer waits long.
- Every look also takes in what others appended, so that each process can connect what it saw
  with a log that another one pruned. So the log is looked at even where nothing is due.
- Entries are not pruned one by one: a pruning adds an entry of its own. It waits until many
  are due, or for a day.
- What fails is logged, counted and tried again at the next look; appending goes on meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Self

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.config.installation import AuditSettings
from penstock.errors import PenstockError
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AREA, AuditLog, extends
from penstock.store.audit.merkle import HASH_SIZE, Frontier, TreeNode, edge_below, peaks_of
from penstock.store.audit.pruned_prefix import PRUNED, KeptDigest, describe_cut
from penstock.store.audit.reader import (
    PAGE,
    entries,
    heads,
    nodes,
    pruned,
    raw,
    read_after,
    read_checkpoint,
    read_kept_nodes,
    read_nodes,
    read_one,
    read_tip,
    witnesses,
)
from penstock.store.audit.signatures import TamperedError
from penstock.telemetry import counter, get_logger

HOLD_SECONDS: Final = 3600.0
STEP: Final = 20_000

ROUTINE: Final = ("delivery.transformed", "publication.transformed")
"""What everybody causes by the thousand who publishes, or reads what they may."""
_DENIED = sa.or_(entries.c.outcome == Outcome.DENIED.value, entries.c.kind.in_(ROUTINE))


@dataclass(frozen=True, slots=True)
class Retention:
    """How long, in seconds, and how many entries are kept."""

    keep: float
    entries: int
    denials_keep: float
    denials_entries: int
    hold: float = HOLD_SECONDS

    @classmethod
    def of(cls, settings: AuditSettings) -> Self:
        """Return what the settings say."""
        return cls(settings.keep, settings.entries, settings.denials_keep, settings.denials_entries)


@dataclass(frozen=True, slots=True)
class PruningPlan:
    """What is due: denials before one entry, others before another."""

    before: int
    denials_before: int
    others_before: int
    denials: int = 0
    others: int = 0

    @property
    def count(self) -> int:
        """How many entries go."""
        return self.denials + self.others

    def condition(self) -> sa.ColumnElement[bool]:
        """Return what is true of the entries that go."""
        return sa.or_(
            sa.and_(_DENIED, entries.c.seq < self.denials_before),
            sa.and_(sa.not_(_DENIED), entries.c.seq < self.others_before),
        )


def plan_pruning(
    connection: Connection, retention: Retention, now: float, *, limit: int | None = None
) -> PruningPlan | None:
    """Say what is due at `now` (seconds since 1970); None where nothing is.

    With a `limit`, nothing from there on.
    """
    moment = int(now * 1e6)
    end = _find_end(connection, moment - int(retention.hold * 1e6))
    end = end if limit is None else min(end, limit)
    bounds = []
    for of, keep, most in (
        (_DENIED, retention.denials_keep, retention.denials_entries),
        (sa.not_(_DENIED), retention.keep, retention.entries),
    ):
        bound = _find_bound(connection, of, moment - int(keep * 1e6), most)
        bounds.append(end if bound is None else min(end, bound))
    return _count(connection, *bounds)


def _count(connection: Connection, denials_before: int, others_before: int) -> PruningPlan | None:
    cut = read_checkpoint(connection).before
    found = PruningPlan(max(cut, denials_before, others_before), denials_before, others_before)
    denied = sa.func.coalesce(sa.func.sum(sa.case((_DENIED, 1), else_=0)), 0)
    asked = sa.select(sa.func.count(), denied).where(found.condition())
    count, denials = connection.execute(asked).one()
    return replace(found, denials=denials, others=count - denials) if count else None


def _next_step(connection: Connection, plan: PruningPlan, step: int) -> PruningPlan | None:
    """Take so much of a plan that no writer waits long; None where all of it is done."""
    end = read_checkpoint(connection).before + step
    bounds = []
    for of, bound in (
        (_DENIED, plan.denials_before),
        (sa.not_(_DENIED), plan.others_before),
    ):
        oldest = sa.select(entries.c.seq).where(of, entries.c.seq < bound).order_by(entries.c.seq)
        far = connection.scalar(oldest.offset(step).limit(1))
        bounds.append(min(end, bound if far is None else far))
    found = _count(connection, *bounds)
    if found is None and end < plan.before:
        # All of this stretch survives; the next ones are still to be looked at.
        return PruningPlan(end, *bounds)
    return found


def _find_end(connection: Connection, held: int) -> int:
    """Find behind which entry all were recorded too recently."""
    asked = sa.select(entries.c.seq).where(entries.c.time < held)
    last = connection.scalar(asked.order_by(entries.c.seq.desc()).limit(1))
    return 0 if last is None else last + 1


def _find_bound(
    connection: Connection, of: sa.ColumnElement[bool], cutoff: int, most: int
) -> int | None:
    """Find the first entry that may stay by age and by number; None: none of them may."""
    chosen = sa.select(entries.c.seq).where(of)
    by_number = 0
    if read_tip(connection).size > most:  # else the search would read the whole log for nothing
        newest = chosen.order_by(entries.c.seq.desc()).offset(most - 1).limit(1)
        by_number = connection.scalar(newest) or 0
    young = chosen.where(entries.c.seq >= by_number, entries.c.time >= cutoff)
    found: int | None = connection.scalar(young.order_by(entries.c.seq).limit(1))
    return found


def prune(
    log: AuditLog, retention: Retention, *, now: float | None = None, step: int = STEP
) -> PruningPlan | None:
    """Prune all that is due, step by step; return what went, None where nothing was due."""
    moment = time.time() if now is None else now
    # Kept outside the database before anything goes: what we saw stays behind the cut.
    limit = log.refresh().size
    with log.database.read() as connection:
        goal = plan_pruning(connection, retention, moment, limit=limit)
    if goal is None:
        return None
    before = denials = others = 0
    while True:
        with log.database.write(AREA) as connection:
            done = _next_step(connection, goal, step)
            if done is not None:
                _prune(log, connection, done, moment)
        log.refresh()
        if done is None:
            return replace(goal, before=before, denials=denials, others=others)
        before = done.before
        denials += done.denials
        others += done.others


def _prune(log: AuditLog, connection: Connection, plan: PruningPlan, now: float) -> None:
    cut = read_checkpoint(connection).before
    edge = _checked_edge(connection, cut, plan.before)
    kept, first, new = KeptDigest(), plan.before, []
    staying = sa.select(entries.c.seq).where(entries.c.seq < plan.before, ~plan.condition())
    for seq in connection.scalars(staying.order_by(entries.c.seq)):
        kept.add(seq)
        first = min(first, seq)
        if seq >= cut:
            new.append(seq)
    hashes = _needed_hashes(connection, plan, cut, first, new)
    connection.execute(sa.delete(nodes).where(nodes.c.leaf < first))
    _insert_nodes(connection, hashes)
    for row in connection.execute(sa.select(nodes).order_by(nodes.c.leaf, nodes.c.level)):
        kept.add_node(*row)
    said = {**describe_cut(edge, kept), "deleted": plan.count}
    entry = Entry.make(PRUNED, Outcome.DONE, at=int(now * 1e6), **said)
    head = log.append_within(connection, [entry])
    connection.execute(sa.delete(pruned))
    connection.execute(sa.insert(pruned).values(id=1, before=plan.before, entry=head.size - 1))
    connection.execute(sa.delete(entries).where(plan.condition()))
    connection.execute(sa.delete(heads).where(heads.c.size < plan.before))


def _needed_hashes(
    connection: Connection, plan: PruningPlan, cut: int, first: int, new: list[int]
) -> dict[TreeNode, bytes]:
    """Read the hashes that have to stay, but for those that stand beside survivors.

    `first` is the first survivor: before it only its peaks are needed, and what connects heads
    that are kept elsewhere. `new` are the survivors since the last cut.
    """
    needed = {*peaks_of(plan.before), *_survivor_nodes(new, plan.before)}
    for peak in peaks_of(cut):
        needed.update(peak.siblings_below(plan.before))
    beside = set(new)
    needed = {node for node in needed if node.leaf >= cut and node.leaf not in beside}
    found = read_nodes(connection, needed | set(peaks_of(first)))
    # Survivors of earlier prunings that go now: what stands beside them may be needed by others.
    going = sa.select(*raw(entries, "seq", "hashes")).where(
        plan.condition(), entries.c.seq >= first, entries.c.seq < cut
    )
    for seq, kept in connection.execute(going):
        for level in range(len(kept) // HASH_SIZE):
            node = TreeNode(level, (seq + 1 >> level) - 1)
            found[node] = kept[level * HASH_SIZE : (level + 1) * HASH_SIZE]
    found = {node: value for node, value in found.items() if node.leaf >= first} | {
        node: found[node] for node in peaks_of(first)
    }
    return found | _witness_hashes(connection, plan.before)


def _checked_edge(connection: Connection, cut: int, before: int) -> Frontier:
    """Return the edge of the tree at the cut, after hashing all entries since the last one."""
    peaks = read_nodes(connection, peaks_of(cut))
    edge = Frontier(cut, [peaks[node] for node in peaks_of(cut)])
    while edge.size < before:
        page = read_after(connection, edge.size - 1, min(PAGE, before - edge.size))
        for one in page:
            edge.append(one.leaf_hash() or bytes(HASH_SIZE))
        if not page:
            break
    if not extends(connection, before, edge.root(), read_tip(connection).head):
        raise TamperedError(
            f"entries before {before} are not as they were signed, so they are not pruned",
            fix="run `penstock audit verify`",
        )
    return edge


def _survivor_nodes(seqs: Iterable[int], before: int) -> Iterator[TreeNode]:
    """Name the siblings on the way of each up to its peak, each once."""
    climbed: set[TreeNode] = set()
    for seq in seqs:
        node = TreeNode(0, seq)
        while node.parent.leaf < before and node not in climbed:
            climbed.add(node)
            yield node.sibling
            node = node.parent


def _witness_hashes(connection: Connection, before: int) -> dict[TreeNode, bytes]:
    """Read what connects heads that are kept elsewhere with the log."""
    hashes: dict[TreeNode, bytes] = {}
    asked = sa.select(witnesses.c.size).distinct().where(witnesses.c.size < before)
    for size in connection.scalars(asked).all():
        try:
            hashes |= read_nodes(connection, edge_below(size, before))
        except TamperedError:
            continue  # noted after its time was over; there is nothing left to connect it with
    return hashes


def _insert_nodes(connection: Connection, wanted: dict[TreeNode, bytes]) -> None:
    there: set[TreeNode] = set()
    left = list(wanted)
    for start in range(0, len(left), PAGE // 2):
        there |= read_kept_nodes(connection, left[start : start + PAGE // 2]).keys()
    rows = [
        {"leaf": node.leaf, "level": node.level, "hash": value}
        for node, value in wanted.items()
        if node not in there
    ]
    if rows:
        connection.execute(sa.insert(nodes), rows)


MANY: Final = 1000
LONGEST_WAIT: Final = 24 * 3600.0

PRUNED_ENTRIES = counter("penstock_audit_pruned", "Entries pruned from the audit log.").plain
FAILURES = counter("penstock_audit_prune_failures", "Looks for old entries that failed.").plain

_log = get_logger("audit")


class AuditKeeper:
    """Looks at a log every so often and prunes what is due."""

    def __init__(self, log: AuditLog, settings: AuditSettings) -> None:
        self._log = log
        self._retention = Retention.of(settings)
        self._every = settings.prune_every

    def look(self) -> int:
        """Prune if enough is due; return how many entries went."""
        self._log.refresh()
        if not self._is_worth_it():
            return 0
        done = prune(self._log, self._retention)
        count = done.count if done else 0
        PRUNED_ENTRIES.inc(count)
        if done is not None:
            _log.info("pruned the audit log", count=count, size=done.before)
        return count

    def _is_worth_it(self) -> bool:
        with self._log.database.read() as connection:
            due = plan_pruning(connection, self._retention, time.time())
            last = read_one(connection, read_checkpoint(connection).entry)
        if due is None:
            return False
        waited = float("inf") if last is None else time.time() - last.entry.time / 1e6
        return due.count >= MANY or waited >= LONGEST_WAIT

    def run(self, stop: threading.Event) -> None:
        """Look every so often until told to stop."""
        while not stop.wait(self._every):
            try:
                self.look()
            except PenstockError as error:
                FAILURES.inc()
                _log.error("the audit log was not pruned; trying again later", error=error)


@contextmanager
def keep_pruned(log: AuditLog, settings: AuditSettings) -> Iterator[None]:
    """Prune a log in a thread for as long as the block lasts."""
    stop = threading.Event()
    keeper = AuditKeeper(log, settings)
    thread = threading.Thread(target=keeper.run, args=(stop,), name="audit-keeper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

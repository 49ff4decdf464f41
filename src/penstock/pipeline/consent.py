"""Who does not want to be in which views: opt-outs of purposes, as of an epoch.

Rules that hold here:
- A record of a person who opted out of one of a view's purposes does not get into the view.
  It becomes a dead letter, so that what was read is still accounted for; the reason names
  nobody.
- An opt-out of a purpose covers what lies below it. It also covers what lies above: who may
  use a view for `care` may use it for `care/research`.
- People are known by the subject of the stream, as text. A stream without one says that its
  records are about nobody.
- What a view took in before an opt-out and still holds back is published as promised then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from pyspark.sql import DataFrame, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.model.kinds import Stream
from penstock.model.purposes import lineage
from penstock.pipeline.log_source import PROBLEM

REFUSED: Final = "the person opted out of a purpose of the view"
_WHO: Final = "penstock:refused"


@dataclass(frozen=True, slots=True)
class OptOuts:
    """All opt-outs of an epoch: purpose → the subjects who do not want their data used for it."""

    epoch: int = 0
    by_purpose: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, epoch: int, pairs: Iterable[tuple[str, str]]) -> OptOuts:
        """Gather pairs of subject and purpose."""
        found: dict[str, set[str]] = {}
        for subject, purpose in pairs:
            found.setdefault(purpose, set()).add(subject)
        return cls(epoch, {purpose: frozenset(who) for purpose, who in found.items()})

    def refusing(self, purposes: Iterable[str]) -> frozenset[str]:
        """Return who opted out of one of the purposes, or of what it is a part of, or has."""
        served = [set(lineage(purpose)) for purpose in purposes]
        ends = set(purposes)
        return frozenset().union(
            *(
                who
                for refused, who in self.by_purpose.items()
                if any(refused in above for above in served)
                or not ends.isdisjoint(lineage(refused))
            )
        )


class Consent(Protocol):
    """Tells the opt-outs of now; the pipeline asks before each batch."""

    def __call__(self) -> OptOuts:
        """Return them; raise where they cannot be known, and nothing is published."""


def nobody_opted_out() -> OptOuts:
    """Return no opt-outs: for installations where nobody can."""
    return OptOuts()


def mark_refused(frame: DataFrame, stream: Stream, refusing: frozenset[str]) -> DataFrame:
    """Return parsed records; those of people who refuse have a problem."""
    if stream.subject is None or not refusing:
        return frame
    schema = types.StructType([types.StructField(_WHO, types.StringType())])
    people = frame.sparkSession.createDataFrame([(who,) for who in sorted(refusing)], schema)
    who, problem = F.col(f"`{_WHO}`"), F.col(f"`{PROBLEM}`")
    subject = F.col(f"`{stream.subject}`").cast("string")
    joined = frame.join(F.broadcast(people), subject == who, "left")
    found = F.coalesce(problem, F.when(who.isNotNull(), F.lit(REFUSED)))
    return joined.withColumn(PROBLEM, found).select(*(f"`{name}`" for name in frame.columns))

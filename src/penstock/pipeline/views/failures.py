"""What ended a query or failed a view: what is said of it, and whether it is worth another try.

Rules that hold here:
- Only our own errors are quoted: what Spark passes on may quote records.
- Another try is worth what others caused: brokers, stores and registries that do not answer, a
  busy machine on which Python processes start too late for Spark, or one that ends them.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import PenstockError, UnavailableError
from penstock.eventlog.connection import BrokerError
from penstock.eventlog.registry import NO_ANSWER
from penstock.pipeline.dataframes.shard_step import told_by
from penstock.store.consent import ConsentUnknownError

TRIES: Final = 3
"""So often a query is begun at most, where its Python processes start too late."""
_STORE_AWAY: Final = "tasks could not reach the store of tokens → check that it runs"
_SLOW_START: Final = "a Python process of Spark was slow to start → is the machine busy?"
_ENDED: Final = "a Python process of Spark's was ended from outside → is there memory enough?"
# What Spark's own words tell of those that tasks talk to, and what is said of it.
_ABROAD: Final = {
    NO_ANSWER: f"{NO_ANSWER} → check `registry` of the stream's source",
    "penstock.errors.UnavailableError": _STORE_AWAY,
    "penstock.store.sqlite_file.FileReplacedError": _STORE_AWAY,
    "org.apache.kafka": "Kafka did not give records → check that its brokers run",
    "org.apache.spark.sql.kafka010": "Kafka did not give records → check that its brokers run",
    "connect back": _SLOW_START,
    "INITIALIZATION_FAILURE": _SLOW_START,
    "Python worker exited unexpectedly": _ENDED,
}
_LOST: Final = "failOnDataLoss"
"""Stands in what Spark says where Kafka does not have records any more."""


class QueryEndedError(PenstockError):
    """The query ends without this batch: it was told to, or has no view left."""


class ReplacedSourceError(UnavailableError):
    """The topic was deleted and made again."""


class OperatorEndedError(UnavailableError):
    """Spark gave the view's query up; what was not published is done again later."""


def is_passing(error: BaseException) -> bool:
    """Whether what failed a view is worth another try: others were out of reach."""
    if isinstance(error, PenstockError):
        return isinstance(error, BrokerError | ConsentUnknownError | OperatorEndedError)
    text = str(error)
    return _LOST not in text and any(word in text for word in _ABROAD)


def is_slow_start(error: BaseException) -> bool:
    """Whether a Python process of Spark's did not start in time: the machine is busy."""
    if isinstance(error, PenstockError):
        return False
    return any(word in str(error) for word, said in _ABROAD.items() if said == _SLOW_START)


def describe(error: BaseException) -> str:
    """Say what failed without what records said: only our own errors are quoted."""
    if isinstance(error, PenstockError):
        return str(error)
    text = str(error)
    if _LOST in text:
        return "Kafka has forgotten records that the view lacks → keep them longer: retention.ms"
    if is_passing(error):
        return next(said for word, said in _ABROAD.items() if word in text)
    return type(error).__name__


def explain(error: BaseException) -> BaseException:
    """Return what ended a stateful query: in our own words, where a task of ours said some."""
    if isinstance(error, PenstockError) or is_passing(error) or _LOST in str(error):
        return error
    told = told_by(error)
    if told is not None:
        return PenstockError(told)
    return OperatorEndedError(
        f"Spark ended the view's query: {type(error).__name__}",
        fix="see .spark.log in the folder of views; the view is tried again by itself",
    )

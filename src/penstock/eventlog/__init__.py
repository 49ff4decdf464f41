"""The event log: what happened, in order, once and for all.

The embedded form is a folder of files; `kafka` has the same few verbs on a cluster: append
records to a topic, ask where it ends, read from a place on.
"""

from penstock.eventlog.files import EventLog, Topic
from penstock.eventlog.lines import Record

__all__ = ["EventLog", "Record", "Topic"]

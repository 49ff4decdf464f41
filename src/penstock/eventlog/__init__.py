"""The event log: records of topics, ordered and append-only.

The embedded form is a folder of files; `kafka` has the same few operations on a cluster: append
records to a topic, ask for its end offset, read from an offset on.
"""

from penstock.eventlog.files import EventLog, Record, Topic

__all__ = ["EventLog", "Record", "Topic"]

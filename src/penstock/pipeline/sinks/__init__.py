"""Where the records of views go: files, tables, the console, topics of the event log.

`files.Sink` is the interface, `formats.Sinks` finds the sink of a format, `commits` makes a batch
count once; a module for each kind.
"""

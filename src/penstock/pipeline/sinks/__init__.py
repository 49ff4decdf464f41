"""Where the records of views go: files, tables, the console, topics of the event log.

`sink` says what a sink can do, `opening` finds that of a view; beside them stands a module
for each kind.
"""

"""Where the records of streams come from: the embedded event log, or files of a folder.

`source` says what a source can do, `opening` finds that of a stream; beside them stands a
module for each kind. `ends` tells how far a source reaches without loading Spark.
"""

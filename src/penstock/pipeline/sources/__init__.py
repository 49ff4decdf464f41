"""Where the records of streams come from: the embedded event log, Kafka, or files of a folder.

`source.Source` is the interface; a module for each kind. Offsets are known without loading Spark.
"""

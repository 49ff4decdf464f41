"""Penstock for Spark users: the records of a stream as a DataFrame in, those of a view out.

from penstock.spark import anonymize

nurse = anonymize(frame, view="nurse", definitions="definitions/", key="views.key")
"""

from penstock.pipeline.dataframes.anonymize import anonymize

__all__ = ["anonymize"]

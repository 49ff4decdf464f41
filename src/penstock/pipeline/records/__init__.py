"""Records of streams as columns: decoded, parsed, checked against the fields of the stream."""

from typing import Final

# Here, where nothing else is loaded: Spark starts a process for each source of a query.
OFFSET: Final = "penstock:offset"
MILLISECONDS: Final = "penstock:milliseconds"
"""When the record arrived."""
VALUE: Final = "penstock:value"

"""Views at scale: Spark turns each stream into its views, and publishes no more than they allow.

    source ─→ batch of a stream ─┬→ view: masks ─→ stateful step ─→ masks ─→ commit
             (read once)         ├→ view …
                                 └→ view …

Rules that hold here:
- A view's commit names the offset of the next batch and the files it added, and is atomic. What was
  written before a commit does not count; so a kill at any moment neither loses a record nor
  publishes one twice. The state of stateful anonymizers is in Spark's state store.
- A record that cannot become part of a view goes to the dead letters with the reason and its
  offset in the stream, never with its content.
"""

from typing import Any

from penstock.hadoop import use_java


def _connect() -> tuple[Any, Any]:
    from penstock.pipeline.session import connect_java  # noqa: PLC0415 - files elsewhere are rare

    return connect_java()


use_java(_connect)

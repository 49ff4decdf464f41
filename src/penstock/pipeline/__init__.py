"""Views at scale: Spark turns each stream into its views, and never lets out more than they say.

    source ─→ batch of a stream ─┬→ view: masks ─→ stateful step ─→ masks ─→ commit
             (read once)         ├→ view …
                                 └→ view …

Rules that hold here:
- A view's commit names where the next batch begins, the files it added and the state it
  left, and becomes true in one step. What was written before a commit does not count; so a
  kill at any moment neither loses a record nor publishes one twice.
- A record that cannot become part of a view goes to the dead letters with the reason and its
  place in the stream, never with its content.
"""

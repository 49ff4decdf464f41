"""Which messages of other gateways have taken effect, so that none counts twice.

A gateway whose detector is gone before it answered asks the next one again, under the same
number. What the first one had on record the next one knows by these receipts.

Rules that hold here:
- A receipt is in the journal together with the step that it is about: both are durable, or
  neither is.
- A gateway says which of its numbers are still open; receipts of others are forgotten. So many
  gateways are remembered; of those beyond, the ones that were silent for longest are forgotten.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

NEIGHBOURS: Final = 1_000
_MARK: Final = b"#from "


class SubmissionId(NamedTuple):
    """Names one message of another gateway."""

    neighbour: str
    number: int
    oldest: int
    """The lowest number that this gateway may still ask for."""

    def line(self) -> bytes:
        """Return what the journal keeps."""
        return _MARK + f"{self.neighbour} {self.number} {self.oldest}".encode("ascii")


class AppliedSubmissions:
    """The receipts of all gateways."""

    def __init__(self, held: dict[str, list[int]] | None = None) -> None:
        self._held = {name: set(numbers) for name, numbers in (held or {}).items()}

    def has(self, receipt: SubmissionId) -> bool:
        """Say whether a message has taken effect before."""
        return receipt.number in self._held.get(receipt.neighbour, ())

    def put(self, receipt: SubmissionId) -> None:
        """Take note that a message has taken effect."""
        known = self._held.pop(receipt.neighbour, None) or set()
        # Few are open at a time: only now and then there is something to forget.
        if len(known) > 2 * (receipt.number - receipt.oldest) + 8:
            known = {it for it in known if it >= receipt.oldest}
        known.add(receipt.number)
        self._held[receipt.neighbour] = known
        if len(self._held) > NEIGHBOURS:
            del self._held[next(iter(self._held))]

    def replay(self, line: bytes) -> bool:
        """Repeat what the journal kept, if it is a receipt."""
        if not line.startswith(_MARK):
            return False
        name, number, oldest = line[len(_MARK) :].split(b" ")
        self.put(SubmissionId(name.decode("ascii"), int(number), int(oldest)))
        return True

    def as_data(self) -> dict[str, Any]:
        """Return all of them, for a snapshot."""
        return {name: sorted(numbers) for name, numbers in self._held.items()}

"""Sets of purposes as tests write them: `{allowed,…|prohibited,…}`."""

from __future__ import annotations

from penstock.model.purposes import PurposeSet, read_purposes


def parse_purposes(text: str) -> PurposeSet | None:
    """Read a set in braces; `{}` gives None."""
    assert (text[0], text[-1]) == ("{", "}")
    return read_purposes(text[1:-1])

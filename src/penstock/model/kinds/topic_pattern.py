"""Patterns: topic filters in which `+` may carry a name, such as `home/+patientId/+/pulse`.

Rules that hold here:
- What `+` stands for is known by its name; a lone `+` has none.
- No two levels of a pattern have one name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from penstock.errors import quote
from penstock.model.kinds.fields import as_value_error
from penstock.model.topics import check_filter

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def plain_filter(pattern: str) -> str:
    """Return the topics of a pattern, as a filter without names."""
    return "/".join("+" if level.startswith("+") else level for level in pattern.split("/"))


def named_levels(pattern: str) -> Mapping[int, str]:
    """Return the names of a pattern's levels, by the place of the level."""
    return {
        place: level[1:]
        for place, level in enumerate(pattern.split("/"))
        if level.startswith("+") and level != "+"
    }


def _check_pattern(pattern: str) -> str:
    names = list(named_levels(pattern).values())
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{quote(name)} cannot name a level → use letters, digits and _")
        if names.count(name) > 1:
            raise ValueError(f"two levels are called {quote(name)} → rename one, or write `+`")
    as_value_error(check_filter)(plain_filter(pattern))
    return pattern


TopicPattern = Annotated[str, Field(max_length=65535), AfterValidator(_check_pattern)]
"""A topic filter whose levels may have names."""

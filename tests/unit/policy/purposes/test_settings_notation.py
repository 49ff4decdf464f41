"""The notation: defaults, replacement, and what cannot be told apart."""

from __future__ import annotations

import pytest

from penstock.errors import UsageError
from penstock.policy.purposes.settings import Notation


def test_only_the_beginning_is_looked_at() -> None:
    notation = Notation()
    assert notation.is_command("!RESERVE/a{x}")
    assert notation.is_command("!anything")
    assert not notation.is_command("a/!RESERVE")
    assert notation.prefix_bytes == b"!"
    assert Notation(prefix="§§").prefix_bytes == "§§".encode()


def test_wildcards_are_whole_levels() -> None:
    notation = Notation()
    assert notation.read_filter("a/PLUS/HASH") == "a/+/#"
    assert notation.read_filter("a/HASHED/b") == "a/HASHED/b"
    assert Notation(rest="ALL", one="ANY").read_filter("ANY/ALL") == "+/#"


@pytest.mark.parametrize(
    "changed",
    [
        {"prefix": ""},
        {"reserve": "A/B"},
        {"rest": "#"},
        {"opening": "\0"},
        {"reserve": "AP"},
        {"clear": "TREE"},
        {"rest": "PLUS"},
        {"divider": ","},
        {"closing": "{"},
    ],
)
def test_what_cannot_be_read_back_is_refused(changed: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        Notation(**changed)

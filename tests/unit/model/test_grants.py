"""The notation of grants: what is taken, and what is refused with a word on how to write it."""

from __future__ import annotations

import pytest

from penstock.errors import UsageError
from penstock.model.grants import parse_grant


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        (
            "type: TestType1\naction: subscribe | publish\nattributes: Attr1 & Attr2 = 500",
            "type: TestType1; action: publish | subscribe; attributes: Attr1 & Attr2 = 500",
        ),
        ("network: N; action: connect|install", "network: N; action: *"),
        ("type: Test*; action: extend", "type: Test*; action: extend"),
        ("type: *; action: *; attributes: *", "type: *; action: *"),
        (
            "type: a; action: publish; attributes: * & b = 'x y' & c = true & d = 1.50",
            "type: a; action: publish; attributes: * & b = 'x y' & c = true & d = 1.5",
        ),
    ],
)
def test_grants_have_one_form(written: str, canonical: str) -> None:
    assert str(parse_grant(written)) == canonical


@pytest.mark.parametrize(
    ("written", "quoted"),
    [
        ("", "''"),
        ("type: a", "type: a"),
        ("action: publish", "action: publish"),
        ("type: a*b; action: publish", "a*b"),
        ("type: a; action: connect", "connect"),
        ("network: n; action: connect; attributes: x", "attributes"),
        ("type: a; type: b; action: publish", "type: b"),
        ("type: a; action: publish; attributes: x & x = 1", "x"),
        ("type: a; action: publish; attributes: * & x", "x"),
        ("type: a; action: publish; attributes: x = 1e5", "1e5"),
        ("type: a; action: publish; attributes: x = 'a\"b'", 'a"b'),
        ('type: a"); action: publish', "a"),
        ("type: a; action: publish; color: red", "color"),
    ],
)
def test_what_is_no_grant_is_refused_with_what_is_wrong(written: str, quoted: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_grant(written)
    assert quoted in refused.value.message

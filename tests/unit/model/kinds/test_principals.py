from __future__ import annotations

import pytest
from pydantic import ValidationError

from penstock.model.kinds import Group


def test_users_and_clients_are_members() -> None:
    made = Group.model_validate({"name": "g", "members": ["user:ann", "client:c:1"]})
    assert made.members == ("user:ann", "client:c:1")


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ("group:nurses", "name 'nurses' under `includes`"),
        ("anyone", "write user:NAME or client:ID"),
        ("ann", "write user:NAME or client:ID"),
        ("user:", "write user:NAME or client:ID"),
    ],
)
def test_what_could_not_count_is_refused(member: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Group.model_validate({"name": "g", "members": [member]})

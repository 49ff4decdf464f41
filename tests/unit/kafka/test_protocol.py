"""Rules and lengths come back from the wire as they went."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UnavailableError
from penstock.kafka.acls import Acl
from penstock.kafka.protocol import (
    ResponseReader,
    read_entry,
    read_resource,
    write_acl,
    write_bytes,
    write_list,
    write_text,
)

texts = st.text(max_size=300)
acls = st.builds(
    Acl,
    st.sampled_from(["topic", "group", "cluster", "transactional_id", "user", "kind 99"]),
    st.sampled_from(["literal", "prefixed", "kind 9"]),
    texts,
    st.sampled_from(["read", "write", "all", "two_phase_commit", "kind 77"]),
    st.sampled_from(["allow", "deny"]),
    texts,
)


@given(principal=texts, acl=acls)
def test_a_rule_is_read_as_it_was_written(principal: str, acl: Acl) -> None:
    # What is put and what is told have the same order of fields.
    answer = ResponseReader(write_acl(principal, acl))
    assert read_entry(answer, read_resource(answer)) == (principal, acl)
    with pytest.raises(UnavailableError):
        answer.take(1)


@given(items=st.lists(st.binary(max_size=200), max_size=200))
def test_lists_and_lengths(items: list[bytes]) -> None:
    answer = ResponseReader(write_list(map(write_bytes, items)))
    assert [answer.take(answer.size() - 1) for _ in range(answer.count())] == items


@given(text=texts, cut=st.integers(1, 5))
def test_what_ends_early_is_an_error(text: str, cut: int) -> None:
    whole = write_text(text)
    with pytest.raises(UnavailableError, match="in the middle of an answer"):
        ResponseReader(whole[:-cut]).text()


def test_none_is_an_empty_text_and_an_empty_list() -> None:
    assert ResponseReader(b"\0").text() == ""
    assert ResponseReader(b"\0").count() == 0

"""Rules and lengths come back from the wire as they went."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UnavailableError
from penstock.kafka.frames import Answer, write_bytes, write_list, write_text
from penstock.kafka.rule_frames import read_entry, read_resource, write_rule
from penstock.kafka.rules import Rule

texts = st.text(max_size=300)
rules = st.builds(
    Rule,
    st.sampled_from(["topic", "group", "cluster", "transactional_id", "user", "kind 99"]),
    st.sampled_from(["literal", "prefixed", "kind 9"]),
    texts,
    st.sampled_from(["read", "write", "all", "two_phase_commit", "kind 77"]),
    st.sampled_from(["allow", "deny"]),
    texts,
)


@given(principal=texts, rule=rules)
def test_a_rule_is_read_as_it_was_written(principal: str, rule: Rule) -> None:
    # What is put and what is told have the same order of fields.
    answer = Answer(write_rule(principal, rule))
    assert read_entry(answer, read_resource(answer)) == (principal, rule)
    with pytest.raises(UnavailableError):
        answer.take(1)


@given(items=st.lists(st.binary(max_size=200), max_size=200))
def test_lists_and_lengths(items: list[bytes]) -> None:
    answer = Answer(write_list(map(write_bytes, items)))
    assert [answer.take(answer.size() - 1) for _ in range(answer.count())] == items


@given(text=texts, cut=st.integers(1, 5))
def test_what_ends_early_is_an_error(text: str, cut: int) -> None:
    whole = write_text(text)
    with pytest.raises(UnavailableError, match="in the middle of an answer"):
        Answer(whole[:-cut]).text()


def test_none_is_an_empty_text_and_an_empty_list() -> None:
    assert Answer(b"\0").text() == ""
    assert Answer(b"\0").count() == 0

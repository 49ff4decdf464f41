"""Rights to the broker's own topics, against a naive model."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.topics import matches
from penstock.policy.access.rules import BrokerTopics, MonitorGrant

SUBJECTS = st.sampled_from(["user:ann", "user:bob", "group:ops", "anyone"])
LEVELS = st.lists(st.sampled_from(["a", "b"]), max_size=2)
TOPICS = st.builds(
    lambda top, rest: "/".join([top, *rest]), st.sampled_from(["$SYS", "$x"]), LEVELS
)
FILTERS = st.builds(
    lambda top, rest, end: "/".join([top, *rest, *end]),
    st.sampled_from(["$SYS", "$x"]),
    st.lists(st.sampled_from(["a", "b", "+"]), max_size=2),
    st.sampled_from([[], ["#"]]),
)
EVERY_TOPIC = [
    "/".join([top, *levels])
    for top in ("$SYS", "$x")
    for length in range(4)
    for levels in product("abc", repeat=length)
]
GRANTS = st.lists(st.builds(MonitorGrant, SUBJECTS, FILTERS, st.just("right r")), max_size=4)
ADMINISTRATORS = st.lists(st.tuples(SUBJECTS, st.just("right r")), max_size=2)
WHO = st.sets(SUBJECTS, max_size=3)


@given(GRANTS, ADMINISTRATORS, WHO, FILTERS | TOPICS)
def test_rights_decide_as_they_read_and_explain_it_alike(
    grants: list[MonitorGrant], administrators: list[tuple[str, str]], who: set[str], asked: str
) -> None:
    rights = BrokerTopics(grants, administrators)
    meant = [topic for topic in EVERY_TOPIC if matches(asked, topic)]
    reads = any(
        it.subject in who and all(matches(it.filter, topic) for topic in meant) for it in grants
    )
    writes = any(subject in who for subject, _ in administrators)
    assert rights.admits(who, "read", asked) == reads
    assert rights.admits(who, "write", asked) == writes
    assert rights.explain(who, "read", asked).allowed == reads
    assert rights.explain(who, "write", asked).allowed == writes
    assert BrokerTopics(open_mode=True).admits(who, "read", asked)

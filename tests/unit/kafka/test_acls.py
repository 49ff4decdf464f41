"""What permissions come to at the cluster, and how they are written."""

from __future__ import annotations

import pytest

from penstock.definitions import DefinitionSet
from penstock.definitions.set import Trust
from penstock.errors import InvalidError, UsageError
from penstock.kafka.acls import Acl, WantedAccess, user_status
from penstock.kafka.administration import parse_permission
from penstock.kafka.cluster import wanted_topics
from penstock.model.document import Document

DOCUMENTS = [
    Document("stream", "patients", {"fields": [{"name": "pid", "type": "int"}]}),
    Document("view", "nurse", {"stream": "patients", "roles": ["nurse"]}),
    Document("view", "open", {"stream": "patients"}),
    Document("role", "nurse", {"permissions": [{"prefix": "ward-"}]}),
    Document("role", "head", {"includes": ["nurse"], "permissions": [{"view": "open"}]}),
    Document("role", "feed", {"permissions": [{"stream": "patients", "allow": "write"}]}),
    Document("user", "anna", {"roles": ["head"]}),
    Document("user", "robot", {"roles": ["feed"]}),
    Document("user", "guest", {}),
]


@pytest.fixture
def access() -> WantedAccess:
    return WantedAccess(DefinitionSet.build(DOCUMENTS))


def test_reading_takes_topics_and_groups_of_ones_own(access: WantedAccess) -> None:
    assert access.acls("anna") == {
        Acl("topic", "literal", "patients-nurse", "read"),
        Acl("topic", "literal", "patients-open", "read"),
        Acl("topic", "prefixed", "ward-", "read"),
        Acl("group", "prefixed", "anna:", "read"),
    }


def test_writing_takes_transactions_of_ones_own_and_no_group(access: WantedAccess) -> None:
    assert access.acls("robot") == {
        Acl("topic", "literal", "patients", "write"),
        Acl("transactional_id", "prefixed", "robot:", "write"),
    }


def test_who_has_no_role_or_is_not_known_may_nothing(access: WantedAccess) -> None:
    assert access.acls("guest") == access.acls("nobody") == frozenset()


def test_a_certificate_gets_the_acls_of_its_user() -> None:
    shown = "CN=anna,O=St. Mary\\, Inc."
    anna = Document("user", "anna", {"roles": ["head"], "certificate": shown})
    access = WantedAccess(DefinitionSet.build([*DOCUMENTS[:-3], anna]))
    assert access.acls(shown) == access.acls("anna")
    assert Acl("group", "prefixed", "anna:", "read") in access.acls(shown)
    assert sorted(access.users) == ["anna"]
    assert user_status(access, "anna", None, behind=False).login == "certificate"


@pytest.mark.parametrize(
    ("before", "after", "touched"),
    [
        ("CN=a", "CN=b", {"anna", "CN=a", "CN=b"}),
        (None, "CN=b", {"anna", "CN=b"}),
        ("CN=a", None, {"anna", "CN=a"}),
    ],
)
def test_a_changed_certificate_touches_the_old_and_the_new(
    before: str | None, after: str | None, touched: set[str]
) -> None:
    sets = []
    for certificate in (before, after):
        body = {"roles": ["head"], **({"certificate": certificate} if certificate else {})}
        sets.append([*DOCUMENTS[:-3], Document("user", "anna", body)])
    old, new = ({it.key: it for it in documents} for documents in sets)
    assert WantedAccess(DefinitionSet.build(sets[1])).touched(old, new) == touched


def test_a_changed_role_touches_the_certificates_of_its_users() -> None:
    anna = Document("user", "anna", {"roles": ["head"], "certificate": "CN=anna"})
    before = [*DOCUMENTS[:-3], anna]
    after = [*DOCUMENTS[:3], Document("role", "nurse", {}), *DOCUMENTS[4:-3], anna]
    old, new = ({it.key: it for it in documents} for documents in (before, after))
    found = WantedAccess(DefinitionSet.build(after)).touched(old, new)
    assert found == {"anna", "CN=anna"}


def test_two_users_do_not_share_a_certificate() -> None:
    twins = [Document("user", name, {"certificate": "CN=twin"}) for name in ("eva", "ida")]
    with pytest.raises(InvalidError, match="'eva' has the same certificate"):
        DefinitionSet.build(twins)


@pytest.mark.parametrize(
    "written", ["anna", "CN=", "CN = anna", "CN=anna, O=Ward", "/CN=anna", "*"]
)
def test_what_is_no_distinguished_name_is_refused(written: str) -> None:
    with pytest.raises(InvalidError, match=r"not a distinguished name|at least 3"):
        DefinitionSet.build([Document("user", "anna", {"certificate": written})])


def test_who_is_blocked_may_nothing_whatever_their_roles() -> None:
    blocked = Document("user", "anna", {"roles": ["head"], "blocked": True})
    access = WantedAccess(DefinitionSet.build([*DOCUMENTS[:-3], blocked]))
    assert access.acls("anna") == frozenset()
    status = user_status(access, "anna", None, behind=False)
    assert (status.blocked, status.permissions, status.roles) == (True, (), ("head",))


HIRED = [
    Document(
        "activation-rule",
        "nurses",
        {"role": "nurse", "requires": [{"appointment": "hired(_)", "membership": True}]},
    ),
    Document("appointment", "g", {"credential": 'hired("x")', "holder": "user:guest"}),
]


def test_activated_roles_count_where_the_appointment_is_believed() -> None:
    believe: dict[bool, Trust] = {True: lambda _: True, False: lambda _: False}
    for trusted, trusts in believe.items():
        documents = [*DOCUMENTS, *HIRED]
        access = WantedAccess(DefinitionSet.build(documents, trusts=trusts))
        found = {it.name for it in access.acls("guest")}
        assert found == ({"patients-nurse", "ward-", "guest:"} if trusted else set())
        assert access.acls("anna") == WantedAccess(DefinitionSet.build(DOCUMENTS)).acls("anna")
        status = user_status(access, "guest", None, behind=False)
        assert (status.roles, status.all_roles) == ((), ("nurse",) if trusted else ())


def test_a_change_of_who_activates_roles_touches_all_users() -> None:
    before = {it.key: it for it in [*DOCUMENTS, HIRED[0]]}
    after = {it.key: it for it in [*DOCUMENTS, *HIRED]}
    access = WantedAccess(DefinitionSet.build(after.values()))
    assert access.touched(before, after) == {"anna", "robot", "guest"}
    assert access.touched(after, dict(after)) == set()
    plain = {it.key: it for it in DOCUMENTS}
    assert WantedAccess(DefinitionSet.build(plain.values())).touched(plain, dict(plain)) == set()


def test_topics_of_streams_and_views() -> None:
    definitions = DefinitionSet.build(DOCUMENTS)
    assert wanted_topics(definitions) == ["patients", "patients-nurse", "patients-open"]
    assert wanted_topics(definitions, ["other"]) == []


@pytest.mark.parametrize(
    ("written", "target"),
    [
        ("view:nurse", ("view", "nurse")),
        ("nurse", ("view", "nurse")),
        ("patients-nurse", ("view", "nurse")),
        ("patients", ("stream", "patients")),
        ("topic:other", ("topic", "other")),
        ("prefix:ward-", ("prefix", "ward-")),
    ],
)
def test_a_permission_is_written_shortly(
    access: WantedAccess, written: str, target: tuple[str, str]
) -> None:
    assert parse_permission(written, access).target == target


@pytest.mark.parametrize("written", ["", "patient", "topic:", "topic:a b", "role:x", "prefix:*"])
def test_what_is_no_permission_is_refused(access: WantedAccess, written: str) -> None:
    with pytest.raises(UsageError):
        parse_permission(written, access)


USERS = ("anna", "robot", "guest", "gone", "nobody")
TOPICS = ("patients", "patients-nurse", "patients-open", "ward-7", "ward", "other")


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("action", ["read", "write"])
def test_explanations_say_what_the_acls_come_to(*, trusted: bool, action: str) -> None:
    gone = Document("user", "gone", {"roles": ["head"], "blocked": True})
    documents = [*DOCUMENTS, *HIRED, gone]
    access = WantedAccess(DefinitionSet.build(documents, trusts=lambda _: trusted))
    for user in USERS:
        for topic in TOPICS:
            allowed = any(
                topic.startswith(it.name) if it.pattern == "prefixed" else topic == it.name
                for it in access.acls(user)
                if it.resource == "topic" and it.operation == action
            )
            explained = access.explain(user, topic, action, login="ready")
            assert explained.allowed == allowed, (user, topic)
            assert not access.explain(user, topic, action, login="none").allowed


def test_explanations_name_the_roles_that_would_allow_it(access: WantedAccess) -> None:
    denied = access.explain("guest", "ward-7", "read", login="ready")
    assert str(denied).splitlines() == [
        "denied by user guest: none of the user's roles may read ward-7",
        "  role nurse: read ward-…, and guest does not have it",
    ]
    allowed = access.explain("anna", "patients-open", "read", login="ready")
    assert str(allowed).splitlines() == [
        "allowed by role head: it may read patients-open",
        "  role head: may read patients-open",
        "  role nurse: says nothing of it",
    ]

"""Who may hand in and answer what, and what it becomes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.definitions import DefinitionSet, read_text
from penstock.errors import DeniedError, InvalidError, UsageError
from penstock.model.kinds import ControlSubscriber
from penstock.rights.broker import PrivacyBroker, Submission
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import read_last
from penstock.store.audit.signatures import Signer
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.requests import KeyReusedError, RequestBook
from penstock.store.rights.tables import ProgressStatus, RequestStatus, Sealer

SECRET = bytes(range(32))
TEXT = """
kind: purpose
name: marketing
---
kind: purpose
name: marketing/age
---
kind: group
name: fronts
members: [user:portal-1]
---
kind: control
name: ads
stateful: true
categories: [age, gender]
purposes: [marketing]
---
kind: control
name: forget
stateful: false
operation: delete
time_to_honor: 30d
---
kind: control-publisher
name: portal
subjects: [group:fronts]
controls: [ads]
---
kind: control-publisher
name: app
subjects: [user:app]
controls: [ads, forget]
---
kind: control-subscriber
name: crm
subjects: [user:crm]
control: ads
uri: https://crm.example/privacy
---
kind: control-subscriber
name: by-age
subjects: [user:segments]
control: ads
categories: [age]
uri: https://segments.example/
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[PrivacyBroker]:
    with Database.open(f"sqlite:///{tmp_path / 'store.db'}") as database:
        consent = ConsentBook(database, SubjectMarks(SECRET))
        book = RequestBook(database, consent, Sealer(SECRET))
        definitions = DefinitionSet.build(read_text(TEXT).documents)
        log = AuditLog(database, Signer.generate())
        yield PrivacyBroker(book, log, Pseudonyms(bytes(32)), definitions, 3)


def ask(broker: PrivacyBroker, user: str = "portal-1", **changed: Any) -> str:
    given: dict[str, Any] = {
        "publisher": "portal", "key": "k", "control": "ads", "action": "opt-out",
        "subject": "ann", "categories": (),
    }  # fmt: skip
    (made,) = broker.submit(user, [Submission(**(given | changed))])
    return made.id


def services(broker: PrivacyBroker, request: str) -> list[str]:
    shown = broker.book.show(request)
    assert shown is not None
    return [row.subscriber for row in shown[1]]


def test_services_are_told_by_control_and_category(broker: PrivacyBroker) -> None:
    assert services(broker, ask(broker)) == ["by-age", "crm"]
    assert services(broker, ask(broker, key="2", categories=("age",))) == ["by-age", "crm"]
    assert services(broker, ask(broker, key="3", categories=("gender",))) == ["crm"]


def test_what_nobody_would_honour_is_not_accepted(broker: PrivacyBroker) -> None:
    """Else a person would be told that all is deleted, and nothing was."""
    with pytest.raises(UsageError, match="nobody would honour 'delete' of 'forget'"):
        ask(broker, "app", publisher="app", control="forget", action="delete")
    assert broker.book.newest() == []


def test_a_completion_is_audited_once_however_often_it_is_said(broker: PrivacyBroker) -> None:
    made = ask(broker)
    for _ in range(3):
        broker.complete("crm", made, "crm")
    with broker.book._database.read() as connection:
        kinds = [it.entry.kind for it in read_last(connection, 10)]
    assert kinds[-2:] == ["rights.accepted", "rights.completed"]


def test_a_category_prohibits_the_purpose_below_that_is_named_so(broker: PrivacyBroker) -> None:
    ask(broker, categories=("age", "gender"))
    opted_out = broker.book._consent.opt_outs()
    assert opted_out.refusing(["marketing/age"])
    assert set(opted_out.by_purpose) == {"marketing/age"}


@pytest.mark.parametrize(
    ("user", "changed"),
    [
        ("stranger", {}),
        ("app", {}),
        ("crm", {}),
        ("portal-1", {"publisher": "app"}),
        ("portal-1", {"publisher": "nobody"}),
    ],
)
def test_nobody_hands_in_for_another_publisher(
    broker: PrivacyBroker, user: str, changed: dict[str, str]
) -> None:
    with pytest.raises(DeniedError, match="no such publisher"):
        ask(broker, user, **changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"control": "forget", "action": "delete"}, "offers no control 'forget'"),
        ({"action": "delete"}, "say opt-in or opt-out"),
        ({"categories": ("income",)}, "no category 'income'"),
        ({"key": "a b"}, "visible characters"),
        ({"key": ""}, "visible characters"),
        ({"subject": ""}, "whom it is about"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_fix(
    broker: PrivacyBroker, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        ask(broker, **changed)


def test_a_service_answers_its_own_requests_alone(broker: PrivacyBroker) -> None:
    made = ask(broker)
    with pytest.raises(DeniedError):
        broker.complete("segments", made, "crm")
    with pytest.raises(DeniedError):
        broker.acknowledge("crm", "0" * 32, "crm")
    assert broker.acknowledge("crm", made, "crm") is ProgressStatus.ACKNOWLEDGED
    assert broker.complete("crm", made, "crm") is ProgressStatus.COMPLETED
    assert broker.acknowledge("crm", made, "crm") is ProgressStatus.COMPLETED
    assert broker.complete("segments", made, "by-age") is ProgressStatus.COMPLETED
    shown = broker.book.show(made)
    assert shown is not None
    assert shown[0].status == RequestStatus.COMPLETED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("categories: [income]", "no category 'income'"),
        ("time_to_honor: 60d", "longer than the control allows"),
        ("uri: ftp://crm.example/", "is not an address"),
        ("uri: https://me:secret@crm.example/", "password must not stand"),
        ("uri: kafka:privacy.crm", "is not an address"),
        ("contact_email: 'a@b.example, c@d.example'", "not an e-mail address"),
        ("contact_mobile: '4711'", "not a telephone number"),
    ],
)
def test_a_subscriber_that_cannot_be_is_refused(change: str, words: str) -> None:
    key = change.partition(":")[0]
    lines = [
        it for it in TEXT.splitlines() if not it.startswith("uri: https://crm") or key != "uri"
    ]
    text = "\n".join(lines).replace("name: crm\n", f"name: crm\n{change}\n")
    with pytest.raises(InvalidError, match=words) as error:
        DefinitionSet.build(read_text(text).documents)
    assert "me:secret" not in str(error.value)


@pytest.mark.parametrize(
    ("delivery", "good", "bad"),
    [
        ("sqs", "arn:aws:sqs:eu-west-1:123456789012:q.fifo", "https://sqs.eu-west-1.amazonaws.com/"),
        ("sqs", "arn:aws:sqs:eu-west-1:123456789012:q", "arn:aws:sns:eu-west-1:123456789012:q"),
        ("sns", "arn:aws:sns:us-gov-west-1:123456789012:t", "arn:aws:sns:x.example:123456789012:t"),
        ("kafka", "kafka:privacy.crm", "kafka:__consumer_offsets"),
        ("kafka", "kafka:a", "kafka:evil.example:9092/a"),
        ("mqtt", "mqtt:privacy/crm", "mqtt:privacy/#"),
        ("mqtt", "mqtt:privacy/crm", "mqtt:$SYS/x"),
    ],
)  # fmt: skip
def test_a_place_has_the_form_of_its_delivery_and_names_no_host(
    delivery: str, good: str, bad: str
) -> None:
    def build(uri: str) -> DefinitionSet:
        text = TEXT.replace("uri: https://crm.example/privacy", f"uri: {uri}\ndelivery: {delivery}")
        return DefinitionSet.build(read_text(text).documents)

    assert build(good).get(ControlSubscriber, "crm") is not None
    with pytest.raises(InvalidError, match="is not a place for"):
        build(bad)


BUILT_IN = """
kind: control-subscriber
name: own
control: forget
delivery: built-in
uri: penstock:erasure
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        # A choice that toggles must not erase anybody.
        ("control: forget", "control: ads", "no delete of a person's data"),
        # Whoever acts for a service could say that it is done.
        ("name: own", "name: own\nsubjects: [user:eve]", "a built-in one has none"),
        ("delivery: built-in", "delivery: http", "has subjects"),
        ("penstock:erasure", "penstock:anything", "is not a place for built-in"),
    ],
)
def test_erasure_is_declared_for_deletions_and_nobody_acts_for_it(
    old: str, new: str, words: str
) -> None:
    with pytest.raises(InvalidError, match=words):
        DefinitionSet.build(read_text(f"{TEXT}---{BUILT_IN.replace(old, new)}").documents)


def test_nobody_can_say_for_penstock_that_an_erasure_is_done(broker: PrivacyBroker) -> None:
    broker.definitions = DefinitionSet.build(read_text(f"{TEXT}---{BUILT_IN}").documents)
    made = ask(broker, "app", publisher="app", control="forget", action="delete")
    assert services(broker, made) == ["own"]
    for user in ("app", "crm", "own", "penstock", ""):
        for said in (broker.complete, broker.acknowledge):
            with pytest.raises(DeniedError):
                said(user, made, "own")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("notify: [in-client]", "go together"),
        ("endpoint: https://portal.example/", "go together"),
        ("text: 'Dear {subject}'", "no placeholder"),
        ("text: 'Dear {subject.__class__}'", "brace"),
        ('title: "a\\nBcc: b@c.example"', "one line"),
        ('text: "a\\rb"', "control characters"),
    ],
)
def test_what_a_publisher_may_not_say(lines: str, words: str) -> None:
    text = TEXT.replace("name: portal\n", f"name: portal\n{lines}\n")
    with pytest.raises(InvalidError, match=words):
        DefinitionSet.build(read_text(text).documents)


def test_addresses_are_kept_by_publishers_alone_and_of_the_plain_form(
    broker: PrivacyBroker,
) -> None:
    broker.set_contact("portal-1", "portal", "ann", {"email": "ann@mail.example"})
    assert broker.book.profiles.contact("portal", "ann") == {"email": "ann@mail.example"}
    broker.set_contact("app", "app", "ann", {"email": "eve@mail.example"})
    # One front end neither replaces nor learns what another one has.
    assert broker.book.profiles.contact("portal", "ann") == {"email": "ann@mail.example"}
    with pytest.raises(DeniedError):
        broker.set_contact("crm", "portal", "ann", {})
    for contact in (
        {"email": "ann@x.example\nBcc: eve@x.example"}, {"email": "a b@x.example"},
        {"mobile": "call me"}, {"fax": "+4712345678"},
    ):  # fmt: skip
        with pytest.raises(UsageError, match="plain form") as error:
            broker.set_contact("portal-1", "portal", "ann", contact)
        assert "eve" not in str(error.value)
    broker.set_contact("portal-1", "portal", "ann", {})
    assert broker.book.profiles.contact("portal", "ann") == {}


def test_requests_at_the_same_time_share_commits_and_one_refused_fails_alone(
    broker: PrivacyBroker,
) -> None:
    ask(broker, key="taken", subject="bob")
    with ThreadPoolExecutor(16) as pool:
        keys = [f"k{number}" for number in range(40)] + ["taken"]
        futures = [pool.submit(ask, broker, key=key, subject=f"s-{key}") for key in keys]
        errors = [future.exception() for future in futures]
    assert [type(it) for it in errors if it is not None] == [KeyReusedError]
    assert len(broker.book.newest(limit=100)) == 41


def test_who_waits_while_another_commits_is_in_the_next_commit_and_an_interruption_ends_no_turn(
    broker: PrivacyBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, go = threading.Event(), threading.Event()
    sizes: list[int] = []
    submit_each = broker.book.submit_each

    def submit(wanted: Any, **more: Any) -> Any:
        sizes.append(len(wanted))
        if len(sizes) == 1:
            waiting.set()
            assert go.wait(60)
            raise KeyboardInterrupt
        return submit_each(wanted, **more)

    monkeypatch.setattr(broker.book, "submit_each", submit)
    with ThreadPoolExecutor(16) as pool:
        first = pool.submit(ask, broker, key="first", subject="first")
        assert waiting.wait(60)
        others = [pool.submit(ask, broker, key=f"k{it}", subject=f"s{it}") for it in range(15)]
        while len(broker._intake._queue) < 15:
            time.sleep(0.005)
        go.set()
        assert isinstance(first.exception(), KeyboardInterrupt)
        made = [it.result() for it in others]
    assert sizes == [1, 15]
    assert len(made) == len(broker.book.newest(limit=100)) == 15

import hmac
from base64 import b32encode
from pathlib import Path

import pytest

from penstock.config.secrets import SecretFile, SecretVariable
from penstock.errors import UnavailableError
from penstock.policy.access.plans import DEFAULT
from penstock.policy.parts import UNSTAMPED
from penstock.policy.purposes.explanations import DEFAULT_RULE
from penstock.policy.purposes.rights import UNDECLARED
from penstock.policy.purposes.rights import UNDECLARED as UNCLAIMED
from penstock.store.audit.entry import PSEUDONYM, Entry, Outcome
from penstock.store.audit.pseudonyms import Pseudonyms

KEY = b"k" * 32


def test_a_pseudonym_is_the_hmac_of_role_and_name() -> None:
    digest = hmac.digest(KEY, b"penstock pseudonym v1\0p\0alice", "sha256")[:16]
    expected = "p_" + b32encode(digest).decode().lower().rstrip("=")
    assert Pseudonyms(KEY).person("alice") == expected


def test_same_name_same_pseudonym_under_the_same_key_only() -> None:
    assert Pseudonyms(KEY).person("alice") == Pseudonyms(KEY).person("alice")
    assert Pseudonyms(KEY).person("alice") != Pseudonyms(b"x" * 32).person("alice")
    assert Pseudonyms(KEY).person("alice") != Pseudonyms(KEY).person("Alice")


def test_roles_are_apart_and_all_are_pseudonyms() -> None:
    people = Pseudonyms(KEY)
    found = people.all_of("älice\0\ud800")
    assert len({one[2:] for one in found}) == 3
    assert all(PSEUDONYM.fullmatch(one) for one in found)
    assert people.all_of("a") == (people.person("a"), people.client("a"), people.service("a"))


def test_a_short_key_is_refused() -> None:
    with pytest.raises(UnavailableError, match="31 bytes"):
        Pseudonyms(b"k" * 31)


def test_the_key_is_not_shown() -> None:
    assert "kkk" not in repr(Pseudonyms(KEY))
    assert "kkk" not in repr(vars(Pseudonyms)) + str(Pseudonyms(KEY))


def test_a_missing_key_file_is_created_for_its_owner_alone(tmp_path: Path) -> None:
    secret = SecretFile(tmp_path / "keys" / "pseudonym.key")
    first = Pseudonyms.open(secret).person("alice")
    assert secret.path.stat().st_mode & 0o777 == 0o600
    assert Pseudonyms.open(secret).person("alice") == first


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = SecretFile(tmp_path / "pseudonym.key")
    Pseudonyms.open(secret)
    secret.path.chmod(0o640)
    with pytest.raises(UnavailableError, match="others can read it"):
        Pseudonyms.open(secret)


def test_the_key_can_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PSEUDONYM_KEY", KEY.decode() + "\n")
    secret = SecretVariable("TEST_PSEUDONYM_KEY")
    assert Pseudonyms.open(secret).person("alice") == Pseudonyms(KEY).person("alice")
    monkeypatch.delenv("TEST_PSEUDONYM_KEY")
    with pytest.raises(UnavailableError, match="TEST_PSEUDONYM_KEY"):
        Pseudonyms.open(secret)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("reservation ward/alice/#{care}", "reservation"),
        ("shared subscription $share/g/alice", "shared subscription"),
        ("subscription alice with purpose x", "subscription"),
        ("preference alice", "preference"),
        ("emergency-policy alice", "emergency-policy"),
        ("right/alice", "right"),
        ("allow read group alice…", "allow read group"),
        ("deny describe_configs transactional_id alice", "deny describe_configs transactional_id"),
        ("alice", "rule"),
        ("policy\nalice", "rule"),
    ],
)
def test_a_rule_keeps_its_kind_and_loses_its_name(text: str, kind: str) -> None:
    people = Pseudonyms(b"k" * 32)
    named = people.rule(text)
    assert named is not None
    assert named.startswith(f"{kind} r_")
    assert "alice" not in named
    assert Entry.make("x", Outcome.DENIED, rule=named).rule == named
    assert named == people.rule(text) != Pseudonyms(b"l" * 32).rule(text)


def test_words_of_the_program_stay_as_they_are() -> None:
    people = Pseudonyms(b"k" * 32)
    words = [DEFAULT, UNDECLARED, UNSTAMPED, UNCLAIMED, DEFAULT_RULE, "error KeyError"]
    assert [people.rule(it) for it in words] == words
    assert people.rule("") is None

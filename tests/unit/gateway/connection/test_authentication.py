from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnavailableError
from penstock.gateway.connection.authentication import (
    Authenticator,
    PasswordFile,
    RefusedError,
    User,
    check_name,
    common_name,
    parse_users,
)
from penstock.mqtt import Connect, ReasonCode
from tests.support.gateway.passwords import write_passwords


def authenticator(path: Path | None = None, **options: Any) -> Authenticator:
    given: dict[str, Any] = {"relay": False, "anonymous": False, "checks": 1, **options}
    return Authenticator(passwords=PasswordFile(path) if path else None, **given)


def identify(
    who: Authenticator, connect: Connect, certificate: Any = None, address: str = "10.0.0.1"
) -> str:
    async def run() -> str:
        return (await who.identify(connect, certificate, address)).name

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["", "a:b", "anonymous", "line\nbreak", "x" * 257])
def test_names_that_nobody_can_have(name: str) -> None:
    with pytest.raises(RefusedError):
        check_name(name)


@pytest.mark.parametrize(
    "line", ["alice", "alice:plain", ":$argon2id$x", "a:$argon2$1\na:$argon2$2"]
)
def test_a_line_that_is_wrong_is_named_and_not_quoted(line: str) -> None:
    with pytest.raises(UnavailableError, match="line") as caught:
        parse_users(line.encode(), Path("passwords"))
    assert "plain" not in str(caught.value)


def test_comments_and_blank_lines_are_passed_over() -> None:
    users = parse_users(b"# users\n\nalice:$argon2id$h:a,b*\n", Path("p"))
    assert users["alice"].patterns == ("a", "b*")


def test_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    path = write_passwords(tmp_path / "p", {"alice": "old"})
    who = authenticator(path)
    assert identify(who, Connect("x", username="alice", password=b"old")) == "alice"
    path.unlink()
    write_passwords(path, {"alice": "new"})
    with pytest.raises(RefusedError):
        identify(who, Connect("x", username="alice", password=b"old"))
    assert identify(who, Connect("x", username="alice", password=b"new")) == "alice"


def test_a_missing_file_is_not_an_open_door(tmp_path: Path) -> None:
    who = authenticator(tmp_path / "missing")
    with pytest.raises(UnavailableError, match="create"):
        identify(who, Connect("x", username="alice", password=b"x"))


def test_too_many_waiting_logins_are_told_to_come_back(tmp_path: Path) -> None:
    path = write_passwords(tmp_path / "p", {"alice": "a"})
    who = authenticator(path, checks=3, waiting=3, waiting_per_address=2)

    async def trial() -> None:
        login = Connect("x", username="alice", password=b"a")
        turn = who.logins.turn
        async with turn("10.0.0.1", "bob"), turn("10.0.0.1", "eve", real=False):
            with pytest.raises(RefusedError) as caught:
                await who.identify(login, None, "10.0.0.1")
            assert caught.value.reason is ReasonCode.SERVER_BUSY

    asyncio.run(trial())


def test_a_password_that_was_taken_away_during_its_check_is_wrong(tmp_path: Path) -> None:
    path = write_passwords(tmp_path / "p", {"alice": "old"})
    file = PasswordFile(path)
    who = Authenticator(passwords=file, relay=False, anonymous=False, checks=1)
    verify = file.verify

    def verify_while_the_file_changes(user: User | None, password: bytes) -> bool:
        right = verify(user, password)
        path.unlink()
        write_passwords(path, {"alice": "new"})
        return right

    file.verify = verify_while_the_file_changes  # type: ignore[method-assign]
    login = Connect("x", username="alice", password=b"old")
    with pytest.raises(RefusedError):
        identify(who, login)
    file.verify = verify  # type: ignore[method-assign]
    with pytest.raises(RefusedError):
        identify(who, login)
    assert identify(who, Connect("x", username="alice", password=b"new")) == "alice"
    who.close()


def test_nobody_gets_in_without_a_name_unless_allowed() -> None:
    with pytest.raises(RefusedError):
        identify(authenticator(), Connect("x"))
    assert identify(authenticator(anonymous=True), Connect("x")) == "anonymous"
    with pytest.raises(RefusedError):
        identify(authenticator(anonymous=True), Connect("x", username="alice", password=b"?"))
    assert identify(authenticator(relay=True), Connect("x", username="alice")) == "alice"


def test_a_certificate_goes_before_a_password() -> None:
    certificate = {"subject": ((("countryName", "DE"),), (("commonName", "erin"),))}
    assert identify(authenticator(), Connect("x", username="alice"), certificate) == "erin"
    with pytest.raises(RefusedError):
        common_name({"subject": ()})


def test_client_identifiers(tmp_path: Path) -> None:
    path = write_passwords(tmp_path / "p", {"bob": "b"}, {"bob": "sensor-*,gauge"})
    file = PasswordFile(path)
    file.load()
    who = Authenticator(passwords=file, relay=False, anonymous=True, checks=1)
    owned = {"bob", "bob:1", "sensor-", "sensor-9", "gauge"}
    for client_id in owned | {"bobby", "sensor", "gauge1", "alice"}:
        assert who.owns("bob", client_id) == (client_id in owned), client_id
    assert who.owns("anonymous", "whatever")
    who.close()


def test_any_client_identifier_that_is_nobody_elses(tmp_path: Path) -> None:
    path = write_passwords(tmp_path / "p", {"bob": "b", "meters": "m"}, {"bob": "sensor-*"})
    file = PasswordFile(path)
    file.load()
    who = Authenticator(passwords=file, relay=False, anonymous=True, checks=1, any_client_id=True)
    for client_id in ("meters", "meters:1", "meter-17", "x", "bobby"):
        assert who.owns("meters", client_id), client_id
    for client_id in ("bob", "bob:1", "sensor-1"):
        assert not who.owns("meters", client_id), client_id
    assert not who.owns("meters", "pump-7", named=True)
    assert who.owns("meters", "meters:pump", named=True)
    assert who.owns("bob", "sensor-1", named=True)
    assert who.owns("anonymous", "x")
    who.close()


def test_nobody_may_use_what_belongs_to_a_user(tmp_path: Path) -> None:
    patterns = {"alice": "a-*,a-b*,aa*,x", "bob": "z*,b*,ab-c*"}
    path = write_passwords(tmp_path / "p", {"alice": "a", "bob": "b"}, patterns)
    file = PasswordFile(path)
    file.load()
    who = Authenticator(passwords=file, relay=False, anonymous=True, checks=1)
    users = ("alice", "bob")
    for client_id in map("".join, itertools.product("ab-xz", repeat=3)):
        taken = any(who.owns(user, client_id) for user in users)
        assert who.owns("anonymous", client_id) != taken, client_id
    for client_id in ("alice", "bob:1", "a-", "x", "z"):
        assert not who.owns("anonymous", client_id), client_id
    assert who.owns("anonymous", "alice2")
    assert who.owns("anonymous", "xy")
    who.close()


@pytest.mark.parametrize("elsewhere", ["relay", "certificates"])
def test_where_users_are_known_elsewhere_nobody_has_a_prefix(elsewhere: str) -> None:
    known: dict[str, Any] = {elsewhere: True}
    who = authenticator(anonymous=True, **known)
    assert who.owns("anonymous", "anonymous:1")
    assert not who.owns("anonymous", "dora")
    assert not who.owns("anonymous", "anonymously")

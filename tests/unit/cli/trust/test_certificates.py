"""`penstock cert`: two data folders that share nothing but files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import run_command
from tests.support.trust.commands import key_of, run

PUBLISH = "type: sighting*; action: subscribe | publish"


def test_the_key_is_made_once_and_is_nobody_elses_to_read(pito: Path) -> None:
    assert key_of(pito) == key_of(pito)
    file = pito / "penstock-data/keys/domain.key"
    assert file.stat().st_mode & 0o777 == 0o600
    shown = run_command(pito, "cert", "key").stdout
    assert "PRIVATE" not in shown


def test_a_capability_goes_from_owner_to_manager_to_user_and_ends_with_the_manager(
    pito: Path, met: Path, tmp_path: Path
) -> None:
    file = tmp_path / "met.yaml"
    to = f"key:{key_of(met)}"
    issued = run(pito, "cert", "issue", PUBLISH, "--to", to, "--name", "met", "-o", str(file))
    assert issued["links"][0]["grants"] == ["type: sighting*; action: publish | subscribe"]
    run(met, "apply", "-f", str(file))

    narrow = "type: sighting; action: subscribe; attributes: numberplate = 'AB12 CDE'"
    smith = met / "smith.yaml"
    run(met, "cert", "delegate", "met", narrow, "--to", "user:smith", "--name", "smith",
        "-o", str(smith))  # fmt: skip
    run(met, "apply", "-f", str(smith))
    found = run(met, "cert", "inspect", "smith")
    assert found["holds"] is True
    assert [it["holder"] for it in found["links"]] == [to, "user:smith"]
    assert found["owner"] == key_of(pito)
    drawn = run_command(met, "cert", "inspect", "smith").stdout
    assert "it holds now" in drawn
    assert drawn.index("owner key") < drawn.index("link 1") < drawn.index("user:smith")

    revoked = tmp_path / "revoked.yaml"
    run(pito, "cert", "revoke", str(file), "-o", str(revoked))
    run(met, "apply", "-f", str(revoked))
    found = run(met, "cert", "inspect", "smith", fails=1)
    assert found["holds"] is False
    assert "link 1 of 2 was revoked" in found["reason"]
    assert "it does not hold" in run_command(met, "cert", "inspect", "smith").stdout


def test_nobody_grants_more_than_they_hold_nor_revokes_what_others_signed(
    pito: Path, met: Path, tmp_path: Path
) -> None:
    file = tmp_path / "met.yaml"
    to = f"key:{key_of(met)}"
    run(pito, "cert", "issue", PUBLISH, "--to", to, "--name", "met", "-o", str(file))
    wide = ("cert", "delegate", str(file), "type: *; action: publish", "--to", "user:x")
    assert "more than" in run_command(met, *wide, "--name", "x").stderr
    own = ("cert", "delegate", str(file), PUBLISH, "--to", "user:x", "--name", "x")
    assert "is held by the key" in run_command(pito, *own).stderr
    assert "signed by others" in run_command(met, "cert", "revoke", str(file)).stderr


def test_a_list_without_more_links_refreshes_and_keeps_what_was_revoked(
    pito: Path, met: Path, tmp_path: Path
) -> None:
    file = tmp_path / "met.yaml"
    to = f"key:{key_of(met)}"
    words = ("cert", "issue", PUBLISH, "--to", to, "--name", "met", "--refresh", "1h")
    run(pito, *words, "-o", str(file))
    found = run(pito, "cert", "inspect", str(file), fails=1)
    assert "not refreshed" in found["reason"]
    run(pito, "cert", "revoke")
    assert run(pito, "cert", "inspect", str(file))["holds"] is True
    assert run(pito, "cert", "revoke", str(file))["total"] == 1
    assert run(pito, "cert", "revoke")["total"] == 1
    assert run(pito, "cert", "inspect", str(file), fails=1)["holds"] is False


def test_a_rollback_takes_no_revocation_back(pito: Path, met: Path, tmp_path: Path) -> None:
    file = tmp_path / "met.yaml"
    to = f"key:{key_of(met)}"
    run(pito, "cert", "issue", PUBLISH, "--to", to, "--name", "met", "-o", str(file))
    run(pito, "apply", "-f", str(file))
    run(pito, "cert", "revoke", "met")
    run(pito, "rollback", "1")
    assert run(pito, "cert", "inspect", "met", fails=1)["holds"] is False


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        (("issue", "type: a", "--to", "user:x", "--name", "x"), "type: a"),
        (("issue", PUBLISH, "--to", "group:x", "--name", "x"), "group:x"),
        (("issue", PUBLISH, "--to", "user:x", "--name", "x", "--until", "tomorrow"), "tomorrow"),
        (("issue", PUBLISH, "--to", "user:x", "--name", "x", "--refresh", "often"), "often"),
        (("inspect", "nowhere.yaml"), "nowhere.yaml"),
        (("revoke", "nowhere"), "nowhere"),
    ],
)
def test_mistakes_are_quoted(pito: Path, words: tuple[str, ...], quoted: str) -> None:
    done = run_command(pito, "cert", *words)
    assert done.returncode == 2
    assert quoted in done.stderr

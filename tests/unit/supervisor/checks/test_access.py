from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import load
from penstock.supervisor.checks import Verdict, access
from penstock.supervisor.parts import load_part


@pytest.mark.parametrize(
    ("authentication", "verdict", "detail"),
    [
        ("{}", Verdict.WARNING, "nobody can connect"),
        ("{passwords: keys/passwords}", Verdict.OK, "passwords in"),
        ("{relay: true}", Verdict.OK, "the broker checks"),
        ("{anonymous: true}", Verdict.WARNING, "anybody"),
    ],
)
def test_the_ways_in_are_named(
    tmp_path: Path, authentication: str, verdict: Verdict, detail: str
) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text(f"gateway: {{authentication: {authentication}}}\n")
    config = load(path, {})
    (finding,) = access.look(config, [load_part("gateway")])
    assert finding.verdict is verdict
    assert detail in finding.detail
    assert not list(access.look(config, [load_part("broker")]))


def test_open_mode_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text("gateway: {open_mode: true, authentication: {passwords: keys/p}}\n")
    found = list(access.look(load(path, {}), [load_part("gateway")]))
    assert [item.verdict for item in found] == [Verdict.OK, Verdict.WARNING]

"""The page about anonymizers of many records names each of them, and all their parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.definitions.view_checks import MEANINGS
from penstock.definitions.views import STATEFUL_ANONYMIZERS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "anonymizers.md"


def _section(name: str) -> str:
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    (found,) = [part for part in parts if name in part.partition("\n")[0].split(", ")]
    return found


@pytest.mark.parametrize("name", sorted(STATEFUL_ANONYMIZERS))
def test_each_parameter_is_explained(name: str) -> None:
    text = _section(name)
    if name in {"l_diversity", "t_closeness"}:
        text += _section("k_anonymization")
    fields = STATEFUL_ANONYMIZERS[name].model_fields.items()
    missing = [key for key in (it.alias or own for own, it in fields) if f"| `{key}` |" not in text]
    assert missing == []


@pytest.mark.parametrize("name", sorted(MEANINGS))
def test_each_risk_is_listed_under_its_name(name: str) -> None:
    lines = _section("k_anonymization").splitlines()
    names = [line.split("`")[1].partition(":")[0] for line in lines if line.startswith("| `")]
    assert name in names

"""The generated pages say what the models and commands say now; links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from penstock.config.gateway import FilteringSettings
from penstock.definitions.authorizer import configured_settings
from penstock.model import kinds
from penstock.policy.purposes.settings import SETTING_NAMES, PurposeSettings
from penstock.store.audit.writer import AuditWriter
from penstock.telemetry import counter, metrics, redaction

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
COUNTED = counter("penstock_test_reference", "Counted by a test.", way=("in", "out"))


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "setup" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["configuration.md", "definitions.md", "command-line.md"])
def test_generated_pages_are_fresh(page: str) -> None:
    generator = _generator()
    assert page in generator.PAGES
    held = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    assert held == generator.make_page(page), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_purpose_settings_have_the_defaults_and_the_words_of_the_page() -> None:
    page = (ROOT / "docs" / "reference" / "purpose-commands.md").read_text(encoding="utf-8")
    table = page.split("\n## Settings\n")[1].split("\n## ")[0]
    told = re.findall(r"^\| `(\w+)` \| (true|false) \| (.*) \|$", table, re.MULTILINE)
    fields = kinds.PurposeSettings.model_fields
    assert told == [
        (name, str(fields[name].default).lower(), fields[name].description)
        for name in SETTING_NAMES
    ]
    declared = {name: fields[name].default for name in SETTING_NAMES}
    assert PurposeSettings().as_dict() == declared
    assert configured_settings(FilteringSettings()).as_dict() == declared


def test_every_metric_of_an_imported_part_is_described() -> None:
    text = _generator().write_metrics()
    audit = [one for one in metrics.catalogue() if one.module == AuditWriter.__module__]
    assert len(audit) == 5
    for one in audit:
        assert f"| `{one.name}` | {one.type} |  | {one.help} |" in text
    assert "| `penstock_log_withheld_total` | counter | `what`: field, value, message |" in text, (
        "labels are listed with their values"
    )


def test_metrics_that_tests_declare_are_left_out() -> None:
    assert "penstock_test_reference_total" in [one.name for one in metrics.catalogue()]
    assert "penstock_test" not in _generator().write_metrics()


def test_every_log_field_is_listed() -> None:
    text = _generator().write_metrics()
    for name, shape in redaction.allowed().items():
        assert f"| `{name}` | {shape} |" in text

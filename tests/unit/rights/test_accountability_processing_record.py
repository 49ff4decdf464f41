"""The record of processing says what is declared, and what is not."""

from __future__ import annotations

import csv
import io

from penstock.definitions import DefinitionSet, read_text
from penstock.rights.accountability import (
    UNKNOWN,
    as_csv,
    as_data,
    as_markdown,
    list_activities,
)

TEXT = """
{kind: purpose, name: marketing, dpv: "dpv:Marketing", description: "=Ads | and more"}
---
{kind: purpose, name: marketing/age}
---
{kind: purpose, name: care}
---
kind: stream
name: visits
subject: pid
fields:
  - {name: pid, type: string, category: identifier}
  - {name: page, type: string}
---
{kind: view, name: campaign, stream: visits, purposes: [marketing], roles: [analyst]}
---
{kind: reservation, name: shop/#, allow: [marketing]}
---
{kind: control, name: ads, stateful: true, purposes: [marketing], time_to_honor: 10d}
---
{kind: control-subscriber, name: crm, subjects: ["user:c"], control: ads, uri: "https://c.example/"}
"""


def test_it_follows_from_the_definitions() -> None:
    found = list_activities(DefinitionSet.build(read_text(TEXT).documents))
    care, marketing, age = as_data(found)
    assert (care["views"], care["controls"], care["honoured_within"]) == ((), (), UNKNOWN)
    assert marketing["streams"] == ("visits",)
    assert marketing["data"] == ("visits.pid (identifier)",)
    assert marketing["views"] == ("campaign",)
    assert marketing["recipients"] == ("analyst",)
    assert marketing["topics"] == ("shop/#",)
    assert marketing["controls"] == ("ads",)
    assert marketing["services"] == ("crm (ads)",)
    assert marketing["honoured_within"] == "10 days"
    assert marketing["retention"] == UNKNOWN
    assert age["views"] == ("campaign",)  # what may be used for the whole may be for the part


def test_as_a_page_and_as_a_table() -> None:
    found = list_activities(DefinitionSet.build(read_text(TEXT).documents))
    page = as_markdown(found, 3)
    assert "## marketing\n" in page
    assert "| Description | =Ads \\| and more |" in page
    assert f"| Retention | {UNKNOWN} |" in page
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert rows[1]["description"] == "'=Ads | and more"
    assert rows[1]["services"] == "crm (ads)"

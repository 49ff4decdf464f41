"""Lineage at the console: what it draws is what definitions let flow, and names are text."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.support.console.installation import ConsoleInstallation
from tests.support.console.ward import WARD
from tests.support.store.installation import until


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInstallation]:
    folder = tmp_path_factory.mktemp("lineage")
    installation = ConsoleInstallation(folder, definitions=WARD)
    installation.start()
    yield installation
    installation.stop()


def edges(ward: ConsoleInstallation, session: str, q: str = "") -> set[tuple[str, str]]:
    found = ward.data(f"/lineage.json?q={quote(q)}", session)["edges"]
    return {(it["source"], it["target"]) for it in found}


def test_streams_lead_to_views_and_to_those_who_may_read(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("officer")
    assert edges(ward, session) == {
        ("stream:vitals", "view:study"),
        ("view:study", "role:nurse"),
        ("stream:vitals", "role:nurse"),
        ("stream:vitals", "user:frey"),
        ("role:nurse", "user:omar"),
    }
    found = ward.data("/lineage.json", session)["edges"]
    by = {(it["source"], it["target"]): it["by"] for it in found}
    assert by["stream:vitals", "user:frey"] == "emergency-policy doctor-on-call"
    assert by["stream:vitals", "role:nurse"] == "role nurse, policy nurses-read"


def test_a_search_keeps_what_leads_there_and_onwards(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("officer")
    assert edges(ward, session, "STUDY") == {
        ("stream:vitals", "view:study"),
        ("view:study", "role:nurse"),
        ("stream:vitals", "role:nurse"),
        ("role:nurse", "user:omar"),
    }
    assert edges(ward, session, "frey") == {("stream:vitals", "user:frey")}
    assert ward.data("/lineage.json?q=nothing", session)["nodes"] == []
    assert ward.ask("/lineage.json", session=ward.sign_in("auditor")).status == 403


def test_names_in_the_graph_are_text(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("officer")
    ward.apply("kind: policy\nname: x\nsubject: 'user:<b>x'\nallow: read\nfilter: 'ward/#'\n")
    until(lambda: "user:<b>x" in str(edges(ward, session)), "the policy")
    page = ward.page("/lineage?q=" + quote('"><script>alert(1)</script>'), session)
    page += ward.page("/lineage", session)
    assert "<b>x" not in page
    assert "<script>alert" not in page

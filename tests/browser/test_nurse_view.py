"""A data officer makes the nurses' view by the form, starts it, and masked records arrive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from penstock.components import processes
from penstock.pipeline.control import Control
from penstock.pipeline.sinks.published import read_published
from tests.support.console.browsing import Person
from tests.support.console.installation import ConsoleInstallation
from tests.support.console.ward import USERS, WARD, publish
from tests.support.store.installation import until

# Spark takes long to start where the machine has other things to do.
pytestmark = [
    pytest.mark.needs("chromium"),
    pytest.mark.needs("java"),
    pytest.mark.needs("mosquitto"),
    pytest.mark.needs("mosquitto-clients"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[ConsoleInstallation]:
    installation = ConsoleInstallation(
        tmp_path,
        parts=("broker", "gateway", "pipeline", "console"),
        definitions=WARD,
        users=USERS,
        pipeline={"interval": "200ms", "monitor_port": processes.free_port()},
        supervisor={"ready_timeout": "120s"},
    )
    installation.start()
    yield installation
    installation.stop()


def test_the_nurses_view_is_made_by_the_form_and_masked_records_arrive(
    browser: Browser, ward: ConsoleInstallation, shots: Path
) -> None:
    with Person(browser, ward, "officer") as officer:
        page = officer.page
        page.goto("/views/stream?name=vitals")
        page.get_by_role("link", name="New view").click()
        page.get_by_label("Name").fill("nurses")
        page.get_by_label("Roles that read it").fill("nurse")
        for number, (anonymizer, key) in enumerate(
            (("tokenization", "patient"), ("bucketizing", "pulse"))
        ):
            page.get_by_role("combobox", name="Anonymizer").select_option(anonymizer)
            page.get_by_role("button", name="Add").click()
            page.locator(f"input[name='step.{number}.keys'][value={key}]").check()
        page.get_by_label("bucket_size").fill("10")
        page.get_by_role("button", name="Review…").click()
        expect(page.get_by_role("heading", name="Effect on access")).to_be_visible()
        page.get_by_role("button", name="Apply").click()
        page.goto("/views/one?name=nurses")
        page.get_by_role("button", name="Start").click()
        folder = Control(ward.config.pipeline.folder).view("nurses")

        def arrived() -> list[dict[str, Any]]:
            publish(ward, "ward/p-17/vitals", patient="p-17", pulse=83, oxygen=96)
            return list(read_published(folder))

        records = until(arrived, "records of the view")
        assert {(it["pulse"], it["oxygen"]) for it in records} == {("[80 - 90]", 96)}
        assert all(it["patient"] != "p-17" for it in records)
        session = ward.sign_in("officer")

        def recorded() -> list[float]:
            publish(ward, "ward/p-18/vitals", patient="p-18", pulse=64, oxygen=97)
            losses: list[float] = ward.data("/views/one.json?name=nurses", session)["losses"]
            return losses

        until(recorded, "a batch after the first")
        page.reload()
        expect(page.get_by_role("region", name="Loss and rejected records")).to_be_visible()
        expect(page.get_by_text("running").first).to_be_visible()
        officer.look("/views/one?name=nurses", shots, "nurses")

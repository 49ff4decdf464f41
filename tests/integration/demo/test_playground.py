"""The running system of `penstock demo live`: live data in its rooms, and an end by Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from tests.support.store.installation import PENSTOCK, until

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.needs("java")]


def test_it_has_something_in_each_room_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    told = tmp_path / "told"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with told.open("wb") as out:
        process = subprocess.Popen(
            [*PENSTOCK, "demo", "live"],
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,
        )
    try:
        link = until(lambda: re.search(r"http://\S+/first\?link=\S+", told.read_text()), "the link")
        origin, _, word = link[0].partition("/first?link=")
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        words = {"password": "a long enough one", "again": "a long enough one"}
        form = urllib.parse.urlencode({"link": word, "user": "ada", **words}).encode()
        made = urllib.request.Request(f"{origin}/first", form, {"Origin": origin})  # noqa: S310
        opener.open(made)

        def ask(path: str) -> Any:
            return json.loads(opener.open(f"{origin}{path}").read())

        def rate() -> bool:
            gateway = ask("/overview.json")["stages"][0]
            return bool(gateway["figures"][0]["value"])

        until(rate, "messages pass")
        until(lambda: ask("/overview.json")["denied"], "something is denied")
        requests = ask("/requests.json")
        assert requests["rows"]
        assert sum(it["share"] is not None for it in requests["weeks"]) > 2
        held = {it["purpose"] for it in ask("/purposes/subscriptions.json")["rows"]}
        assert {"care", "research"} <= held
        until(
            lambda: {it["state"] for it in ask("/views.json")["views"]} == {"running"}, "the views"
        )
    finally:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        code = process.wait(120)
    assert code == 0, told.read_text()
    assert not list(tmp_path.glob("penstock-demo-*"))

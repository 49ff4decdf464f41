"""What templates use: times, figures, the documentation; and that all pages have theirs."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files

import pytest

from penstock.console.figures import Series, line_chart, sparkline
from penstock.console.pages import ROOMS
from penstock.console.rendering import (
    asset_path,
    list_docs,
    load_assets,
    render_doc,
    show_number,
    show_seconds,
    show_time,
)


def test_times_are_told_in_utc_for_the_browser_to_move() -> None:
    shown = show_time(datetime(2026, 3, 1, 12, 0, tzinfo=UTC), "short")
    assert 'datetime="2026-03-01T12:00:00Z"' in shown
    assert 'data-shape="short"' in shown
    assert show_time("2026-03-01T13:00:00+01:00").startswith(
        '<time datetime="2026-03-01T12:00:00Z"'
    )
    assert show_time(None) == show_time("") == "\N{EN DASH}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "\N{EN DASH}"), (0, "0"), (0.25, "0.2"), (1234567, "1\u202f234\u202f567"), (3.0, "3")],
)
def test_figures(value: float | None, shown: str) -> None:
    assert show_number(value) == shown


def test_lengths_of_time() -> None:
    assert [show_seconds(it) for it in (0.002, 5, 90, 7200, 86_400 * 3)] == [
        "2\u202fms", "5\u202fs", "1.5\u202fmin", "2\u202fh", "3\u202fd",
    ]  # fmt: skip


def test_charts_escape_what_they_name() -> None:
    evil = "<script>x</script>"
    assert "<script>" not in sparkline([1, 2, 3], evil)
    assert "<script>" not in line_chart([Series(evil, [0.0, 1.0])], evil)


def test_static_files_have_their_hash_in_the_address() -> None:
    assert {"console.css", "console.js", "mark.svg"} <= load_assets().keys()
    assert asset_path("console.css").startswith("/static/")
    assert sum(len(it.content) for it in load_assets().values()) < 150 * 1024


def test_every_page_of_a_room_has_a_template_and_its_help() -> None:
    templates = files("penstock.console").joinpath("templates")
    names = [it.name for it in ROOMS]
    paths: list[tuple[str, str]] = []
    for room in ROOMS:
        assert room.help in list_docs(), room.name
        for page in room.pages:
            paths.append(("GET", page.path))
            assert templates.joinpath(page.template).is_file(), page.template
            assert page.help in list_docs(), page.path
            if page.live:
                assert templates.joinpath(page.live).is_file(), page.live
        paths += [("POST", action.path) for action in room.actions]
    assert len(set(names)) == len(names)
    assert len(set(paths)) == len(paths)


def test_further_modules_add_their_pages_behind_those_of_the_room() -> None:
    paths = {room.name: [it.path for it in room.pages] for room in ROOMS}
    shown = ["", "/user", "/role", "/matrix", "/decisions", "/why"]
    assert paths["access"] == [f"/access{it}" for it in shown]
    assert paths["views"] == ["/views", "/views/stream", "/views/one", "/views/form"]


def test_links_of_the_documentation_stay_in_the_console() -> None:
    shown = render_doc("how-to/run-the-privacy-server")
    assert shown is not None
    assert 'href="/help?page=how-to/honour-privacy-requests"' in shown
    assert "<h1" not in shown
    assert render_doc("../../etc/passwd") is None


def test_every_page_of_the_documentation_renders() -> None:
    for name in list_docs():
        assert render_doc(name)

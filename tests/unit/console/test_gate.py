"""Where one goes on after signing in."""

from __future__ import annotations

import pytest

from penstock.console.gate import is_public, local_path, sign_in_path


@pytest.mark.parametrize("given", ["/", "/audit?kind=a%20b", "/help?page=a/b#c"])
def test_a_path_of_the_console_is_kept(given: str) -> None:
    assert local_path(given) == given


@pytest.mark.parametrize(
    "given",
    [
        "",
        "x",
        "//a",
        "/\\a",
        "\\/a",
        "https://a",
        "javascript:1",
        "/a\n",
        "/\x00",
        "/ä",
        "/sign-in",
    ],
)
def test_anything_else_leads_home(given: str) -> None:
    assert local_path(given) == "/"


def test_where_one_wanted_to_be_is_kept_for_later() -> None:
    scope = {"path": "/audit", "query_string": b"kind=a&b=//c", "method": "GET"}
    assert sign_in_path(scope) == "/sign-in?next=%2Faudit%3Fkind%3Da%26b%3D%2F%2Fc"
    assert sign_in_path({**scope, "method": "POST"}) == "/sign-in"


def test_only_what_is_needed_before_one_is_signed_in_is_public() -> None:
    assert [it for it in ("/sign-in", "/first", "/static/x", "/openapi.json") if is_public(it)]
    assert not [it for it in ("/", "/overview", "/sign-out", "/sign-in.json", "/statics") if
                is_public(it)]  # fmt: skip

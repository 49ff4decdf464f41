"""Forms and the signatures of pages."""

from __future__ import annotations

from typing import Annotated, get_origin

import pytest
from fastapi import Query

from penstock.console.desk import Visitor
from penstock.console.rooms import MOST_FIELDS, FormData, PageData, Room, signature_of
from penstock.errors import UsageError


class Shown(PageData):
    text: str


def show(visit: Visitor, q: Annotated[str, Query(max_length=3)] = "") -> Shown:
    del visit
    return Shown(text=q)


def test_a_form_has_the_last_and_all_values() -> None:
    form = FormData.parse(b"a=1&b=%F0%9F%90%9D&a=2&c=+x%0D%0Ay+")
    assert (form["a"], form.all("a"), form["b"]) == ("2", ["1", "2"], "\N{HONEYBEE}")
    assert form.text("c") == "x\ny"
    assert form.text("none") == ""
    assert len(form) == 3


@pytest.mark.parametrize("body", [b"a=%ff", b"\xff=1", b"&".join([b"a=1"] * (MOST_FIELDS + 1))])
def test_a_form_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(UsageError, match="the form cannot be read"):
        FormData.parse(body)


def test_a_field_that_is_too_long() -> None:
    with pytest.raises(UsageError, match="name is longer than 3 characters"):
        FormData.parse(b"name=abcd").text("name", 3)


def test_a_signature_has_types_instead_of_their_names() -> None:
    found = signature_of(show)
    assert found.return_annotation is Shown
    assert found.parameters["q"].annotation is not str
    assert get_origin(found.parameters["q"].annotation) is Annotated


def test_a_room_has_its_first_page_as_home() -> None:
    room = Room("things", "Things", order=1, help="tutorial/first-hour")
    room.page("/things", "Things", "things/list.html")(show)
    room.page("/things/one", "Thing", "things/one.html", hidden=True)(show)
    assert room.home == "/things"
    assert room.sees == "things"
    assert Room("open", "Open", order=2, help="x", needs=False).sees is None

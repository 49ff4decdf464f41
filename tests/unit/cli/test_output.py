from __future__ import annotations

import pytest
from rich.text import Text

from penstock.cli.output import console, print_error, table
from penstock.errors import InvalidError, Problem

HOSTILE = (
    "ann:[/x]",
    "[conceal]ann[/conceal]",
    "[link=https://elsewhere.example]ann[/link]",
    "ann:warning:",
)
COMMANDING = ("\x1b[2J", "\x1b]0;title\x07", "\x9b2J", "a\rb", "a\x08b", "\u202ennA", "\x00")


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_others_are_shown_as_they_are(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = table(text, title=text)
    shown.add_row(text)
    console().print(shown)
    console().print(f"removed {text}")
    console().print(Text.assemble(("client: ", "bold"), text))
    problems = [Problem(text, f"there is no {text}", f"define {text}")]
    print_error(text, text, as_json=False, error=InvalidError(text, problems))
    found = capsys.readouterr()
    assert found.out.count(text) == 5
    assert found.err.count(text) == 5


@pytest.mark.parametrize("text", COMMANDING)
def test_nothing_that_is_shown_commands_the_terminal(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = table("name", title=text)
    shown.add_row(text)
    shown.add_row(Text(text))
    console().print(shown)
    console(errors=True).print(text, style="bold")
    found = capsys.readouterr()
    for written in (found.out, found.err):
        assert all(it.isprintable() or it == "\n" for it in written)


def test_styles_and_controls_of_our_own_stay(capsys: pytest.CaptureFixture[str]) -> None:
    target = console()
    target._force_terminal = True
    target._color_system = None
    with target.capture() as kept:
        target.print("bold", style="bold")
        target.bell()
    assert "\x07" in kept.get()

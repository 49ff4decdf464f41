"""The texts of operators: state is saved under them."""

from __future__ import annotations

from penstock.cep.program import WindowSpec


def test_a_window_keeps_the_text_that_state_was_saved_under() -> None:
    assert str(WindowSpec("last", 5000)) == "Window(kind='last', size=5000)"

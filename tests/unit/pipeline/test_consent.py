"""Who refuses a view, against the rule written out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.consent import OptOuts

PURPOSES = st.sampled_from(["a", "a/b", "a/b/c", "a/bc", "b", "b/a", "ab"])


@given(
    pairs=st.lists(st.tuples(st.sampled_from(["p", "q", "r"]), PURPOSES), max_size=6),
    served=st.lists(PURPOSES, max_size=3),
)
def test_an_opt_out_covers_what_is_below_and_what_is_above(
    pairs: list[tuple[str, str]], served: list[str]
) -> None:
    def related(one: str, other: str) -> bool:
        return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")

    wanted = {who for who, refused in pairs if any(related(refused, it) for it in served)}
    assert OptOuts.of(1, pairs).refusing(served) == wanted

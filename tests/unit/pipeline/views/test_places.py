from __future__ import annotations

from penstock.pipeline.views.checkpoints import Owner
from penstock.pipeline.views.places import is_replaced


def test_a_topic_that_was_made_again_is_known() -> None:
    before = Owner("ward", "kafka:ward:1")
    assert is_replaced(before, Owner("ward", "kafka:ward:2"))
    assert not is_replaced(before, before)
    assert not is_replaced(before, Owner("ward", "kafka:other:2"))
    assert not is_replaced(Owner("ward", "files:csv:/a"), Owner("ward", "files:csv:/b"))

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.model.kinds import Control


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"stateful": True, "operation": "delete"}, "operation is for single requests"),
        ({"stateful": False, "purposes": ["ads"]}, "purposes and default are for choices"),
        ({"stateful": False, "default": "opt-out"}, "purposes and default are for choices"),
        ({"stateful": False, "global_privacy_control": True}, "is for choices"),
        (
            {"stateful": True, "default": "opt-out", "purposes": ["ads"]},
            "nobody can be kept out who has not chosen",
        ),
    ],
)
def test_controls_that_would_not_hold_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Control.model_validate({"name": "ads", **fields})


def test_a_default_of_opt_out_without_purposes_is_for_the_services_to_honour() -> None:
    assert Control(name="mail", stateful=True, default="opt-out").purposes == ()

from __future__ import annotations

import pytest
from pydantic import ValidationError

from penstock.config.sections.recording import RecordingSettings


def test_what_is_promised_is_not_shed() -> None:
    with pytest.raises(ValidationError) as caught:
        RecordingSettings(acknowledge="recorded", overflow="shed-all")
    (conflict,) = caught.value.errors()[0]["ctx"]["conflicts"]
    assert conflict.setting == "overflow"


@pytest.mark.parametrize("overflow", ["wait", "shed"])
def test_what_is_promised_may_wait(overflow: str) -> None:
    made = RecordingSettings.model_validate({"acknowledge": "recorded", "overflow": overflow})
    assert made.overflow == overflow

"""Settings and the mode in force."""

from __future__ import annotations

from itertools import product

import pytest

from penstock.errors import UsageError
from penstock.policy.purposes.settings import SETTING_NAMES, Mode, PurposeSettings


def test_the_settings_of_the_requirements_are_all_there() -> None:
    assert set(SETTING_NAMES) == {
        "allow_without_reservation",
        "claims_need_right",
        "filter_on_subscribe",
        "filter_on_publish",
        "filter_hybrid",
        "hybrid_partial",
        "hybrid_tag",
        "use_tree_store",
        "cache_reservations",
        "cache_subscriptions",
        "auto_persist",
    }


@pytest.mark.parametrize(("subscribe", "publish", "hybrid"), list(product([False, True], repeat=3)))
def test_every_combination_filters(subscribe: bool, publish: bool, hybrid: bool) -> None:  # noqa: FBT001
    settings = PurposeSettings(
        filter_on_subscribe=subscribe, filter_on_publish=publish, filter_hybrid=hybrid
    )
    if subscribe:
        assert settings.mode is Mode.ON_SUBSCRIBE
        assert settings.checks_deliveries is publish
    else:
        assert settings.mode is (Mode.HYBRID if hybrid else Mode.ON_PUBLISH)
        assert settings.checks_deliveries


def test_changing_one() -> None:
    settings = PurposeSettings().change("filter_hybrid", value=True)
    assert settings.as_dict() == {**PurposeSettings().as_dict(), "filter_hybrid": True}
    with pytest.raises(UsageError, match="no setting 'mode'"):
        settings.change("mode", value=True)

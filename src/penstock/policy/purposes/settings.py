"""PurposeSettings of purpose limitation, and the filtering mode that follows from them.

Rules that hold here:
- Every combination means something, so that settings can be changed one by one:
  `filter_on_subscribe` goes before `filter_hybrid`; with neither, deliveries are filtered,
  whatever `filter_on_publish` says. There is no way to switch filtering off.
- `filter_on_publish` beside `filter_on_subscribe` checks each delivery once more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from enum import Enum

from penstock.errors import UsageError, quote


class Mode(Enum):
    """When compatibility is decided."""

    ON_SUBSCRIBE = "on subscribe"
    ON_PUBLISH = "on publish"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class PurposeSettings:
    """What can be switched while messages flow."""

    allow_without_reservation: bool = True
    claims_need_right: bool = False
    filter_on_subscribe: bool = False
    filter_on_publish: bool = True
    filter_hybrid: bool = False
    hybrid_partial: bool = False
    hybrid_tag: bool = False
    use_tree_store: bool = True
    cache_reservations: bool = True
    cache_subscriptions: bool = True
    auto_persist: bool = True

    @property
    def mode(self) -> Mode:
        """Return the mode that these settings put in force."""
        if self.filter_on_subscribe:
            return Mode.ON_SUBSCRIBE
        return Mode.HYBRID if self.filter_hybrid else Mode.ON_PUBLISH

    @property
    def checks_deliveries(self) -> bool:
        """Tell whether the topic of each delivery is checked against its subscription."""
        return self.mode is not Mode.ON_SUBSCRIBE or self.filter_on_publish

    def change(self, name: str, *, value: bool) -> PurposeSettings:
        """Return the settings with one of them changed."""
        check_setting(name)
        return replace(self, **{name: value})

    def as_dict(self) -> dict[str, bool]:
        """Return all settings by name."""
        return asdict(self)


SETTING_NAMES = tuple(field.name for field in fields(PurposeSettings))


def check_setting(name: str) -> str:
    """Return the name if there is such a setting."""
    if name not in SETTING_NAMES:
        raise UsageError(
            f"there is no setting {quote(name)}", fix=f"choose one of {', '.join(SETTING_NAMES)}"
        )
    return name

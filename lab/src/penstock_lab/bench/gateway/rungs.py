"""The rungs of the ladder: from the bare broker to the dearest way of filtering.

Rules that hold here:
- With rules, every message is allowed: the work of the decision is measured, and all rungs
  deliver the same messages.
- The reservations cover every topic of the load twice (one of the vehicle, one of the
  whole country) and other vehicles besides, so that there is something to search.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.document import Document
from penstock_lab.bench.load.plan import vehicle

PURPOSE = "operational/billing"
RESERVATIONS = 1_000


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder."""

    name: str
    about: str
    gateway: bool = True
    rules: bool = True
    settings: dict[str, bool] = field(default_factory=dict)
    qos: int = 0
    lanes: int | None = None
    """How many publish lanes there are; None: as many as usual."""

    @property
    def purpose(self) -> str | None:
        """What subscriptions are for."""
        return PURPOSE if self.rules and self.gateway else None

    def documents(self, reservations: int = RESERVATIONS) -> list[Document]:
        """Return the definitions that the gateway of this rung works with."""
        found = [Document("purpose-settings", "default", self.settings)] if self.settings else []
        return found + (reserve(reservations) if self.rules else [])


def reserve(count: int) -> list[Document]:
    """Return reservations: of the country, and of `count` - 1 vehicles."""
    country = {"allow": ["operational"], "prohibit": ["operational/surveillance"]}
    single = {
        "allow": ["operational/billing", "marketing"],
        "prohibit": ["marketing/individualized"],
    }
    vehicles = [Document("reservation", f"{vehicle(n)}/#", single) for n in range(count - 1)]
    return [Document("reservation", "country1/#", country), *vehicles]


_UNCACHED = {"cache_reservations": False, "cache_subscriptions": False}

DIRECT = Rung("direct", "the broker without a gateway", gateway=False, rules=False)
NO_RULES = Rung("no_rules", "the gateway without any reservation", rules=False)
FOS = Rung(
    "fos",
    "filtering on subscribe",
    settings={"filter_on_subscribe": True, "filter_on_publish": False},
)
FOP_CACHED = Rung(
    "fop_cached", "filtering on publish, cached tree store", settings={"filter_on_publish": True}
)
FOP_OWN = Rung(
    "fop_cached_own",
    "the same, each client on its own connection to the broker",
    settings=FOP_CACHED.settings,
    lanes=0,
)
HYBRID = Rung("hybrid", "hybrid, cached tree store", settings={"filter_hybrid": True})
FOP_TREE = Rung("fop_tree", "filtering on publish, tree store", settings=_UNCACHED)
FOP_FLAT = Rung(
    "fop_flat",
    "filtering on publish, flat store",
    settings={**_UNCACHED, "use_tree_store": False},
)
_FLAT = {**_UNCACHED, "use_tree_store": False}
_ON_SUBSCRIBE = FOS.settings
_HYBRID = HYBRID.settings
ALL_RUNGS = (
    DIRECT,
    NO_RULES,
    FOS,
    Rung("fos_tree", "filtering on subscribe, tree store", settings=_ON_SUBSCRIBE | _UNCACHED),
    Rung("fos_flat", "filtering on subscribe, flat store", settings=_ON_SUBSCRIBE | _FLAT),
    FOP_CACHED,
    FOP_TREE,
    FOP_FLAT,
    HYBRID,
    Rung("hybrid_tree", "hybrid, tree store", settings=_HYBRID | _UNCACHED),
    Rung("hybrid_flat", "hybrid, flat store", settings=_HYBRID | _FLAT),
)
"""Each mode with a cached tree, a tree and a flat store; no mode filters with a cached flat one."""
LADDER = (DIRECT, NO_RULES, FOS, FOP_CACHED, FOP_OWN, HYBRID, FOP_TREE, FOP_FLAT)
LADDER_QOS_1 = (
    Rung("direct", DIRECT.about, gateway=False, rules=False, qos=1),
    Rung("no_rules", NO_RULES.about, rules=False, qos=1),
    Rung("fop_cached", FOP_CACHED.about, settings=FOP_CACHED.settings, qos=1),
)

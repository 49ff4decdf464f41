"""What a view is made of: its definitions, resolved, under a name that changes with them.

What a stateful step holds back belongs to the definitions it was taken in under. They are
kept beside the view, so that after a change everything held is let go as it was promised.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from penstock.definitions import DefinitionSet
from penstock.definitions.anonymizers import Aggregation
from penstock.definitions.differential_privacy import DifferentialPrivacy
from penstock.definitions.k_anonymity import KAnonymization, TCloseness
from penstock.definitions.views import ViewPlan, hierarchies_of, plan_view
from penstock.errors import UsageError, quote
from penstock.masks import Chain, Hierarchy, Keys, Vault
from penstock.model.document import Document
from penstock.model.kinds import KINDS, Stream, View
from penstock.model.kinds import Hierarchy as HierarchyKind
from penstock.pipeline.anonymizers.differential_privacy import DifferentialPrivacyStep
from penstock.pipeline.anonymizers.k_anonymity import KAnonymityStep
from penstock.pipeline.anonymizers.noisy_figures import NoisyFigures
from penstock.pipeline.anonymizers.stateful import StatefulStep
from penstock.pipeline.anonymizers.window_anonymizers import can_combine
from penstock.pipeline.anonymizers.windows import WindowStep


@dataclass(frozen=True)
class Blueprint:
    """A view, its stream and the hierarchies it names."""

    view: View
    stream: Stream
    named: tuple[HierarchyKind, ...]

    @classmethod
    def find(cls, definitions: DefinitionSet, name: str) -> Self:
        """Take a view out of a set."""
        view = definitions.get(View, name)
        if view is None:
            known = ", ".join(definitions.of(View)) or "none yet"
            raise UsageError(f"there is no view {quote(name)}", fix=f"views are {known}")
        stream = definitions.get(Stream, view.stream)
        if stream is None:
            raise UsageError(f"there is no stream {quote(view.stream)}", fix="define it")
        names = set(_named_hierarchies(view.anonymizers))
        held = definitions.of(HierarchyKind)
        return cls(view, stream, tuple(item for key, item in held.items() if key in names))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        documents = [
            Document(item["kind"], item["name"], item["body"]) for item in json.loads(text)
        ]
        found = [KINDS[it.kind].model_validate({"name": it.name, **it.body}) for it in documents]
        (view,) = (it for it in found if isinstance(it, View))
        (stream,) = (it for it in found if isinstance(it, Stream))
        return cls(view, stream, tuple(it for it in found if isinstance(it, HierarchyKind)))

    def to_json(self) -> str:
        """Write the definitions down."""
        # Purposes are not declared there; what they permit is decided elsewhere. Risks were
        # acknowledged when the view was defined, in the light of the other views.
        view = self.view.model_copy(update={"purposes": (), "accept_risk": ()})
        definitions = (view, self.stream, *self.named)
        documents = [item.document() for item in definitions]
        return json.dumps(
            [{"kind": it.kind, "name": it.name, "body": it.body} for it in documents],
            sort_keys=True,
            ensure_ascii=False,
        )

    @cached_property
    def signature(self) -> str:
        """A short name of these definitions."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @cached_property
    def hierarchies(self) -> dict[str, Hierarchy]:
        """The trees that the view names."""
        return hierarchies_of({item.key: item for item in self.named})

    @cached_property
    def plan(self) -> ViewPlan:
        """What the view does."""
        return plan_view(self.view, self.stream, self.hierarchies)

    def chains(self, secret: bytes, vault: Vault | None = None) -> tuple[Chain, Chain | None]:
        """Return the masks before and, where there are any, behind the stateful step."""
        return self.plan.make_chains(self.view.name, secret, self.hierarchies, vault)

    def make_step(
        self,
        secret: bytes,
        saved: bytes | None = None,
        earlier: StatefulStep | None = None,
        shards: int = 1,
        shard: int = 0,
    ) -> StatefulStep | None:
        """Return the stateful step, or that of one of its shards, where there is one.

        `earlier` is the step before a change of the definitions.
        """
        together = self.plan.stateful
        if not together:
            return None
        # Whatever changes the view changes its draws: two versions of it have none in common, and
        # neither have two shards.
        version = self.signature if shards == 1 else f"{self.signature}/{shards}/{shard}"
        key = Keys(secret, self.view.name).derive(together[0].name, "", version)
        if isinstance(together[0], KAnonymization):
            seed = int.from_bytes(key[:8])
            # What waits is bounded for the view as a whole.
            delta = max(together[0].k, -(-together[0].delta // shards))
            own = together[0].model_copy(update={"delta": delta})
            return KAnonymityStep(own, self.plan.middle, self.hierarchies, seed, saved)
        if self.view.window is None:
            raise TypeError(f"the check let {self.view.name} pass without a window")
        by_arrival = self.stream.time is None
        if isinstance(together[0], DifferentialPrivacy):
            step = DifferentialPrivacyStep(
                together[0],
                self.view.window,
                self.plan.middle,
                by_arrival=by_arrival,
                saved=saved,
                shards=shards,
            )
            if isinstance(earlier, DifferentialPrivacyStep):
                step.inherit(earlier.save())
            return step
        return WindowStep(
            self.view.window,
            together,
            self.plan.middle,
            by_arrival=by_arrival,
            secret=key,
            saved=saved,
            shards=shards,
        )

    @property
    def needs(self) -> tuple[str, ...]:
        """The fields that the stateful step must be given."""
        middle, together = self.plan.middle, self.plan.stateful
        return together[0].needs(middle) if len(together) == 1 else tuple(middle)

    @property
    def divides(self) -> bool:
        """Whether the stateful step can be divided into shards."""
        together = self.plan.stateful
        if not together or isinstance(together[0], TCloseness):
            # Groups are like all there are, and a shard sees some of them.
            return False
        return not self.is_windowed or can_combine(together)

    @property
    def is_windowed(self) -> bool:
        """Whether records are put together by time."""
        return any(step.windowed for step in self.plan.stateful)

    @property
    def combines(self) -> bool:
        """Whether what is published of a window is made of all its records, in all shards."""
        made_of_all = (Aggregation, DifferentialPrivacy)
        return any(isinstance(step, made_of_all) for step in self.plan.stateful)

    @property
    def figures(self) -> NoisyFigures | None:
        """What adds noise to the figures of all shards, in views with differential privacy."""
        first = self.plan.stateful[0] if self.plan.stateful else None
        if not isinstance(first, DifferentialPrivacy) or self.view.window is None:
            return None
        return NoisyFigures(first, self.view.window.size, self.plan.middle)


def _named_hierarchies(value: Any) -> Iterator[str]:
    """Yield the names that stand anywhere under `hierarchy`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "hierarchy" and isinstance(item, str):
                yield item
            else:
                yield from _named_hierarchies(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _named_hierarchies(item)

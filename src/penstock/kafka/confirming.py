"""Looks at every broker until none allows a user what is not wanted any more.

    controller: removed ──▶ broker 1: within what is wanted ✓
                       ├──▶ broker 2: within what is wanted ✓     all ✓: it is done
                       └──▶ broker 3: has a rule more, look again

Rules that hold here:
- The controller knows first; each broker learns it by itself, and lets readers go on until
  then. A revocation is done when every broker that runs says that the rules are gone.
- What is looked for is what a broker has beyond what is wanted, not what was removed just
  now: who goes on after a failure finds the rules gone where it asks, and must not take
  that for an answer of all.
- Which brokers run is asked anew with every look: one that crashed meanwhile has to answer
  until the controllers count it out, and one that comes back learns all before it serves.
- Brokers are looked at side by side: a slow one does not keep the others waiting.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor

from penstock.errors import UnavailableError
from penstock.kafka.cluster import PRINCIPAL, Cluster
from penstock.kafka.rules import Rule
from penstock.kafka.wire import Wire

GONE_SECONDS = 30.0
PAUSE_SECONDS = 0.02
FEW = 200
"""Up to this many users it is cheaper to look at the rules of each than at all there are."""
TOGETHER = 8
"""How many brokers are looked at at once."""

Wanted = Mapping[str, AbstractSet[Rule]]
"""What each user is to have, and no more."""


def confirm_within(cluster: Cluster, wanted: Wanted) -> None:
    """Return when no broker has more for these users; raise if that takes too long."""
    if not wanted:
        return
    deadline = time.monotonic() + GONE_SECONDS
    done: set[str] = set()
    wires: dict[str, Wire] = {}
    try:
        with ThreadPoolExecutor(TOGETHER, thread_name_prefix="penstock-kafka-look") as pool:
            while waiting := [broker for broker in cluster.brokers() if broker not in done]:
                answers = pool.map(lambda broker: _look(cluster, broker, wires, wanted), waiting)
                troubles = dict(zip(waiting, answers, strict=True))
                done.update(broker for broker, trouble in troubles.items() if trouble is None)
                left = [trouble for trouble in troubles.values() if trouble is not None]
                if left and time.monotonic() > deadline:
                    raise left[0]
                if left:
                    time.sleep(PAUSE_SECONDS)
    finally:
        for wire in wires.values():
            wire.close()


def _look(
    cluster: Cluster, broker: str, wires: dict[str, Wire], wanted: Wanted
) -> UnavailableError | None:
    """Return why a broker has not confirmed; None if it has."""
    try:
        if broker not in wires:
            wires[broker] = cluster.open_broker(broker)
        excess = _find_excess(wires[broker], wanted)
    except UnavailableError as error:
        lost = wires.pop(broker, None)
        if lost is not None:
            lost.close()
        return UnavailableError(
            f"the broker {broker} does not say whether rules are gone: {error.message}",
            fix="start it, or take it out of the cluster; every broker must be within reach",
        )
    if not excess:
        return None
    user, rule = min(excess)
    return UnavailableError(
        f"the broker {broker} still has {len(excess)} rules that were removed, such as "
        f"{rule} for {user}",
        fix="check that brokers and controllers see each other",
    )


def _find_excess(wire: Wire, wanted: Wanted) -> list[tuple[str, Rule]]:
    some = [PRINCIPAL + user for user in wanted]
    found = []
    for principal in some if len(some) <= FEW else [None]:
        for who, rule in wire.rules(principal):
            user = who.removeprefix(PRINCIPAL)
            if user != who and rule not in wanted.get(user, (rule,)):
                found.append((user, rule))
    return found

"""Revocation: polls every broker until none allows a user what is no longer wanted.

    controller: deleted ──▶ broker 1: no excess ACL ✓
                       ├──▶ broker 2: no excess ACL ✓     all ✓: it is done
                       └──▶ broker 3: has one more, poll again

Rules that hold here:
- The controller knows first; each broker replays the metadata log by itself, and lets readers
  go on until then. A revocation is done when every live broker confirms that the ACLs are gone.
- We look for what a broker has beyond what is wanted, not for what was deleted just now: who
  resumes after a failure finds the ACLs gone at one broker, which says nothing of the others.
- Live brokers are listed anew with every poll: one that crashed meanwhile has to answer until
  the controllers fence it, and one that comes back catches up before it serves.
- Brokers are polled in parallel: a slow one does not hold up the others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor

from penstock.errors import UnavailableError
from penstock.kafka.acls import Acl
from penstock.kafka.admin_connection import AdminConnection
from penstock.kafka.cluster import PRINCIPAL, Cluster

GONE_SECONDS = 30.0
PAUSE_SECONDS = 0.02
FEW = 200
"""Up to this many users it is cheaper to list the ACLs of each than all there are."""
TOGETHER = 8
"""How many brokers are polled in parallel."""

WantedAcls = Mapping[str, AbstractSet[Acl]]
"""The ACLs that each user is to have, and no more."""


def confirm_revoked(cluster: Cluster, wanted: WantedAcls) -> None:
    """Return when no broker has more for these users; raise if that takes too long."""
    if not wanted:
        return
    deadline = time.monotonic() + GONE_SECONDS
    done: set[str] = set()
    connections: dict[str, AdminConnection] = {}
    try:
        with ThreadPoolExecutor(TOGETHER, thread_name_prefix="penstock-kafka-look") as pool:
            while waiting := [broker for broker in cluster.brokers() if broker not in done]:
                answers = pool.map(
                    lambda broker: _look(cluster, broker, connections, wanted), waiting
                )
                troubles = dict(zip(waiting, answers, strict=True))
                done.update(broker for broker, trouble in troubles.items() if trouble is None)
                left = [trouble for trouble in troubles.values() if trouble is not None]
                if left and time.monotonic() > deadline:
                    raise left[0]
                if left:
                    time.sleep(PAUSE_SECONDS)
    finally:
        for connection in connections.values():
            connection.close()


def _look(
    cluster: Cluster, broker: str, connections: dict[str, AdminConnection], wanted: WantedAcls
) -> UnavailableError | None:
    """Return why a broker has not confirmed; None if it has."""
    try:
        if broker not in connections:
            connections[broker] = cluster.connect_broker(broker)
        excess = _find_excess(connections[broker], wanted)
    except UnavailableError as error:
        lost = connections.pop(broker, None)
        if lost is not None:
            lost.close()
        return UnavailableError(
            f"the broker {broker} does not say whether ACLs are gone: {error.message}",
            fix="start it, or take it out of the cluster; every broker must be within reach",
        )
    if not excess:
        return None
    user, acl = min(excess)
    return UnavailableError(
        f"the broker {broker} still has {len(excess)} ACLs that were removed, such as "
        f"{acl} for {user}",
        fix="check that brokers and controllers see each other",
    )


def _find_excess(connection: AdminConnection, wanted: WantedAcls) -> list[tuple[str, Acl]]:
    some = [PRINCIPAL + user for user in wanted]
    found = []
    for principal in some if len(some) <= FEW else [None]:
        for who, acl in connection.acls(principal):
            user = who.removeprefix(PRINCIPAL)
            if user != who and acl not in wanted.get(user, (acl,)):
                found.append((user, acl))
    return found

"""Users, ACLs and topics of a Kafka cluster, reconciled with the definitions.

The cluster itself enforces who reads which view, by SCRAM logins and allow ACLs. `acls` derives
the ACLs that roles lead to, `cluster` reads and changes those that exist, `drift` is the
difference, and `reconciler` removes it. `administration` holds the commands of a data officer.
The settings of clients come from `eventlog.connection`.
"""

from penstock.eventlog.connection import (
    admin_settings,
    client_settings,
    consumer_settings,
    owned_name,
    producer_settings,
)
from penstock.kafka.acls import Acl, RoleStatus, UserStatus, WantedAccess
from penstock.kafka.administration import (
    Administration,
    PendingError,
    open_administration,
    parse_permission,
)
from penstock.kafka.cluster import Cluster, make_topics, wanted_topics
from penstock.kafka.drift import AccessAudit, Drift
from penstock.kafka.reconciler import Reconciler, ReconcileResult, open_reconciler, run_watch

__all__ = [
    "AccessAudit",
    "Acl",
    "Administration",
    "Cluster",
    "Drift",
    "PendingError",
    "ReconcileResult",
    "Reconciler",
    "RoleStatus",
    "UserStatus",
    "WantedAccess",
    "admin_settings",
    "client_settings",
    "consumer_settings",
    "make_topics",
    "open_administration",
    "open_reconciler",
    "owned_name",
    "parse_permission",
    "producer_settings",
    "run_watch",
    "wanted_topics",
]

"""Users, rules and topics of a Kafka cluster, which follow the definitions.

The cluster itself enforces who reads which view: SCRAM logins, and rules that allow. What
is here says what they should be (`rules`), looks at what they are (`cluster`), and mends
the difference (`reconciling`); `administration` is what a data officer does, and
the settings of clients come from `eventlog.connection`.
"""

from penstock.eventlog.connection import (
    admin_settings,
    client_settings,
    consumer_settings,
    owned_name,
    producer_settings,
)
from penstock.kafka.administration import Administration, PendingError, parse_permission
from penstock.kafka.cluster import Cluster
from penstock.kafka.comparing import Differences
from penstock.kafka.opening import open_administration, open_reconciler
from penstock.kafka.reconciling import Outcome, Reconciler
from penstock.kafka.records import AccessRecord
from penstock.kafka.rules import Rule, WantedAccess
from penstock.kafka.status import RoleStatus, UserStatus
from penstock.kafka.topics import make_topics, wanted_topics
from penstock.kafka.watching import run_watch

__all__ = [
    "AccessRecord",
    "Administration",
    "Cluster",
    "Differences",
    "Outcome",
    "PendingError",
    "Reconciler",
    "RoleStatus",
    "Rule",
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

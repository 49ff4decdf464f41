"""The kinds of definitions; importing this package registers them all."""

from penstock.model.definition import KINDS, Concern
from penstock.model.kinds.controls import Control, ControlPublisher, ControlSubscriber
from penstock.model.kinds.events import Action, Event, Plan, Scenario
from penstock.model.kinds.interaction import Restriction, Table, Transformation
from penstock.model.kinds.policies import (
    EmergencyPolicy,
    Enforcement,
    ObjectShape,
    Policy,
    Preference,
    Vocabulary,
)
from penstock.model.kinds.principals import Attributes, Group, Right, User
from penstock.model.kinds.purposes import (
    Presubscription,
    Purpose,
    PurposeSettings,
    PurposeState,
    Reservation,
)
from penstock.model.kinds.roles import (
    ActivationRule,
    Appointment,
    AuthorisationRule,
    Domain,
    Role,
)
from penstock.model.kinds.streams import Stream
from penstock.model.kinds.trust import Capability, EventType, RevocationList
from penstock.model.kinds.views import Hierarchy, View

__all__ = [
    "KINDS",
    "Action",
    "ActivationRule",
    "Appointment",
    "Attributes",
    "AuthorisationRule",
    "Capability",
    "Concern",
    "Control",
    "ControlPublisher",
    "ControlSubscriber",
    "Domain",
    "EmergencyPolicy",
    "Enforcement",
    "Event",
    "EventType",
    "Group",
    "Hierarchy",
    "ObjectShape",
    "Plan",
    "Policy",
    "Preference",
    "Presubscription",
    "Purpose",
    "PurposeSettings",
    "PurposeState",
    "Reservation",
    "Restriction",
    "RevocationList",
    "Right",
    "Role",
    "Scenario",
    "Stream",
    "Table",
    "Transformation",
    "User",
    "View",
    "Vocabulary",
    "kinds_of",
]


def kinds_of(concern: Concern) -> frozenset[str]:
    """Return the kinds whose definitions take part in a concern."""
    return frozenset(name for name, model in KINDS.items() if concern in model.concerns)

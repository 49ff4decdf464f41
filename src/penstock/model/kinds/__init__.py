"""The kinds of definitions, one module each; importing this package registers them all."""

from penstock.model.definition import KINDS, Concern
from penstock.model.kinds.action import Action
from penstock.model.kinds.attributes import Attributes
from penstock.model.kinds.emergency_policy import EmergencyPolicy
from penstock.model.kinds.enforcement import Enforcement
from penstock.model.kinds.event import Event
from penstock.model.kinds.group import Group
from penstock.model.kinds.hierarchy import Hierarchy
from penstock.model.kinds.object_shape import ObjectShape
from penstock.model.kinds.plan import Plan
from penstock.model.kinds.policy import Policy
from penstock.model.kinds.preference import Preference
from penstock.model.kinds.presubscription import Presubscription
from penstock.model.kinds.purpose import Purpose
from penstock.model.kinds.purpose_settings import PurposeSettings
from penstock.model.kinds.reservation import Reservation
from penstock.model.kinds.right import Right
from penstock.model.kinds.role import Role
from penstock.model.kinds.scenario import Scenario
from penstock.model.kinds.stream import Stream
from penstock.model.kinds.user import User
from penstock.model.kinds.view import View
from penstock.model.kinds.vocabulary import Vocabulary

__all__ = [
    "KINDS",
    "Action",
    "Attributes",
    "Concern",
    "EmergencyPolicy",
    "Enforcement",
    "Event",
    "Group",
    "Hierarchy",
    "ObjectShape",
    "Plan",
    "Policy",
    "Preference",
    "Presubscription",
    "Purpose",
    "PurposeSettings",
    "Reservation",
    "Right",
    "Role",
    "Scenario",
    "Stream",
    "User",
    "View",
    "Vocabulary",
    "kinds_of",
]


def kinds_of(concern: Concern) -> frozenset[str]:
    """Return the kinds whose definitions take part in a concern."""
    return frozenset(name for name, model in KINDS.items() if concern in model.concerns)

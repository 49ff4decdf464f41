"""Which definitions a command wants to see: reservations, presubscriptions, settings.

Rules that hold here:
- What is wanted follows from what is stored at that moment; what was tried out at this
  gateway goes before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from penstock.definitions.authorizer import settings_in_force
from penstock.gateway.authorization.rules import PRESUBSCRIPTION, RESERVATION, SETTINGS
from penstock.gateway.commands.command_context import Wanted
from penstock.model.document import Document, Key
from penstock.model.purposes import PurposeSet
from penstock.policy.purposes.commands import Presubscribe, Reserve, SetSetting
from penstock.policy.purposes.settings import PurposeSettings

_SETTINGS = Key(SETTINGS, "default")
_NAME_LIMIT = 256

Edit = Reserve | Presubscribe | SetSetting
"""The commands that change single definitions."""


def list_wanted(
    command: Edit, stored: Mapping[Key, Document], tried: Wanted, initial: PurposeSettings
) -> Wanted:
    """Say which documents a command wants to see; None where one is to go.

    What was tried out at this gateway goes before what is stored.
    """
    match command:
        case Reserve(filter=reserved, purposes=purposes):
            body = _reservation(purposes)
            return {Key(RESERVATION, reserved): _document(RESERVATION, reserved, body)}
        case Presubscribe(client=whom, filter=text, ap=ap):
            return _presubscription(_held(PRESUBSCRIPTION, stored, tried), whom, text, ap)
        case SetSetting(name=name, value=value):
            held = _held(SETTINGS, stored, tried).get(_SETTINGS)
            settings = settings_in_force(initial, held.body if held is not None else None)
            changed = settings.change(name, value=value).as_dict()
            return {_SETTINGS: _document(SETTINGS, _SETTINGS.name, changed)}
    raise AssertionError(command)


def _held(kind: str, stored: Mapping[Key, Document], tried: Wanted) -> dict[Key, Document]:
    held = {key: it for key, it in stored.items() if key.kind == kind and key not in tried}
    return held | {key: it for key, it in tried.items() if key.kind == kind and it is not None}


def describe(command: Edit) -> str:
    """Say for the history what a command did; who did it stands beside it."""
    match command:
        case Reserve(filter=reserved, purposes=purposes):
            return f"{'released' if purposes is None else 'reserved'} {reserved[:_NAME_LIMIT]}"
        case Presubscribe(ap=ap):
            return "ended a presubscription" if ap is None else "presubscribed a client"
        case SetSetting(name=name, value=value):
            return f"setting {name} {'on' if value else 'off'}"
    raise AssertionError(command)


def _presubscription(held: dict[Key, Document], whom: str, text: str, ap: str | None) -> Wanted:
    # Another definition may say the same already; of several the last by name counts.
    known = [
        key.name
        for key, it in held.items()
        if (it.body["client"], it.body["filter"]) == (whom, text)
    ]
    digest = hashlib.sha256(f"{whom}\0{text}".encode()).hexdigest()[:16]
    name = max(known, default=f"command-{digest}")
    body = None if ap is None else {"client": whom, "filter": text, "purpose": ap}
    return {Key(PRESUBSCRIPTION, name): _document(PRESUBSCRIPTION, name, body)}


def _reservation(purposes: PurposeSet | None) -> Mapping[str, Any] | None:
    if purposes is None:
        return None
    return {"allow": sorted(purposes.aip), "prohibit": sorted(purposes.pip)}


def _document(kind: str, name: str, body: Mapping[str, Any] | None) -> Document | None:
    return None if body is None else Document(kind, name, body)

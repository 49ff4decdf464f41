"""What Penstock can show: receipts to people, the record of processing activities to auditors.

    request + the definitions of its epoch ──▶ receipt, signed ──▶ front end ──▶ person
                                               receipt ──▶ verify, with the public keys alone
    purposes ──▶ one activity each: data, views and recipients, services, what people can choose

Rules that hold here:
- A receipt is about a choice that is stored, and says what it meant under the definitions of the
  time. It goes to the front end that took the choice in, and to nobody else.
- It is signed with the key of the audit log (Ed25519), under a purpose of its own: a receipt is
  no head of the log, and the reverse. What is signed is its canonical JSON without the signature.
- The record says what is declared, and where something is not declared it says so: a gap that an
  auditor cannot see is worse than one in plain sight. Nobody is named in it: definitions hold
  roles, services and teams.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from penstock.definitions import DefinitionSet
from penstock.errors import UsageError
from penstock.model.kinds import Control, ControlSubscriber, Purpose, Reservation, Stream, View
from penstock.model.purposes import lineage
from penstock.store.audit.entry import canonical
from penstock.store.audit.signatures import PublicKeys, Signer

VERSION: Final = "penstock-receipt-1"
PURPOSE: Final = b"consent receipt"
_FIELDS: Final = frozenset(
    (
        "version", "request", "publisher", "control", "choice", "categories", "purposes",
        "subject", "at", "epoch", "key", "signature",
    )
)  # fmt: skip


def make_receipt(row: Any, subject: str, then: DefinitionSet, signer: Signer) -> dict[str, Any]:
    """Return the receipt of a request, under the definitions of its epoch."""
    control, declared = then.get(Control, row.control), then.of(Purpose)
    if control is None or not control.stateful:
        raise UsageError(
            "there are receipts of choices alone, and this request is none",
            fix="name a request of a stateful control",
        )
    categories = json.loads(row.categories)
    names = [f"{it}/{part}" for it in control.purposes for part in categories]
    purposes = [it for it in names if it in declared] if categories else control.purposes
    receipt = {
        "version": VERSION,
        "request": row.id,
        "publisher": row.publisher,
        "control": row.control,
        "choice": row.action,
        "categories": categories,
        "purposes": [
            {"name": it, "dpv": declared[it].dpv if it in declared else ""} for it in purposes
        ],
        "subject": subject,
        "at": row.at.isoformat(),
        "epoch": row.epoch,
        "key": signer.key,
    }
    signature = signer.sign_statement(PURPOSE, canonical(receipt).encode())
    return {**receipt, "signature": signature.hex()}


def verify_receipt(receipt: Mapping[str, Any], keys: PublicKeys) -> bool:
    """Say whether one of the keys signed this receipt, as it is."""
    if set(receipt) != _FIELDS or receipt["version"] != VERSION:
        return False
    signed = {name: value for name, value in receipt.items() if name != "signature"}
    try:
        signature = bytes.fromhex(receipt["signature"])
        text = canonical(signed).encode()
    except (TypeError, ValueError):
        return False
    return keys.verify_statement(str(receipt["key"]), PURPOSE, text, signature)


UNKNOWN: Final = "not declared"
_DAY: Final = 86_400_000
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_TITLES: Final[Mapping[str, str]] = {
    "purpose": "Purpose",
    "dpv": "DPV",
    "description": "Description",
    "streams": "Streams",
    "data": "Personal data",
    "views": "Views",
    "recipients": "Recipients",
    "topics": "Topics reserved for it",
    "controls": "What people can choose or ask for",
    "services": "Services that are told",
    "honoured_within": "Honoured within",
    "retention": "Retention",
}


@dataclass(frozen=True, slots=True)
class ProcessingActivity:
    """What is done for one purpose."""

    purpose: str
    dpv: str
    description: str
    streams: tuple[str, ...]
    data: tuple[str, ...]
    """Fields that say something about a person, each with its category."""
    views: tuple[str, ...]
    recipients: tuple[str, ...]
    """Roles that may read the views."""
    topics: tuple[str, ...]
    controls: tuple[str, ...]
    services: tuple[str, ...]
    honoured_within: str
    retention: str = UNKNOWN


def list_activities(definitions: DefinitionSet) -> list[ProcessingActivity]:
    """Return the activities that the definitions declare, by purpose."""
    return [
        _make_activity(purpose, definitions)
        for _, purpose in sorted(definitions.of(Purpose).items())
    ]


def _make_activity(purpose: Purpose, definitions: DefinitionSet) -> ProcessingActivity:
    name = purpose.name
    views = {key: it for key, it in definitions.of(View).items() if _serves(it.purposes, name)}
    streams = {it.stream: definitions.of(Stream)[it.stream] for it in views.values()}
    reservations = definitions.of(Reservation).items()
    controls = {
        key: it
        for key, it in definitions.of(Control).items()
        if it.stateful and _serves(it.purposes, name)
    }
    # What is asked for once, such as a deletion, concerns data whatever it is used for.
    asked = {key: it for key, it in definitions.of(Control).items() if not it.stateful}
    offered = controls | asked
    services = {
        key: it for key, it in definitions.of(ControlSubscriber).items() if it.control in offered
    }
    spans = [it.time_to_honor for it in offered.values()]
    return ProcessingActivity(
        purpose=name,
        dpv=purpose.dpv,
        description=purpose.description,
        streams=tuple(sorted(streams)),
        data=tuple(
            f"{stream}.{field.name} ({field.category})"
            for stream, it in sorted(streams.items())
            for field in it.fields
            if field.category != "plain"
        ),
        views=tuple(sorted(views)),
        recipients=tuple(sorted({role for it in views.values() for role in it.roles})),
        topics=tuple(sorted(key for key, it in reservations if _serves(it.allow, name))),
        controls=tuple(sorted(offered)),
        services=tuple(f"{key} ({it.control})" for key, it in sorted(services.items())),
        honoured_within=f"{max(spans) / _DAY:g} days" if spans else UNKNOWN,
    )


def _serves(purposes: Iterable[str], name: str) -> bool:
    """Say whether purposes comprise one: it is among them, or lies below one of them."""
    return not set(lineage(name)).isdisjoint(purposes)


def as_data(activities: Sequence[ProcessingActivity]) -> list[dict[str, Any]]:
    """Return the record as JSON data."""
    return [asdict(it) for it in activities]


def as_markdown(activities: Sequence[ProcessingActivity], epoch: int) -> str:
    """Return the record as a page."""
    lines = ["# Record of processing activities", "", f"From the definitions of epoch {epoch}."]
    for activity in activities:
        found = asdict(activity)
        lines += ["", f"## {_plain(found.pop('purpose'))}", "", "| | |", "| --- | --- |"]
        lines += [f"| {_TITLES[name]} | {_cell(value)} |" for name, value in found.items()]
    return "\n".join(lines) + "\n"


def as_csv(activities: Sequence[ProcessingActivity]) -> str:
    """Return the record as CSV; a cell never begins as a formula would."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_TITLES)
    for activity in activities:
        cells = [_text(value) for value in asdict(activity).values()]
        writer.writerow([f"'{it}" if it.startswith(_FORMULA) else it for it in cells])
    return out.getvalue()


def _text(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else "; ".join(value)


def _cell(value: str | Sequence[str]) -> str:
    return _plain(_text(value)) or UNKNOWN


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())

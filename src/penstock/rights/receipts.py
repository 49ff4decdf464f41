"""Consent receipts: what a person chose, when and where, signed for the person to keep.

    request + the definitions of its epoch ──▶ receipt, signed ──▶ front end ──▶ person
                                               receipt ──▶ verify, with the public keys alone

Rules that hold here:
- A receipt is about a choice that is stored, and says what it meant under the definitions of the
  time. It goes to the front end that took the choice in, and to nobody else.
- It is signed with the key of the audit log (Ed25519), under a purpose of its own: a receipt is
  no head of the log, and the reverse. What is signed is its canonical JSON without the signature.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from penstock.definitions import DefinitionSet
from penstock.errors import UsageError
from penstock.model.kinds import Control, Purpose
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

"""Appointments are signed when they are stored, and believed when the signature is right.

    apply ──▶ sign ──▶ store ──▶ every enforcement point: trusts? ──▶ roles

Rules that hold here:
- They are signed with the key of the audit log (Ed25519), under a purpose of their own. Who can
  write to the database, and has not the key, appoints nobody.
- What is signed has the name, the credential, the holder and the times in it: a signature
  fits no other appointment.
- A document that has a signature already is stored as it is, where that signature is right:
  a copy from another installation, or of a changed one, is refused.
- What was looked at once is remembered, in limited number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from penstock.definitions.set import Trust
from penstock.errors import DeniedError, quote
from penstock.model.document import Document
from penstock.model.kinds import Appointment

if TYPE_CHECKING:  # who only reads definitions without appointments needs no keys
    from penstock.store.audit.signatures import PublicKeys, Signer

_PURPOSE: Final = b"penstock appointment v1"
_SIGNATURE: Final = re.compile(r"([0-9a-f]{32}):([0-9a-f]{128})", re.ASCII)
_REMEMBERED: Final = 131_072


def _statement(appointment: Appointment) -> bytes:
    return json.dumps(
        appointment.statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True
    ).encode()


def is_signed(appointment: Appointment, keys: PublicKeys) -> bool:
    """Tell whether one of these keys signed an appointment as it is."""
    found = _SIGNATURE.fullmatch(appointment.signature or "")
    if found is None:
        return False
    signature = bytes.fromhex(found[2])
    return keys.verify_statement(found[1], _PURPOSE, _statement(appointment), signature)


def trust_keys(load: Callable[[], PublicKeys]) -> Trust:
    """Return what tells whether an appointment is believed; keys are loaded with the first."""
    keys: list[PublicKeys] = []
    known: dict[tuple[bytes, str | None], bool] = {}

    def trusts(appointment: Appointment) -> bool:
        if not keys:
            keys.append(load())
        what = (_statement(appointment), appointment.signature)
        answer = known.get(what)
        if answer is None:
            if len(known) >= _REMEMBERED:
                known.clear()
            answer = known[what] = is_signed(appointment, keys[0])
        return answer

    return trusts


def sign_documents(documents: Iterable[Document], signer: Signer) -> list[Document]:
    """Return documents with those appointments signed that are not; a wrong signature is refused.

    Documents that are not in the shape of an appointment are left to the check of the set.
    """
    return [_sign(it, signer) if it.kind == Appointment.kind else it for it in documents]


def _sign(document: Document, signer: Signer) -> Document:
    try:
        appointment = Appointment.model_validate({"name": document.name, **document.body})
    except ValueError:
        return document
    if appointment.signature is not None:
        if not is_signed(appointment, signer.public_keys):
            raise DeniedError(
                f"the signature of the appointment {quote(document.name)} is not one of this "
                "installation, or it was changed since",
                fix="remove `signature`: applying it signs it",
            )
        return document
    signature = signer.sign_statement(_PURPOSE, _statement(appointment)).hex()
    body = {**document.body, "signature": f"{signer.key}:{signature}"}
    return Document(document.kind, document.name, body)

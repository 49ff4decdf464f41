"""The audit log: append-only, tamper-evident, and without anybody's name in it.

log = AuditLog.open(database, settings.audit.signing_key)
people = Pseudonyms.open(settings.audit.pseudonym_key)
with closing(AuditWriter(log)) as writer:
    ticket = writer.submit(
        Entry.make("decision.read", Outcome.DENIED, actor=people.person("alice"), epoch=7)
    )
    writer.wait(ticket)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.store.audit.entry import Detail, Entry, Outcome, allow_detail
    from penstock.store.audit.errors import (
        AuditFinding,
        AuditFullError,
        AuditStoppedError,
        AuditVerdict,
        TamperedError,
        UncertainAppendError,
    )
    from penstock.store.audit.log import AuditLog
    from penstock.store.audit.proofs import check_proof, prove_consistency, prove_inclusion
    from penstock.store.audit.pruning import PruningPlan, Retention, prune
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.audit.reader import Filter, Recorded, newest_head, read_after, read_last
    from penstock.store.audit.signatures import Head, PublicKeys, Signer
    from penstock.store.audit.verification import verify
    from penstock.store.audit.writer import AuditWriter
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "entry": ("Detail", "Entry", "Outcome", "allow_detail"),
            "errors": (
                "AuditFinding",
                "AuditFullError",
                "AuditStoppedError",
                "AuditVerdict",
                "TamperedError",
                "UncertainAppendError",
            ),
            "log": ("AuditLog",),
            "proofs": ("check_proof", "prove_consistency", "prove_inclusion"),
            "pruning": ("PruningPlan", "Retention", "prune"),
            "pseudonyms": ("Pseudonyms",),
            "reader": ("Filter", "Recorded", "newest_head", "read_after", "read_last"),
            "signatures": ("Head", "PublicKeys", "Signer"),
            "verification": ("verify",),
            "writer": ("AuditWriter",),
        },
    )

__all__ = [
    "AuditFinding",
    "AuditFullError",
    "AuditLog",
    "AuditStoppedError",
    "AuditVerdict",
    "AuditWriter",
    "Detail",
    "Entry",
    "Filter",
    "Head",
    "Outcome",
    "PruningPlan",
    "Pseudonyms",
    "PublicKeys",
    "Recorded",
    "Retention",
    "Signer",
    "TamperedError",
    "UncertainAppendError",
    "allow_detail",
    "check_proof",
    "newest_head",
    "prove_consistency",
    "prove_inclusion",
    "prune",
    "read_after",
    "read_last",
    "verify",
]

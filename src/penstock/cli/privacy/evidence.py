"""The evidence of an erasure or an export, as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.output import table

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.store.rights.erasures import Evidence


def as_data(proof: Evidence) -> dict[str, Any]:
    """Return evidence as JSON, with whether it is what the audit log has a digest of."""
    return {
        "subscriber": proof.subscriber, "at": proof.at.isoformat(timespec="seconds"),
        "digest": proof.digest, "entry": proof.entry, "intact": proof.is_intact, **proof.content,
    }  # fmt: skip


def print_evidence(target: Console, proof: Evidence) -> None:
    """Show what was erased or exported, what the scan found, and what remains where."""
    target.print(f"\nevidence of {proof.subscriber}, {proof.at:%Y-%m-%d %H:%M} UTC")
    exported = "exported" in proof.content
    shown = table("exported" if exported else "erased from", "what")
    for it in proof.content["exported" if exported else "erased"]:
        figures = ", ".join(f"{count} {name}" for name, count in it.items() if name != "place")
        shown.add_row(it["place"], figures)
    target.print(shown)
    scan = proof.content.get("scan")
    if scan is not None:
        target.print(
            f"scan of {scan['files']} files ({scan['bytes']} bytes): "
            f"the name was found {scan['found']} times"
        )
    left = table("missing" if exported else "remains", "why")
    for it in proof.content["remains"]:
        count = f" ({it['count']} times)" if "count" in it else ""
        until = f", gone by {it['until']}" if "until" in it else ""
        left.add_row(it["place"], it["reason"] + count + until)
    target.print(left)
    if proof.audited is None:
        state = "the audit log no longer has that entry"
    else:
        state = "intact" if proof.is_intact else "NOT what the audit log has a digest of"
    target.print(f"digest {proof.digest}, entry {proof.entry} of the audit log: {state}")

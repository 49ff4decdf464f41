"""Proofs that stand by themselves: JSON documents that anybody can check, offline.

An *inclusion* proof shows that one entry is in the log that a head was signed for. A
*consistency* proof shows that the log of a later head extends that of an earlier one.
Both carry the heads, the hashes and the public key. Checking needs nothing else but the
knowledge which key to believe: that never comes from the proof.
"""

from __future__ import annotations

import re
from typing import Any

from penstock.errors import UsageError, quote
from penstock.store.audit import merkle
from penstock.store.audit.entry import canonical
from penstock.store.audit.reader import read_checkpoint, read_nodes, read_one, read_tip
from penstock.store.audit.signatures import Head, PublicKeys, TamperedError
from penstock.store.database import Database

VERSION = 1
PATH_LIMIT = 128
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


def prove_inclusion(database: Database, keys: PublicKeys, seq: int) -> dict[str, Any]:
    """Prove that entry `seq` is in the log as it now stands."""
    with database.read() as connection:
        head = read_tip(connection).head
        recorded = read_one(connection, seq)
        cut = read_checkpoint(connection)
        if recorded is None and 0 <= seq < cut.before:
            raise UsageError(
                f"entry {seq} of the audit log was pruned; entry {cut.entry} says so",
                fix="prove that entry, or choose one that `penstock audit tail` shows",
            )
        if recorded is None or not 0 <= seq < head.size:
            raise UsageError(
                f"there is no entry {seq} in the audit log",
                fix=f"choose one from 0 to {head.size - 1}" if head.size else "the log is empty",
            )
        ranges = merkle.inclusion_ranges(seq, head.size)
        path = merkle.hash_ranges(ranges, read_nodes(connection, merkle.needed_nodes(ranges)))
    return _checked(
        {
            "proof": "inclusion",
            "version": VERSION,
            "entry": recorded.as_document(),
            "path": [one.hex() for one in path],
            "head": head.as_document(),
            "public_keys": keys.pem(head.key),
        },
        keys,
    )


def prove_consistency(
    database: Database, keys: PublicKeys, first: Head, second: Head | None = None
) -> dict[str, Any]:
    """Prove that the log at the `second` head (the newest, if none) extends the `first`."""
    with database.read() as connection:
        newest = read_tip(connection).head
        last = second or newest
        if not first.size <= last.size <= newest.size:
            raise TamperedError(
                f"heads of sizes {first.size} and {last.size} cannot be connected"
                f" in a log of size {newest.size}",
                fix="pass the older head first; if it is larger than the log, entries are missing",
            )
        ranges = merkle.consistency_ranges(first.size, last.size)
        path = merkle.hash_ranges(ranges, read_nodes(connection, merkle.needed_nodes(ranges)))
    used = dict.fromkeys([first.key, last.key])
    return _checked(
        {
            "proof": "consistency",
            "version": VERSION,
            "first": first.as_document(),
            "second": last.as_document(),
            "path": [one.hex() for one in path],
            "public_keys": "".join(keys.pem(key) for key in used),
        },
        keys,
    )


def _checked(proof: dict[str, Any], keys: PublicKeys) -> dict[str, Any]:
    # A tampered database yields proofs that prove nothing: better no proof than such a one.
    check_proof(proof, keys)
    return proof


def embedded_keys(proof: Any) -> PublicKeys:
    """Return the public keys that a proof brings along; believing them is another matter."""
    text = proof.get("public_keys") if isinstance(proof, dict) else None
    if not isinstance(text, str):
        raise UsageError(f"{quote(proof)} is not a proof", fix="pass what `audit prove` printed")
    return PublicKeys.parse(text.encode(), "the proof")


def check_proof(proof: Any, keys: PublicKeys) -> str:
    """Check a proof; return what it proves, or raise `TamperedError`."""
    match proof:
        case {
            "proof": "inclusion",
            "version": 1,
            "entry": {"seq": int(seq), **fields} as entry,
            "path": list(path),
            "head": head,
        } if fields:
            return _check_inclusion(entry, seq, _hashes(path), Head.from_document(head), keys)
        case {
            "proof": "consistency",
            "version": 1,
            "first": first,
            "second": second,
            "path": list(path),
        }:
            heads = Head.from_document(first), Head.from_document(second)
            return _check_consistency(*heads, _hashes(path), keys)
    raise UsageError(f"{quote(proof)} is not a proof", fix="pass what `audit prove` printed")


def _hashes(path: list[Any]) -> list[bytes]:
    if len(path) > PATH_LIMIT or not all(
        isinstance(one, str) and _HASH.fullmatch(one) for one in path
    ):
        raise UsageError("the path of the proof is not a list of hashes")
    return [bytes.fromhex(one) for one in path]


def _check_inclusion(entry: Any, seq: int, path: list[bytes], head: Head, keys: PublicKeys) -> str:
    keys.check(head)
    try:
        leaf = merkle.hash_leaf(canonical(entry).encode())
    except (ValueError, RecursionError):
        raise UsageError("the entry of the proof is unreadable") from None
    inside = 0 <= seq < head.size
    if not inside or merkle.root_from_inclusion(leaf, seq, head.size, path) != head.root:
        raise TamperedError(f"the proof does not lead from entry {seq} to the signed root")
    return f"entry {seq} is in the log of {head.size} entries signed by {head.key}"


def _check_consistency(first: Head, second: Head, path: list[bytes], keys: PublicKeys) -> str:
    keys.check(first)
    keys.check(second)
    if first.size > second.size or not merkle.is_consistent(
        first.size, first.root, second.size, second.root, path
    ):
        raise TamperedError(
            f"the proof does not show that the log of {second.size} entries extends"
            f" that of {first.size}"
        )
    return f"the log of {second.size} entries extends that of {first.size}, signed by {second.key}"
